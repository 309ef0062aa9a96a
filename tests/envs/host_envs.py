"""Host environments for tests: a compiled one in disguise, and a small one with all kinds of trouble."""

import contextlib
import os
import signal
import time

import jax
import numpy as np

from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs.host.env import Host, HostEnv
from flockrl.envs.registry import make


class Disguised(HostEnv):
    """A compiled environment, stepped one team at a time with the keys it is given."""

    def __init__(self, name):
        self.env = make(name)
        self.spec = self.env.spec
        self._reset, self._step = jax.jit(self.env.reset), jax.jit(self.env.step)
        _, seen = jax.eval_shape(self.env.reset, jax.random.key(0))
        self.masked, self.mortal = seen.avail is not None, seen.alive is not None
        if hasattr(self.env, "distances"):
            self.distances = lambda: np.asarray(self.env.distances(self.state))

    def key(self, seed):
        return jax.random.wrap_key_data(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32))

    def reset(self, seed):
        self.state, seen = self._reset(self.key(seed))
        return jax.tree.map(np.asarray, seen)

    def step(self, action, seed):
        self.state, *rest = self._step(self.key(seed), self.state, action)
        return jax.tree.map(np.asarray, tuple(rest))


def disguised(name):
    return Host(lambda draw: Disguised(name))


class Counter(HostEnv):
    """Two agents see how long the episode is and a number that is its seed's; episodes have unlike lengths.

    `trouble(self)` is called in every step.
    """

    spec = EnvSpec("counter", ("a_0", "a_1"), (Box((3,)),) * 2, (Discrete(3),) * 2, max_steps=12)
    mortal = True

    def __init__(self, trouble=None):
        self.trouble, self.steps = trouble, 0

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)
        self.t, self.total = 0, 0
        self.end = int(self.rng.integers(3, 12))
        return self.look()

    def look(self):
        alive = np.array([True, self.t < self.end - 1])
        row = np.array([self.t, self.total, self.rng.random()], np.float32)
        return Observation(np.stack([row, row]), alive=alive)

    def step(self, action, seed):
        if self.trouble is not None:
            self.trouble(self)
        self.t, self.steps = self.t + 1, self.steps + 1
        self.total += int(action[0])
        ended = np.array([self.t >= self.end, self.t >= self.end - 1])
        return self.look(), np.array([1.0, action[1]], np.float32), ended, np.zeros(2, bool)


class Fragile:
    """Builds a Counter, in worker processes that are killed `times` times while they start."""

    def __init__(self, path, times):
        self.path, self.times = path, times

    def __call__(self, draw):
        return Counter()

    def __reduce__(self):
        return revive, (self.path, self.times)


def revive(path, times):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b"x")
    if os.lseek(file, 0, os.SEEK_CUR) <= times:  # the place of one's own mark, whoever writes at the same moment
        die()
    os.close(file)
    return Fragile(path, times)


def raises_at_five(env):
    if env.t == 5:
        raise ValueError("five is too many")


def once(path, what):
    """Trouble that happens a single time in all processes, at step 4 of some episode."""

    def trouble(env):
        if env.t == 4 and not os.path.exists(path):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                what()

    return trouble


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(1000)


def complain():
    raise ValueError("just this once")
