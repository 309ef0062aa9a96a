"""The compiled particle worlds against the `mpe2` package, step by step.

Each case plays whole episodes in mpe2 with random actions and replays them here twice: in double precision
from the first state on, and in single precision from mpe2's state before every step.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

from flockrl.envs.base import environments, make
from flockrl.envs.mpe import geometry
from flockrl.envs.mpe.collect_treasure import EMPTY, LIMIT, Loot
from flockrl.envs.mpe.core import ParticleEnv, World
from flockrl.envs.mpe.render import fit, frame
from flockrl.envs.mpe.simple_crypto import Secret
from flockrl.errors import UsageError
from flockrl.types import Discrete

VERSIONS = {
    "simple": "v3",
    "simple_adversary": "v3",
    "simple_crypto": "v3",
    "simple_formation": "v1",
    "simple_line": "v1",
    "simple_push": "v3",
    "simple_reference": "v3",
    "simple_speaker_listener": "v4",
    "simple_spread": "v3",
    "simple_tag": "v3",
    "simple_world_comm": "v3",
    "collect_treasure": "v1",
}
DISCRETE, CONTINUOUS = False, True
OTHER_SIZES: list[tuple[str, dict[str, Any], bool]] = [
    ("simple", {"max_cycles": 7}, DISCRETE),
    ("simple_spread", {"N": 1, "num_agent_neighbors": 2}, DISCRETE),
    ("simple_spread", {"N": 6, "local_ratio": 0.2, "num_agent_neighbors": 3, "num_landmark_neighbors": 2}, CONTINUOUS),
    ("simple_spread", {"N": 2, "terminate_on_success": True}, CONTINUOUS),
    ("simple_adversary", {"N": 4, "num_agent_neighbors": 2, "num_landmark_neighbors": 3}, DISCRETE),
    ("simple_adversary", {"N": 1, "num_agent_neighbors": 3, "num_landmark_neighbors": 2}, CONTINUOUS),
    ("simple_reference", {"local_ratio": 0.9, "max_cycles": 10}, DISCRETE),
    ("simple_tag", {"num_good": 3, "num_adversaries": 2, "num_obstacles": 3}, CONTINUOUS),
    ("simple_tag", {"num_good": 2, "num_agent_neighbors": 2, "num_landmark_neighbors": 1}, DISCRETE),
    ("simple_tag", {"num_obstacles": 0, "num_landmark_neighbors": 2, "terminate_on_success": True}, DISCRETE),
    ("simple_world_comm", {"num_good": 1, "num_adversaries": 1, "num_obstacles": 0, "num_food": 1}, DISCRETE),
    ("simple_world_comm", {"num_good": 4, "num_adversaries": 2, "num_obstacles": 2, "num_forests": 1}, CONTINUOUS),
    ("simple_world_comm", {"num_forests": 0, "num_food": 3}, DISCRETE),
    ("simple_formation", {"N": 1}, DISCRETE),
    ("simple_formation", {"N": 7}, CONTINUOUS),
    ("simple_formation", {"terminate_on_success": True}, DISCRETE),
    ("simple_line", {"N": 1}, CONTINUOUS),
    ("simple_line", {"N": 7}, DISCRETE),
    ("simple_line", {"terminate_on_success": True}, CONTINUOUS),
    ("collect_treasure", {"num_collectors": 1, "num_deposits": 1, "num_treasures": 2}, DISCRETE),
    ("collect_treasure", {"num_collectors": 4, "num_deposits": 3, "num_treasures": 9}, CONTINUOUS),
]
CASES = [(name, {}, mode) for name in VERSIONS for mode in (DISCRETE, CONTINUOUS)] + OTHER_SIZES
STARTS = ("drawn", "crowded", "crowded", "crowded", "heap", "heap", "far")


class Play(NamedTuple):
    """One episode of mpe2. worlds: [T + 1]; obs: [T + 1][N]; action: [T]; reward: [T, N]; flags: [T, N]."""

    worlds: list[World]
    obs: list[list[np.ndarray]]
    action: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def reference(name: str, continuous: bool = False, **settings: Any) -> Any:
    """mpe2's own environment."""
    module = importlib.import_module(f"mpe2.{name}_{VERSIONS[name]}")
    return module.parallel_env(continuous_actions=continuous, **settings)


def copy(name: str, raw: Any) -> World:
    """The state of an mpe2 environment as ours."""
    agents, bodies = raw.world.agents, raw.world.entities
    pos = np.array([body.state.p_pos for body in bodies], float)
    vel = np.array([agent.state.p_vel for agent in agents], float)
    comm = np.array([agent.state.c for agent in agents], float).reshape(len(agents), raw.world.dim_c)
    return World(pos, vel, comm, _info(name, raw.world, raw.scenario), np.int32(raw.steps))


def _info(name: str, world: Any, scenario: Any) -> Any:
    def which(landmark: Any) -> np.int32:
        return np.int32([mark is landmark for mark in world.landmarks].index(True))

    if name in ("simple_adversary", "simple_push"):
        return which(world.agents[0].goal_a)
    if name == "simple_crypto":
        return Secret(which(world.agents[0].goal_a), np.int32(np.argmax(world.agents[2].key)))
    if name == "simple_reference":
        return np.array([which(agent.goal_b) for agent in world.agents])
    if name == "simple_speaker_listener":
        return which(world.agents[0].goal_b)
    if name == "collect_treasure":
        holding = [EMPTY if agent.holding is None else agent.holding for agent in world.agents if agent.collector]
        earned = (scenario._cached_global_collecting or 0.0) + (scenario._cached_global_deposit or 0.0)
        kind, alive = [mark.type for mark in world.landmarks], [mark.alive for mark in world.landmarks]
        return Loot(np.array(holding, np.int32), np.array(kind, np.int32), np.array(alive), np.float64(earned))
    return ()


def arrange(raw: Any, start: str, rng: np.random.Generator) -> None:
    """Move the bodies of a fresh mpe2 world to where something happens."""
    agents, landmarks = raw.world.agents, raw.world.landmarks
    heap = rng.uniform(-0.5, 0.5, 2)
    for agent in agents:
        if start == "crowded" and landmarks:
            agent.state.p_pos = landmarks[rng.integers(len(landmarks))].state.p_pos + rng.normal(0, 0.06, 2)
        elif start in ("crowded", "heap"):
            agent.state.p_pos = heap + rng.normal(0, 0.03, 2)
        elif start == "far":
            agent.state.p_pos = agent.state.p_pos * 2.6
        # Hands that are full from the start make deliveries likely.
        if start != "drawn" and getattr(agent, "collector", False):
            agent.holding = [None, *raw.world.treasure_types][rng.integers(raw.world.num_deposits + 1)]
    if start == "solved":
        places, drift = solution(raw), np.array([0.3, 0.0])
        for agent, place in zip(agents, places, strict=True):
            agent.state.p_pos, agent.state.p_vel = place + drift, -6 * drift


def solution(raw: Any) -> np.ndarray:
    """[N, 2] where the agents of a cooperative scenario should stand; spreads landmarks out on the way."""
    n, marks = len(raw.world.agents), raw.world.landmarks
    name = raw.metadata["name"]
    if name.startswith("simple_line"):
        return np.array(raw.scenario._expected_positions)
    if name.startswith("simple_formation"):
        angles = 0.4 + np.arange(n) * 2 * np.pi / n
        return marks[0].state.p_pos + 0.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert name.startswith("simple_spread")
    for i, mark in enumerate(marks):
        mark.state.p_pos = np.array([0.5 * i, -0.5 * i])
    return np.array([mark.state.p_pos for mark in marks])


def act(env: ParticleEnv, rng: np.random.Generator, idle: bool) -> np.ndarray:
    """[N] or [N, A] legal actions; binary fractions, so that mpe2's single precision loses nothing."""
    if not env.continuous:
        return np.array([0 if idle else rng.integers(space.size) for space in env.spec.actions])
    action = np.zeros((env.spec.num_agents, env.spec.action_size))
    for row, space in zip(action, env.spec.actions, strict=True):
        row[: space.size] = 0 if idle else rng.integers(0, 257, space.size) / 256
    return action


def play(name: str, env: ParticleEnv, peer: Any, start: str, seed: int) -> Play:
    """Play one episode in mpe2."""
    rng, raw = np.random.default_rng(seed), peer.unwrapped
    peer.reset(seed=seed)
    arrange(raw, start, rng)
    names = raw.possible_agents
    worlds, obs, actions, rewards, ended, cut = [copy(name, raw)], [[raw.observe(a) for a in names]], [], [], [], []
    while peer.agents:
        action = act(env, rng, idle=start == "solved")
        given = {a: row[: s.size] if env.continuous else row for a, row, s in zip(names, action, env.spec.actions)}
        seen, reward, terminated, truncated, _ = peer.step(given)
        worlds.append(copy(name, raw))
        obs.append([seen[a] for a in names])
        actions.append(action)
        rewards.append([reward[a] for a in names])
        ended.append([terminated[a] for a in names])
        cut.append([truncated[a] for a in names])
    return Play(worlds, obs, actions, np.array(rewards), np.array(ended), np.array(cut))


class Seen(NamedTuple):
    """What one call of our environment shows: the given world, and the step that follows it."""

    obs: Any
    reward: Any
    world: World
    next_obs: Any
    next_reward: Any
    over: Any
    cut: Any


class Match:
    """Our environment, mpe2's, and the episodes played in mpe2."""

    def __init__(self, name: str, settings: dict[str, Any], continuous: bool):
        self.name = name
        env = make(f"mpe/{name}", continuous_actions=continuous, **settings)
        assert isinstance(env, ParticleEnv)
        self.env, self.peer = env, reference(name, continuous, **settings)
        starts = STARTS + ("solved",) * (settings.get("terminate_on_success", False) and name != "simple_tag")
        self.plays = [play(name, env, self.peer, start, seed) for seed, start in enumerate(starts)]
        self.run = jax.jit(self._run)

    def _run(self, world: World, action: Any) -> Seen:
        key = jax.random.fold_in(jax.random.key(0), world.t)
        after, observation, reward, over, cut = self.env.step(key, world, action)
        now = self.env._observe(world).obs
        return Seen(now, self.env.scenario.reward(world), after, observation.obs, reward, over, cut)

    def replay(self, dtype: type, recopy: bool) -> None:
        """Step our environment through all episodes; compare everything with mpe2."""
        for episode in self.plays:
            world = cast(episode.worlds[0], dtype)
            for t, action in enumerate(episode.action):
                before = cast(episode.worlds[t], dtype) if recopy else world
                given = action.astype(dtype) if self.env.continuous else action
                seen = self.run(before, given)
                assert seen.next_obs.dtype == seen.next_reward.dtype == seen.world.pos.dtype == dtype
                self.compare_obs(seen.obs, episode.obs[t])
                world, obs, reward = seen.world, seen.next_obs, seen.next_reward
                if self.name == "collect_treasure":
                    world = self.adopt(before, world, episode.worlds[t + 1])
                    obs, reward = self.run(world, given)[:2]
                self.compare_world(world, episode.worlds[t + 1])
                self.compare_obs(obs, episode.obs[t + 1])
                np.testing.assert_allclose(reward, episode.reward[t], atol=1e-4, err_msg=f"reward at {t}")
                assert (episode.terminated[t] == bool(seen.over)).all()
                assert (episode.truncated[t] == bool(seen.cut)).all()

    @property
    def steps(self) -> list[tuple[World, World]]:
        """All steps of mpe2, (before, after)."""
        return [pair for p in self.plays for pair in zip(p.worlds[:-1], p.worlds[1:], strict=True)]

    def compare_obs(self, rows: Any, wanted: list[np.ndarray]) -> None:
        """Each agent's own part; what is left of a padded row is 0."""
        for row, want in zip(np.asarray(rows), wanted, strict=True):
            np.testing.assert_allclose(row[: len(want)], want, atol=1e-4)
            assert not row[len(want) :].any()

    def compare_world(self, world: World, wanted: World) -> None:
        for ours, theirs in zip(jax.tree.leaves(world), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)

    def adopt(self, before: World, world: World, wanted: World) -> World:
        """Take over the treasures that mpe2 drew at random, after a check of ours."""
        n, back = self.env.n, ~np.asarray(before.info.alive)
        pos, kind = np.array(world.pos), np.array(world.info.kind)
        assert (np.abs(pos[n:][back]) <= LIMIT).all()
        assert np.isin(kind[back], np.arange(self.env.scenario.d)).all()
        pos[n:][back], kind[back] = wanted.pos[n:][back], wanted.info.kind[back]
        return world._replace(pos=pos, info=world.info._replace(kind=kind))


def cast(world: World, dtype: type) -> World:
    return jax.tree.map(lambda x: x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x, world)


@contextmanager
def double_precision() -> Iterator[None]:
    """JAX caches NumPy constants in the precision it first met them in, so its caches go with the mode."""
    jax.clear_caches()
    with jax.enable_x64(True):
        yield
    jax.clear_caches()


def case_id(case: tuple[str, dict[str, Any], bool]) -> str:
    name, settings, continuous = case
    words = [f"{key}={value}" for key, value in settings.items()]
    return "-".join([name, *words, "continuous" if continuous else "discrete"])


@cache
def played(case: int) -> Match:
    return Match(*CASES[case])


@pytest.fixture(scope="module", params=range(len(CASES)), ids=lambda case: case_id(CASES[case]))
def match(request: pytest.FixtureRequest) -> Match:
    return played(request.param)


@cache
def resets(name: str) -> World:
    """Our starting states of a scenario with its default settings, [2000, ...]."""
    env = make(f"mpe/{name}")
    return jax.device_get(jax.jit(jax.vmap(env.scenario.reset))(jax.random.split(jax.random.key(1), 2000)))


def first(name: str) -> World:
    return jax.tree.map(lambda x: x[0], resets(name))


def test_spaces_agree(match: Match) -> None:
    spec, peer = match.env.spec, match.peer
    assert spec.agents == tuple(peer.possible_agents)
    assert spec.max_steps == peer.unwrapped.max_cycles
    for agent, observation, action in zip(spec.agents, spec.observations, spec.actions, strict=True):
        assert observation.shape == peer.observation_space(agent).shape
        theirs = peer.action_space(agent)
        if isinstance(action, Discrete):
            assert action.n == theirs.n
        else:
            assert (action.shape, action.low, action.high) == (theirs.shape, theirs.low.min(), theirs.high.max())


def test_free_running_episodes_agree_in_double_precision(match: Match) -> None:
    with double_precision():
        match.replay(np.float64, recopy=False)


def test_every_step_agrees_in_single_precision(match: Match) -> None:
    match.replay(np.float32, recopy=True)


def test_episodes_end_as_they_should(match: Match) -> None:
    lengths = [len(episode.action) for episode in match.plays]
    assert max(lengths) == match.env.max_cycles
    cut = [episode.truncated[-1].all() for episode in match.plays]
    over = [episode.terminated[-1].all() for episode in match.plays]
    assert all(a != b for a, b in zip(cut, over, strict=True))
    # Success comes at once in some episodes and later in others, where it ends episodes at all.
    early = {length for length, o in zip(lengths, over, strict=True) if o}
    assert any(over) == getattr(match.env.scenario, "terminate_on_success", False)
    assert not early or max(early) > 1


def test_bodies_touch(match: Match) -> None:
    """Where bodies can push each other, the episodes above contain it."""
    env = match.env
    solid = [(i, body.size) for i, body in enumerate((*env.scenario.agents, *env.scenario.landmarks)) if body.collide]
    pairs = [(i, j, a + b) for i, a in solid for j, b in solid if i < min(j, env.n)]
    worlds = [world for episode in match.plays for world in episode.worlds[:-1]]
    hits = [np.linalg.norm(world.pos[i] - world.pos[j]) < reach for world in worlds for i, j, reach in pairs]
    assert sum(hits) >= (4 if pairs else 0)
    assert bool(pairs) == (bool(env.colliding_agents) and len(env.colliders) > 1)


def test_hunts_contain_catches_food_forests_and_strays() -> None:
    match = played(CASES.index(("simple_world_comm", {}, DISCRETE)))
    pos = np.array([after.pos for _, after in match.steps])
    gap = np.linalg.norm(pos[:, :, None] - pos[:, None], axis=-1)
    hunters, prey, food, forests = slice(0, 4), slice(4, 6), slice(7, 9), slice(9, 11)
    inside = gap[:, :6, forests] < np.where(np.arange(6) < 4, 0.375, 0.345)[:, None]
    assert inside.any(axis=(0, 1)).all()  # each forest has guests
    assert (inside.sum(axis=1) > 1).any() and (inside.any(axis=2).sum(axis=1) == 0).any()  # company, and nobody
    assert (gap[:, prey, food] < 0.075).sum() > 5
    assert (gap[:, hunters, prey] < 0.12).sum() > 5
    assert {int(after.comm[0].argmax()) for _, after in match.steps} == {0, 1, 2, 3}
    out = np.abs(pos[:, prey])
    for low, high in ((0.0, 0.9), (0.9, 1.0), (1.0, 2.0), (2.2, np.inf)):
        assert ((low < out) & (out < high)).any()
    tag = played(CASES.index(("simple_tag", {}, DISCRETE)))
    assert sum(np.linalg.norm(after.pos[:3] - after.pos[3], axis=1).min() < 0.125 for _, after in tag.steps) > 5


def test_treasures_are_found_fought_over_delivered_and_come_back() -> None:
    match = played(CASES.index(("collect_treasure", {}, DISCRETE)))
    found = delivered = back = contested = 0
    for before, after in match.steps:
        taken = before.info.alive & ~after.info.alive
        near = np.linalg.norm(before.pos[8:, None] - after.pos[None, :6], axis=-1) < 0.075
        found += taken.sum()
        back += (~before.info.alive & after.info.alive).sum()
        delivered += ((before.info.holding >= 0) & (after.info.holding == EMPTY)).sum()
        contested += (near.sum(axis=1)[taken] > 1).sum()
    assert min(found, delivered, back, contested) > 3


@pytest.mark.parametrize("name", VERSIONS)
def test_resets_are_drawn_from_the_same_distribution(name: str) -> None:
    ours, raw = resets(name), reference(name).unwrapped
    raw.reset(seed=0)
    theirs = []
    for _ in range(300):
        raw.reset()
        theirs.append(copy(name, raw))
    peer = jax.tree.map(lambda *rows: np.stack(rows), *theirs)
    assert not ours.vel.any() and not ours.comm.any() and not ours.t.any()
    for e, axis in np.ndindex(*ours.pos.shape[1:]):
        a, b = ours.pos[:, e, axis], peer.pos[:, e, axis]
        assert ks_2samp(a, b).pvalue > 1e-3
        for edge in (np.min, np.max):
            assert edge(a) == pytest.approx(edge(b), abs=0.08)
    across = np.corrcoef(ours.pos[:, :2].reshape(2000, -1).T)
    assert np.abs(across - np.eye(4))[np.triu_indices(4, 1)].max() < (0.1 if name != "simple_line" else 1)
    for a, b in zip(jax.tree.leaves(ours.info), jax.tree.leaves(peer.info), strict=True):
        assert a.shape[1:] == b.shape[1:]
        values = np.union1d(a, b)
        freq_a, freq_b = (np.array([(x == v).mean(axis=0) for v in values]) for x in (a, b))
        np.testing.assert_allclose(freq_a, freq_b, atol=0.12)
        np.testing.assert_allclose(freq_a, 1 / len(values), atol=0.05)


def test_bounds_of_resets() -> None:
    """Landmarks keep to their ranges; the ends of a line lie in the square, at their distance."""
    ranges = {"simple_tag": 0.9, "simple_world_comm": 0.9, "collect_treasure": 0.95, "simple_formation": 0.5}
    for name in environments("mpe"):
        world = resets(name)
        reach, n = np.abs(world.pos).max(axis=(0, 2)), world.vel.shape[1]
        wanted = np.array([1.0] * n + [ranges.get(name, 1.0)] * (len(reach) - n))
        if name == "simple_line":
            wanted[n] = 0.25
            length = np.linalg.norm(world.pos[:, n] - world.pos[:, n + 1], axis=-1)
            np.testing.assert_allclose(length, 1.25, atol=1e-5)
        assert (reach <= wanted).all() and (reach > 0.97 * wanted).all()


def test_treasures_come_back_anywhere_and_of_any_kind() -> None:
    env = make("mpe/collect_treasure", num_deposits=3)
    world = first("collect_treasure")
    pos, alive = world.pos.copy(), np.zeros(6, bool)
    pos[8:] = -999.0
    pos = np.concatenate([pos[:8], [[0.0, 0.0]], pos[8:]])
    world = World(pos, np.zeros((9, 2), np.float32), np.zeros((9, 2), np.float32), world.info._replace(alive=alive), world.t)
    step = jax.jit(jax.vmap(env.step, (0, None, None)))
    after, *_ = step(jax.random.split(jax.random.key(1), 1000), world, jnp.zeros(env.n, int))
    assert after.info.alive.all() and not after.info.earned.any()
    spots, kinds = np.asarray(after.pos[:, env.n :]), np.asarray(after.info.kind)
    assert np.abs(spots).max() <= LIMIT and np.abs(spots).max() > 0.99 * LIMIT
    np.testing.assert_allclose(spots.mean(axis=0), 0, atol=0.08)
    np.testing.assert_allclose(spots.std(axis=0), LIMIT / np.sqrt(3), rtol=0.06)
    np.testing.assert_allclose([(kinds == k).mean(axis=0) for k in range(3)], 1 / 3, atol=0.06)


@pytest.mark.parametrize("name", VERSIONS)
def test_settings_are_those_of_mpe2(name: str) -> None:
    left_out = {"render_mode", "dynamic_rescaling", "benchmark_data", "curriculum"}
    theirs = inspect.signature(type(reference(name).unwrapped).__init__).parameters
    ours = inspect.signature(environments("mpe")[name]).parameters
    wanted = {k: p.default for k, p in theirs.items() if k not in left_out | {"self"}}
    assert {k: p.default for k, p in ours.items()} == wanted


@pytest.mark.parametrize(
    ("name", "setting", "value", "bound"),
    [(name, "max_cycles", 0, "at least 1") for name in VERSIONS]
    + [(f"simple_{s}", "N", v, "at least 1") for s in ("spread", "adversary", "line", "formation") for v in (0, -1, 1.5)]
    + [(f"simple_{s}", "local_ratio", v, "between 0 and 1") for s in ("spread", "reference") for v in (-0.1, 1.1)]
    + [
        (f"simple_{s}", f"num_{k}_neighbors", v, "at least 1")
        for s in ("spread", "adversary", "tag")
        for k in ("agent", "landmark")
        for v in (0, 2.5, True, "all")
    ]
    + [(f"simple_{s}", f"num_{k}", 0, "at least 1") for s in ("tag", "world_comm") for k in ("good", "adversaries")]
    + [(f"simple_{s}", "num_obstacles", -1, "at least 0") for s in ("tag", "world_comm")]
    + [("simple_world_comm", "num_food", 0, "at least 1"), ("simple_world_comm", "num_forests", -1, "at least 0")]
    + [("collect_treasure", f"num_{k}", 0, "at least 1") for k in ("collectors", "deposits", "treasures")]
    + [("collect_treasure", "num_deposits", 7, "at most 6")],
)
def test_impossible_settings_are_refused(name: str, setting: str, value: Any, bound: str) -> None:
    with pytest.raises(UsageError) as caught:
        environments("mpe")[name](**{setting: value})
    message = str(caught.value)
    assert f"mpe/{name}: {setting} must" in message and bound in message and repr(value) in message
    assert message.endswith(".") and "\n" not in message


def test_opponents_are_in_different_teams() -> None:
    teams = {name: make(f"mpe/{name}").spec.teams for name in VERSIONS}
    rivals = {
        "simple_adversary": (0, 1, 1),
        "simple_crypto": (0, 1, 1),
        "simple_push": (0, 1),
        "simple_tag": (0, 0, 0, 1),
        "simple_world_comm": (0, 0, 0, 0, 1, 1),
    }
    assert {name: team for name, team in teams.items() if any(team)} == rivals


@pytest.mark.parametrize(("name", "continuous"), [(name, mode) for name in VERSIONS for mode in (DISCRETE, CONTINUOUS)])
def test_a_step_keeps_the_shape_of_the_state(name: str, continuous: bool) -> None:
    """So that steps can be scanned, and resets and steps exchanged."""
    env = make(f"mpe/{name}", continuous_actions=continuous)
    key = jax.random.key(0)
    state, first = jax.eval_shape(env.reset, key)
    n, a = env.spec.num_agents, env.spec.action_size
    action = jnp.zeros((n, a)) if continuous else jnp.zeros(n, jnp.int32)
    after, second, reward, over, cut = jax.eval_shape(env.step, key, state, action)
    assert jax.tree.structure((state, first)) == jax.tree.structure((after, second))
    for x, y in zip(jax.tree.leaves((state, first)), jax.tree.leaves((after, second)), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert second.obs.shape == (n, env.spec.obs_size) and second.obs.dtype == jnp.float32
    assert reward.shape == (n,) and reward.dtype == jnp.float32
    assert over.shape == cut.shape == () and over.dtype == cut.dtype == bool


def test_bodies_in_the_same_place_stay_finite() -> None:
    env, world = make("mpe/simple_spread"), first("simple_spread")
    world = world._replace(pos=world.pos[[0, 0, 0, 3, 4, 5]])
    after, observation, reward, *_ = jax.jit(env.step)(jax.random.key(1), world, jnp.zeros(3, int))
    assert all(np.isfinite(x).all() for x in (*jax.tree.leaves(after), observation.obs, reward))


@pytest.mark.parametrize("m", [1, 2, 7, 64, 65])
def test_ranking_is_a_stable_sort(m: int) -> None:
    rng = np.random.default_rng(m)
    keys = rng.integers(0, 5, (6, m)).astype(np.float32)
    table = rng.normal(size=(6, m, 3)).astype(np.float32)
    (ours,) = geometry.by_rank(jnp.asarray(keys), jnp.asarray(table))
    order = np.argsort(keys, axis=1, kind="stable")
    np.testing.assert_array_equal(ours, np.take_along_axis(table, order[..., None], axis=1))


@pytest.mark.parametrize("name", VERSIONS)
def test_frames_show_agents_where_they_are(name: str) -> None:
    env, world = make(f"mpe/{name}"), first(name)
    n, e = env.n, len(world.pos)
    angle = np.arange(e) * 2 * np.pi / e
    pos = 0.8 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    world = world._replace(pos=pos)
    image = frame(env.scenario, world, 200)
    assert image.shape == (200, 200, 3) and image.dtype == np.uint8
    span, paint = fit(env.scenario, [world]), env.scenario.paint(world)
    assert paint.shape == (e, 4) and paint.min() >= 0 and paint.max() <= 1
    for i in range(n):
        column = 100 + 100 * (pos[i, 0] - span.x) / span.half
        row = 100 - 100 * (pos[i, 1] - span.y) / span.half
        np.testing.assert_allclose(image[int(row), int(column)], 255 * paint[i, :3], atol=12)


def test_an_episode_has_one_camera_and_trails() -> None:
    env, world = make("mpe/simple_spread", N=1), first("simple_spread")
    walk = [world._replace(pos=np.array([[0.1 * t, 0.0], [-0.5, -0.5]])) for t in range(20)]
    images = env.render(walk, size=150)
    assert len(images) == 20 and all(image.shape == (150, 150, 3) for image in images)
    alone = frame(env.scenario, walk[-1], 150, span=fit(env.scenario, walk))
    assert (images[-1] != alone).any() and (images[0] != images[-1]).any()
    trace = (images[-1] != alone).any(axis=-1)
    assert trace.sum() > 50 and not trace[100:].any()  # a line along the way, nothing below it
    assert env.render([]) == []


def test_words_and_lost_treasures_in_frames() -> None:
    env, world = make("mpe/simple_speaker_listener"), first("simple_speaker_listener")
    said = [frame(env.scenario, world._replace(comm=np.eye(2, 3, k)), 200) for k in range(3)]
    silent = frame(env.scenario, world, 200)
    assert all((a != silent).any() for a in said) and (said[0] != said[1]).any() and (said[1] != said[2]).any()
    env, world = make("mpe/collect_treasure"), first("collect_treasure")
    pos, alive = world.pos.copy(), world.info.alive.copy()
    pos[env.n], alive[0] = -999.0, False
    assert fit(env.scenario, [world._replace(pos=pos, info=world.info._replace(alive=alive))]).half < 1.2
