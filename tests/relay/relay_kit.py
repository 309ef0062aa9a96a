"""What the relay's tests share: a small team, episodes of it, and a server in this process."""

import contextlib
import time

import numpy as np
import pytest

from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.experience import Experience, blank, join
from flockrl.data.schema import decode, encode, make_schema
from flockrl.relay.front import start
from flockrl.relay.ingest import Limits
from flockrl.relay.log import Log
from flockrl.relay.segment import Damaged
from flockrl.relay.server import Relay
from flockrl.relay.wire import pack

SPEC = EnvSpec("meadow", ("sheep", "dog"), (Box((3,)), Box((2,))), (Discrete(4), Discrete(3)), 20)
SMALL = {"hidden": (8,), "rollout_steps": 10, "minibatches": 2, "epochs": 2}
"""Settings of a trainer with two columns that learns from 20 steps."""


def episodes(names, steps=3, seed=0, version=0):
    """Finished episodes with these ids."""
    rng, parts = np.random.default_rng(seed), []
    for number, name in enumerate(names):
        fields = blank(SPEC, steps, 1, False, False)
        fields["id"][0], fields["env"][0], fields["episode"][0] = name, "meadow", number
        fields["version"][0], fields["length"][0] = version, steps
        fields["step"] = np.arange(steps)
        fields["obs"] = rng.normal(size=(steps, 2, 3)).astype(np.float32)
        fields["obs"][:, 1, 2] = 0
        fields["action"] = rng.integers(0, 3, (steps, 2)).astype(np.int32)
        fields["reward"] = rng.normal(size=(steps, 2)).astype(np.float32)
        fields["alive"][:] = True
        fields["terminated"][-1] = True
        fields["next_obs"][:-1] = fields["obs"][1:]
        fields["logp"] = rng.normal(size=(steps, 2)).astype(np.float32)
        parts.append(Experience(**fields))
    return join(parts)


def batch(names, **more):
    return encode(episodes(names, **more), SPEC)


def message(names, **more):
    return pack(batch(names, **more)).to_pybytes()


def messages_in(log):
    """The committed messages of a log in order, as record batches; None for one that is damaged."""
    place = log.start
    while True:
        try:
            entry = log.read(place)
        except Damaged as error:
            if error.after <= place:
                pytest.fail("a reader would stay at the damage")
            place = error.after
            yield None
            continue
        if entry is None:
            return
        rows, place = entry
        yield rows


def ids(rows):
    """The trajectories of a message."""
    return rows.column("trajectory").unique().to_pylist()


def ids_in(log):
    """Ids of all committed trajectories in a log without damage, in order."""
    return [name for rows in messages_in(log) for name in ids(rows)]


def recorded(queue, spec=SPEC):
    """All trajectories in a queue."""
    with contextlib.closing(Log(queue, make_schema(spec), remember=0)) as log:
        return join([decode(rows, spec) for rows in messages_in(log)])


def until(true, seconds=60.0):
    """Wait until something is true."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it never came true"
        time.sleep(0.01)


@contextlib.contextmanager
def serving(path, limits=None, tokens=(), tls=None, learner=None):
    """A server that collects, or trains with what `learner(relay)` returns; gives it and its address."""
    relay = Relay(path, SPEC, limits or Limits())
    if learner is not None:
        relay.learner = learner(relay)
        relay.learner.start()
    server = start(relay, "127.0.0.1:0", tokens, tls)
    try:
        yield relay, f"{'tls' if tls else 'grpc'}://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        relay.close()
