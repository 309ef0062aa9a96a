"""The multi-robot warehouse, compiled: robots fetch requested shelves, deliver them and bring them back."""

from functools import partial

from flockrl.envs.warehouse.layout import SIZES
from flockrl.envs.warehouse.warehouse import Warehouse

ENVIRONMENTS = {size: partial(Warehouse, size) for size in SIZES}
