"""Small PettingZoo and Gymnasium environments of our own, for tests. They need gymnasium alone."""

from typing import ClassVar

import numpy as np
from gymnasium import spaces


class Mixed:
    """A parallel environment with everything that agents may differ in.

    scout_0 sees a dict, acts by number from 2 on and dies at step 3; scout_1 is absent at reset and appears at
    step 2; heavy sees a tuple and has a MultiDiscrete action. Masks come in the infos.
    """

    possible_agents = ("scout_0", "scout_1", "heavy")
    max_cycles = 6
    render_mode = None

    def __init__(self, size=2):
        self.size = size

    def observation_space(self, agent):
        if agent == "heavy":
            return spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2), spaces.Box(-1, 1, (2, 2))))
        return spaces.Dict({"b": spaces.MultiDiscrete([2, 3]), "a": spaces.Box(0, 9, (self.size,))})

    def action_space(self, agent):
        return spaces.MultiDiscrete([2, 3]) if agent == "heavy" else spaces.Discrete(4, start=2)

    def reset(self, seed=None, options=None):
        self.rng, self.t, self.log = np.random.default_rng(seed), 0, []
        self.agents = ["scout_0", "heavy"]
        return {a: self.observe(a) for a in self.agents}, {a: self.info(a) for a in self.agents}

    def observe(self, agent):
        if agent == "heavy":
            return (1 + self.t % 3, np.array([1, 0], np.int8), np.full((2, 2), self.rng.random(), np.float32))
        return {"a": np.full(self.size, self.t, np.float32), "b": np.array([self.t % 2, self.t % 3])}

    def info(self, agent):
        return {} if agent == "heavy" else {"action_mask": np.array([1, 0, 1, self.t % 2], np.int8)}

    def state(self):
        return np.array([self.t, len(self.agents)], np.float64)

    def step(self, actions):
        self.log.append(actions)
        assert set(actions) == set(self.agents), (actions, self.agents)
        self.t += 1
        present = list(self.agents)
        ended = {a: a == "scout_0" and self.t == 3 for a in present}
        cut = dict.fromkeys(present, self.t >= self.max_cycles)
        rewards = {a: float(self.t) for a in present}
        if self.t == 2:
            self.agents = [*self.agents, "scout_1"]
        self.agents = [a for a in self.agents if not ended.get(a) and not cut.get(a)]
        seen = sorted({*present, *self.agents})
        return {a: self.observe(a) for a in seen}, rewards, ended, cut, {a: self.info(a) for a in seen}

    def close(self):
        pass


class Listed:
    """A Gymnasium environment of two agents by lists, as lbforaging and rware have it."""

    observation_space = spaces.Tuple((spaces.Box(0, 1, (3,)), spaces.Box(0, 1, (3,))))
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))
    max_steps = 4

    def reset(self, seed=None, options=None):
        self.rng, self.t = np.random.default_rng(seed), 0
        return self.look(), {}

    def look(self):
        return tuple(self.rng.random(3, np.float32) for _ in range(2))

    def step(self, actions):
        self.t += 1
        return self.look(), [float(a) for a in actions], self.t == 4, False, {}

    def close(self):
        pass


class Pair:
    """A parallel environment of two agents with unlike kinds of actions: `picker` has one of three, `mover` two real
    numbers of unlike bounds. With `masked`, the picker must not take the same action twice in a row.

    All actions that arrive are kept in `Pair.log`, beside the mask that they answered.
    """

    possible_agents = ("picker", "mover")
    max_cycles = 5
    log: ClassVar[list] = []

    def __init__(self, masked=True):
        self.masked = masked

    def observation_space(self, agent):
        return spaces.Box(-9, 9, (3 if agent == "picker" else 2,))

    def action_space(self, agent):
        return spaces.Discrete(3) if agent == "picker" else spaces.Box(np.float32([-1, 0]), np.float32([2, 5]))

    def reset(self, seed=None, options=None):
        self.agents, self.t, self.last = list(self.possible_agents), 0, 0
        return self.look(), self.infos()

    def look(self):
        return {"picker": np.float32([self.t, self.last, 1]), "mover": np.float32([self.t, -self.last])}

    def infos(self):
        return {"picker": {"action_mask": self.legal().astype(np.int8)} if self.masked else {}, "mover": {}}

    def legal(self):
        return np.arange(3) != self.last

    def step(self, actions):
        Pair.log.append((actions, self.legal()))
        self.t, self.last = self.t + 1, actions["picker"]
        reward = float(actions["mover"].sum()) - abs(actions["picker"] - 1)
        over = self.t >= self.max_cycles
        infos, ends = self.infos(), dict.fromkeys(self.possible_agents, over)
        if over:
            self.agents = []
        return self.look(), dict.fromkeys(self.possible_agents, reward), dict.fromkeys(ends, False), ends, infos

    def close(self):
        pass


class Panel:
    """A Gymnasium environment with four switches of five positions each: 625 combinations.

    A switch that points at 4 cannot be left alone: mask says so, as `how` wants: one mask per switch ("parts"), all in
    a row ("row"), or none (""). All actions that arrive are kept in `Panel.log`.
    """

    observation_space = spaces.Box(0, 4, (4,))
    action_space = spaces.MultiDiscrete([5, 5, 5, 5])
    max_steps = 6
    log: ClassVar[list] = []

    def __init__(self, how="parts"):
        self.how = how

    def reset(self, seed=None, options=None):
        self.t, self.now = 0, np.random.default_rng(seed).integers(0, 5, 4)
        return self.now.astype(np.float32), self.info()

    def legal(self):
        return [(np.arange(5) != 4) | (now != 4) for now in self.now]

    def info(self):
        masks = {"parts": tuple(self.legal()), "row": np.concatenate(self.legal()), "": None}[self.how]
        return {} if masks is None else {"action_mask": masks}

    def step(self, action):
        Panel.log.append((action, self.legal()))
        self.t, self.now = self.t + 1, np.asarray(action)
        return self.now.astype(np.float32), float(-self.now.sum()), False, self.t >= self.max_steps, self.info()

    def close(self):
        pass


def mixed(size=3):
    return Mixed(size)
