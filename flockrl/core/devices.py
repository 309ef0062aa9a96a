"""Several devices for one learner: environments and minibatches are shared out, parameters are the same everywhere.

A program is written for one device. Where it is compiled for several, `spread` says along which axis arrays are cut,
and the compiler sees to the rest: what each device computes of them, and sums over all where a mean or a gradient is
taken. So the numbers are those of one device, up to the order in which they are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flockrl.core.types import PyTree

AXIS = "envs"
"""The name of the devices' axis."""


def make_mesh(devices: Sequence[Any]) -> Mesh:
    """These devices in a row."""
    return Mesh(np.array(devices), (AXIS,))


def everywhere(mesh: Mesh) -> NamedSharding:
    """Every device has the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def shared_out(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Every device has a part of this axis."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def whole(arrays: PyTree) -> PyTree:
    """All of the arrays, also where other processes hold parts of them. Every process must ask."""
    for x in jax.tree.leaves(arrays):
        if isinstance(x, jax.Array) and not x.is_fully_addressable and isinstance(x.sharding, NamedSharding):
            return jax.jit(lambda x: x, out_shardings=everywhere(x.sharding.mesh))(arrays)  # type: ignore[arg-type]
    return arrays


def agreed(flag: bool) -> bool:
    """Whether the flag is set in any of the processes that train together. Every process must ask."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def within(mesh: Mesh | None) -> AbstractContextManager[Any]:
    """Programs that are traced inside are for these devices; None for a single one."""
    if mesh is None:
        return nullcontext()
    enter: Any = getattr(jax, "set_mesh", None) or getattr(jax.sharding, "use_mesh", None)  # its name until JAX 0.8
    return enter(mesh)


def spread(arrays: PyTree, axis: int = 0) -> PyTree:
    """Share out an axis of all arrays among the devices that the program around this is compiled for.

    Nothing happens on one device, nor to arrays whose axis cannot be cut evenly.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or AXIS not in mesh.axis_names:
        return arrays
    count, cut = mesh.shape[AXIS], PartitionSpec(*[None] * axis, AXIS)

    def one(x: Any) -> Any:
        return x if x.shape[axis] % count else jax.lax.with_sharding_constraint(x, cut)

    return jax.tree.map(one, arrays)
