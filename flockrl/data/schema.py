"""The schema of recorded trajectories in Arrow: one row for each agent at each step. docs/data.md explains it.

Rows are ordered by trajectory, step and agent; an agent that is not there has no row. `encode` and `decode` are inverse
to each other to the bit. `decode` trusts nothing: whatever does not fit raises `BadData` with the reason.
"""

from flockrl.data.columns import FORMAT, KEY, BadData, make_schema, read_about, read_spec
from flockrl.data.decoding import decode
from flockrl.data.encoding import encode

__all__ = ["FORMAT", "KEY", "BadData", "decode", "encode", "make_schema", "read_about", "read_spec"]
