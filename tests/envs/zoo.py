"""Small PettingZoo and Gymnasium environments of our own, for tests. They need gymnasium alone."""

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


def mixed(size=3):
    return Mixed(size)
