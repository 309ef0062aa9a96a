"""The columns of recorded trajectories in Arrow, and what their metadata says about the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec, spec_from_json, spec_to_json

FORMAT = 1
LONGEST = 16 << 20
"""Bytes in which a schema may be described."""
KEY = b"flockrl"
"""Where a schema's metadata says, as JSON, which format this is and what the environment looks like."""


class BadData(UsageError):
    """Recorded data that cannot be taken. The text says what is wrong with it; `row`: where among the rows that were
    read together, or None where no row is to blame."""

    def __init__(self, text: str, row: int | None = None):
        super().__init__(text)
        self.row = row


def too_large(size: int, most: int, what: str) -> BadData:
    """The refusal of what does not fit. size: bytes that it needs; most: bytes that it may take."""
    return BadData(
        f"{what} needs {-(-size // (1 << 20)):,} MB of memory, and {most >> 20:,} MB are given: raise --memory-limit."
    )


def make_schema(spec: EnvSpec, about: Mapping[str, Any] | None = None) -> pa.Schema:
    """The columns for an environment. `about`: more to keep in the metadata, such as the algorithm that acted."""
    said = {"format": FORMAT, "spec": spec_to_json(spec), **(about or {})}
    return make_columns(spec).with_metadata({KEY: json.dumps(said).encode()})


def make_columns(spec: EnvSpec) -> pa.Schema:
    """The columns for an environment, without metadata."""
    pixel = pa.uint8() if spec.observations[0].dtype == "uint8" else pa.float32()
    obs, numbers, flags = pa.list_(pixel), pa.list_(pa.float32()), pa.list_(pa.bool_())
    here = [
        ("trajectory", pa.string()), ("env", pa.string()), ("episode", pa.int64()), ("policy_version", pa.int64()),
        ("step", pa.int64()), ("agent", pa.string()), ("timestamp", pa.int64()),
        ("obs", obs), ("action", numbers), ("reward", pa.float32()),
        ("terminated", pa.bool_()), ("truncated", pa.bool_()),
    ]  # fmt: skip
    perhaps = [
        ("mask", flags), ("state", numbers), ("final_obs", obs), ("final_mask", flags), ("final_state", numbers),
        ("logp", pa.float32()), ("aux", pa.map_(pa.string(), numbers)),
    ]  # fmt: skip
    fields = [pa.field(*column, nullable=False) for column in here] + [pa.field(*column) for column in perhaps]
    return pa.schema(fields)


def read_about(schema: pa.Schema) -> dict[str, Any]:
    """What a schema's metadata says: at least `format` and `spec`."""
    if len((schema.metadata or {}).get(KEY, b"")) > LONGEST:
        raise BadData(f"The metadata describe an environment in more than {LONGEST} bytes.")
    try:
        said = json.loads((schema.metadata or {})[KEY])
        version = said["format"]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise BadData("This is not flockrl's schema: its metadata does not describe an environment.") from error
    if version != FORMAT:
        raise BadData(f"The data has format {repr(version)[:40]}, and this version of flockrl reads format {FORMAT}.")
    return said


def read_spec(schema: pa.Schema) -> EnvSpec:
    """The environment that a schema's metadata describes."""
    try:
        return spec_from_json(read_about(schema).get("spec"))
    except BadData:
        raise
    except (UsageError, RecursionError) as error:
        raise BadData(f"The data does not describe its environment: {error}") from error
