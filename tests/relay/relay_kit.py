"""What the relay's tests share: a small team, episodes of it, and a server in this process."""

import contextlib

import numpy as np

from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.experience import Experience, blank, join
from flockrl.data.schema import encode
from flockrl.relay.front import start
from flockrl.relay.ingest import Limits
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


def ids_in(log):
    """Ids of all committed trajectories in a log, in order."""
    found, place = [], log.start
    while (entry := log.read(place)) is not None:
        rows, place = entry
        found += rows.column("trajectory").unique().to_pylist()
    return found


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
