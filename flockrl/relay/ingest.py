"""Checks of incoming messages: bytes become a record batch that satisfies the schema and the limits, or `BadData`."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.columns import make_columns
from flockrl.data.decoding import check_columns
from flockrl.data.experience import Experience
from flockrl.data.schema import KEY, BadData, decode, make_schema, read_spec
from flockrl.data.size import decoded_size
from flockrl.relay.bounds import check_numbers
from flockrl.relay.wire import unpack


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    message_bytes: int = 16 << 20
    """Size of a message."""
    decoded_bytes: int = 256 << 20
    """Memory that a decoded message may need: arrays have room for all agents, also for those that are not in it."""
    name_length: int = 200
    """Characters of a trajectory's id and of an environment's name."""
    largest: float = 1e6
    """Absolute value of observations, states and actions; larger numbers could overflow in the learner."""
    reward: float = 1e6
    """Absolute value of rewards."""
    logp: float = 30.0
    """Distance of an action's log-probability from 0, for each number that the action has."""
    rate: float = 0.0
    """Rows per second from one address; 0 for no limit."""
    clients: int = 256
    """Calls that are under way at the same time."""
    answer_bytes: int = 256 << 20
    """Models that are being sent at the same time."""
    backlog_bytes: int = 64 << 20
    """Accepted data that is not trained on yet; above this size, acknowledgements wait."""
    log_bytes: int = 10 << 30
    """Size of the log on disk; above it, the oldest segments that were trained on are deleted."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "rate" else 1
            if not least <= value <= (1e38 if isinstance(value, float) else 2**62):
                raise UsageError(f"{field.name} must be at least {least} and finite, not {value}.")


def admit(data: Any, spec: EnvSpec, limits: Limits) -> tuple[pa.RecordBatch, Experience]:
    """The rows of a message, and the same data as experience. Raises `BadData` with the reason for a refusal."""
    size = memoryview(data).nbytes
    if size > limits.message_bytes:
        raise BadData(f"The message has {size} bytes, and at most {limits.message_bytes} are taken.")
    batch = unpack(data)
    try:
        return batch, _check(batch, spec, limits)
    except BadData:
        raise
    except (UsageError, RecursionError, ValueError, pa.ArrowException) as error:  # e.g. a name that is not UTF-8
        raise BadData(f"The message cannot be read: {str(error)[:300]}") from error


def _check(batch: pa.RecordBatch, spec: EnvSpec, limits: Limits) -> Experience:
    _same_team(batch.schema.metadata or {}, spec)
    _room(batch, spec, limits)
    for name in ("trajectory", "env"):
        if (pc.max(pc.utf8_length(batch.column(name))).as_py() or 0) > limits.name_length:
            raise BadData(f"The column {name!r} has more than {limits.name_length} characters in a row.")
    if pc.min(pc.utf8_length(batch.column("trajectory"))).as_py() == 0:
        raise BadData("The column 'trajectory' is empty in a row.")
    experience = decode(batch, spec)
    check_numbers(experience, spec, limits.largest, limits.reward, limits.logp)
    return experience


def _same_team(metadata: dict[bytes, bytes], spec: EnvSpec) -> None:
    """Refuse data of another environment. What a stranger wrote is parsed only if it could be the same."""
    said, own = metadata.get(KEY, b""), _own(spec)
    if said == own:
        return
    if len(said) > 2 * len(own) + 10_000:
        raise BadData("The trajectories are of another environment than this server's: they describe it at length.")
    theirs = read_spec(pa.schema([], metadata={KEY: said}))
    if theirs != spec:
        raise BadData(
            f"The trajectories are of {theirs.name[:60]!r} as the sender knows it, not of this server's {spec.name!r}."
        )


@functools.lru_cache(maxsize=4)
def _own(spec: EnvSpec) -> bytes:
    """What the metadata of this environment's data say."""
    return make_schema(spec).metadata[KEY]


def _room(batch: pa.RecordBatch, spec: EnvSpec, limits: Limits) -> None:
    """Refuse a message that would need too much memory when decoded."""
    check_columns(batch, make_columns(spec))
    if not len(batch):
        raise BadData("There are no rows.")
    needed = decoded_size(batch, spec)
    if needed > limits.decoded_bytes:
        raise BadData(f"The message would need {needed} bytes of memory, and at most {limits.decoded_bytes} are given.")
