"""The compiled particle worlds against the `mpe2` package, step by step.

Each case plays whole episodes in mpe2 with random actions and replays them here twice: in double precision
from the first state on, and in single precision from mpe2's state before every step.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

from flockrl.core.errors import UsageError
from flockrl.core.types import Discrete
from flockrl.envs.mpe import geometry
from flockrl.envs.mpe.collect_treasure import EMPTY, LIMIT, Loot
from flockrl.envs.mpe.core import ParticleEnv, World
from flockrl.envs.mpe.render import fit, frame
from flockrl.envs.mpe.simple_crypto import Secret
from flockrl.envs.registry import environments, make

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
STARTS = ("drawn", "crowded", "crowded", "heap", "far")


quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""These programs run a few hundred steps: most of their time would go into optimising them."""


class Play(NamedTuple):
    """One episode of mpe2. worlds: [T + 1]; obs: [T + 1, N, O] with zeros where an agent's own is shorter;
    action: [T]; reward, terminated, truncated: [T, N]."""

    worlds: list[World]
    obs: np.ndarray
    action: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def particles(name: str, **settings: Any) -> ParticleEnv:
    """Our environment."""
    env = make(f"mpe/{name}", **settings)
    assert isinstance(env, ParticleEnv)
    return env


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
        if start == "far":
            agent.state.p_pos = agent.state.p_pos * 2.6
        if start not in ("crowded", "heap"):
            continue
        near = landmarks[rng.integers(len(landmarks))].state.p_pos if start == "crowded" and landmarks else heap
        # Deposits keep some distance, so that not all is delivered as soon as it is found.
        agent.state.p_pos = near + rng.normal(0, 0.04 if getattr(agent, "collector", True) else 0.15, 2)
        agent.state.p_vel = rng.normal(0, 0.3, 2)
        if getattr(agent, "collector", False) and start == "crowded":
            # Some hands are full from the start, which makes deliveries likely.
            agent.holding = [None, None, None, *raw.world.treasure_types][rng.integers(3 + raw.world.num_deposits)]
    if start == "heap" and hasattr(landmarks[0] if landmarks else None, "respawn_prob"):
        for treasure in landmarks:
            treasure.state.p_pos = heap + rng.normal(0, 0.04, 2)
    if start == "solved":
        for agent, (pos, vel) in zip(agents, solution(raw), strict=True):
            agent.state.p_pos, agent.state.p_vel = pos, vel


def solution(raw: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions and velocities from which agents that do nothing succeed at the second step or soon after."""
    n, marks, name = len(raw.world.agents), raw.world.landmarks, raw.metadata["name"]
    if name.startswith("simple_tag"):
        ambush = [(np.array([0.0, 0.5 * i]), np.zeros(2)) for i in range(1, n - 1)]
        return [(np.array([0.33, 0.0]), np.array([-1.0, 0.0])), *ambush, (np.zeros(2), np.zeros(2))]
    if name.startswith("simple_line"):
        places = raw.scenario._expected_positions
    elif name.startswith("simple_formation"):
        angles = 0.4 + np.arange(n) * 2 * np.pi / n
        places = marks[0].state.p_pos + 0.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    else:
        places = [np.array([0.5 * i, -0.5 * i]) for i in range(n)]
        for mark, place in zip(marks, places, strict=True):
            mark.state.p_pos = place
    drift = np.array([0.3, 0.0])
    return [(place + drift, -6 * drift) for place in places]


def act(env: ParticleEnv, rng: np.random.Generator, idle: bool) -> np.ndarray:
    """[N] or [N, A] legal actions; binary fractions, so that mpe2's single precision loses nothing."""
    if not env.continuous:
        return np.array([0 if idle else rng.integers(space.size) for space in env.spec.actions])
    action = np.zeros((env.spec.num_agents, env.spec.action_size))
    for row, space in zip(action, env.spec.actions, strict=True):
        still = idle or rng.random() < 0.1  # and silent
        row[: space.size] = 0 if still else rng.integers(0, 257, space.size) / 256
    return action


def play(name: str, env: ParticleEnv, peer: Any, start: str, seed: int) -> Play:
    """Play one episode in mpe2."""
    rng, raw = np.random.default_rng(seed), peer.unwrapped
    peer.reset(seed=seed)
    arrange(raw, start, rng)
    names = raw.possible_agents
    worlds, actions = [copy(name, raw)], []
    obs, reward, terminated, truncated = [{a: raw.observe(a) for a in names}], [], [], []
    while peer.agents:
        actions.append(act(env, rng, idle=start == "solved"))
        row = dict(zip(names, actions[-1], strict=True))
        if env.continuous:
            row = {a: row[a][: peer.action_space(a).shape[0]] for a in names}
        for history, new in zip((obs, reward, terminated, truncated), peer.step(row)[:4], strict=True):
            history.append(new)
        worlds.append(copy(name, raw))
    padded = np.zeros((len(obs), len(names), env.spec.obs_size))
    for t, i in np.ndindex(padded.shape[:2]):
        padded[t, i, : len(obs[t][names[i]])] = obs[t][names[i]]
    values = [np.array([[step[a] for a in names] for step in x]) for x in (reward, terminated, truncated)]
    return Play(worlds, padded, actions, *values)


class Seen(NamedTuple):
    """What our environment shows for one step: the world it leads to, and what is seen and earned there."""

    world: World
    over: Any
    cut: Any
    obs: Any
    reward: Any


class Match:
    """Our environment, mpe2's, and the episodes played in mpe2."""

    def __init__(self, name: str, settings: dict[str, Any], continuous: bool):
        self.name = name
        env = particles(name, continuous_actions=continuous, **settings)
        self.env, self.peer = env, reference(name, continuous, **settings)
        starts = STARTS + ("solved",) * settings.get("terminate_on_success", False)
        self.plays = [play(name, env, self.peer, start, seed) for seed, start in enumerate(starts)]
        # In two halves, so that a state can be looked at without a step: `test_a_step_shows_where_it_leads`.
        self.move = quick(self._move)
        self.look = quick(lambda world: (env._observe(world).obs, env.scenario.reward(world)))

    def _move(self, world: World, action: Any) -> tuple[Any, ...]:
        key = jax.random.fold_in(jax.random.key(0), world.t)
        after, _, _, over, cut = self.env.step(key, world, action)
        return after, over, cut

    def replay(self, dtype: type, recopy: bool) -> None:
        """Step our environment through all episodes; compare everything with mpe2."""
        for episode in self.plays:
            world = cast(episode.worlds[0], dtype)
            np.testing.assert_allclose(self.look(world)[0], episode.obs[0], atol=1e-4)
            history = []
            for t, action in enumerate(episode.action):
                before = cast(episode.worlds[t], dtype) if recopy else world
                world, over, cut = self.move(before, action.astype(dtype) if self.env.continuous else action)
                if self.name == "collect_treasure":
                    world = self.adopt(before, world, episode.worlds[t + 1])
                history.append(jax.device_get(Seen(world, over, cut, *self.look(world))))
            assert history[0].obs.dtype == history[0].reward.dtype == history[0].world.pos.dtype == dtype
            self.compare(stack(history), episode)

    def compare(self, seen: Seen, episode: Play) -> None:
        close = partial(np.testing.assert_allclose, atol=1e-4)
        close(seen.obs, episode.obs[1:])
        close(seen.reward, episode.reward)
        for ours, theirs in zip(jax.tree.leaves(seen.world), jax.tree.leaves(stack(episode.worlds[1:])), strict=True):
            close(ours, theirs)
        assert (seen.over[:, None] == episode.terminated).all()
        assert (seen.cut[:, None] == episode.truncated).all()

    @property
    def steps(self) -> list[tuple[World, World]]:
        """All steps of mpe2, (before, after)."""
        return [pair for p in self.plays for pair in zip(p.worlds[:-1], p.worlds[1:], strict=True)]

    def adopt(self, before: World, world: World, wanted: World) -> World:
        """Take over the treasures that mpe2 drew at random, after a check of ours."""
        n, back = self.env.n, ~np.asarray(before.info.alive)
        pos, kind = np.array(world.pos), np.array(world.info.kind)
        assert (np.abs(pos[n:][back]) <= LIMIT).all()
        assert np.isin(kind[back], np.arange(self.env.scenario.d)).all()
        pos[n:][back], kind[back] = wanted.pos[n:][back], wanted.info.kind[back]
        return world._replace(pos=pos, info=world.info._replace(kind=kind))


def stack(rows: list[Any]) -> Any:
    """Trees of arrays with a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


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
    env = particles(name)
    return jax.device_get(quick(jax.vmap(env.scenario.reset))(jax.random.split(jax.random.key(1), 2000)))


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
    assert any(over) == getattr(match.env.scenario, "terminate_on_success", False)


@pytest.mark.parametrize("continuous", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("name", [f"simple_{s}" for s in ("spread", "push", "tag", "world_comm", "formation", "line")])
def test_episodes_contain_contact(name: str, continuous: bool) -> None:
    match = played(CASES.index((name, {}, continuous)))
    scenario, n = match.env.scenario, match.env.n
    solid = [(i, body.size) for i, body in enumerate((*scenario.agents, *scenario.landmarks)) if body.collide]
    pairs = [(i, j, a + b) for i, a in solid for j, b in solid if i < min(j, n)]
    hits = [np.linalg.norm(w.pos[i] - w.pos[j]) < reach for w, _ in match.steps for i, j, reach in pairs]
    assert sum(hits) >= 3


def test_hunts_contain_catches_food_forests_and_strays() -> None:
    match = played(CASES.index(("simple_world_comm", {}, DISCRETE)))
    pos = np.array([after.pos for _, after in match.steps])
    gap = np.linalg.norm(pos[:, :, None] - pos[:, None], axis=-1)
    hunters, prey, food, forests = slice(0, 4), slice(4, 6), slice(7, 9), slice(9, 11)
    inside = gap[:, :6, forests] < np.where(np.arange(6) < 4, 0.375, 0.345)[:, None]
    assert inside.any(axis=(0, 1)).all()  # each forest has guests
    assert (inside.sum(axis=1) > 1).any()
    assert (inside.any(axis=2).sum(axis=1) == 0).any()
    assert (gap[:, prey, food] < 0.075).sum() > 2
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
        delivered += round(after.info.earned / 5) - taken.sum()
        contested += (near.sum(axis=1)[taken] > 1).sum()
    assert min(found, back) > 5
    assert min(delivered, contested) > 1


@pytest.mark.parametrize("name", VERSIONS)
def test_resets_are_drawn_from_the_same_distribution(name: str) -> None:
    ours, raw = resets(name), reference(name).unwrapped
    raw.reset(seed=0)
    theirs = []
    for _ in range(300):
        raw.reset()
        theirs.append(copy(name, raw))
    peer = stack(theirs)
    assert not ours.vel.any()
    assert not ours.comm.any()
    assert not ours.t.any()
    for e, axis in np.ndindex(*ours.pos.shape[1:]):
        a, b = ours.pos[:, e, axis], peer.pos[:, e, axis]
        assert ks_2samp(a, b).pvalue > 1e-3
        for edge in (np.min, np.max):
            assert edge(a) == pytest.approx(edge(b), abs=0.08)
    across = np.corrcoef(ours.pos[:, :2].reshape(2000, -1).T)
    assert np.abs(across - np.eye(4))[np.triu_indices(4, 1)].max() < 0.1
    for a, b in zip(jax.tree.leaves(ours.info), jax.tree.leaves(peer.info), strict=True):
        assert a.shape[1:] == b.shape[1:]
        values = np.union1d(a, b)
        freq_a, freq_b = (np.array([(x == v).mean(axis=0) for v in values]) for x in (a, b))
        np.testing.assert_allclose(freq_a, freq_b, atol=0.12)
        np.testing.assert_allclose(freq_a, 1 / len(values), atol=0.05)


def test_lines_are_turned_into_the_square_in_small_steps() -> None:
    """How far past the edge of the forbidden angles the end of a line lies, in degrees: mostly a step at most."""
    raw = reference("simple_line").unwrapped
    raw.reset(seed=1)
    theirs = []
    for _ in range(1000):
        raw.reset()
        theirs.append([mark.state.p_pos for mark in raw.world.landmarks])

    def past_the_edge(ends: np.ndarray) -> np.ndarray:
        start, (x, y) = ends[:, 0], (ends[:, 1] - ends[:, 0]).T
        back = np.arctan2(y, x)[:, None] - np.radians(np.arange(0, 20, 0.1))
        spots = start[:, None] + 1.25 * np.stack([np.cos(back), np.sin(back)], axis=-1)
        return 0.1 * np.all(np.abs(spots) < 1, axis=-1).argmin(axis=1)

    ours, wanted = past_the_edge(resets("simple_line").pos[:, -2:]), past_the_edge(np.array(theirs))
    assert ks_2samp(ours, wanted).pvalue > 1e-3
    assert 0.5 < np.mean((wanted > 0) & (wanted <= 5)) < 1


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
        assert (reach <= wanted).all()
        assert (reach > 0.97 * wanted).all()


def test_treasures_come_back_anywhere_and_of_any_kind() -> None:
    env = particles("collect_treasure", num_deposits=3)
    world = first("collect_treasure")
    pos, alive = world.pos.copy(), np.zeros(6, bool)
    pos[8:] = -999.0
    pos = np.concatenate([pos[:8], [[0.0, 0.0]], pos[8:]])
    world = World(
        pos, np.zeros((9, 2), np.float32), np.zeros((9, 2), np.float32), world.info._replace(alive=alive), world.t
    )
    step = quick(jax.vmap(env.step, (0, None, None)))
    after, *_ = step(jax.random.split(jax.random.key(1), 1000), world, jnp.zeros(env.n, int))
    assert after.info.alive.all()
    assert not after.info.earned.any()
    spots, kinds = np.asarray(after.pos[:, env.n :]), np.asarray(after.info.kind)
    assert np.abs(spots).max() <= LIMIT
    assert np.abs(spots).max() > 0.99 * LIMIT
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
    + [
        (f"simple_{s}", "N", v, "at least 1")
        for s in ("spread", "adversary", "line", "formation")
        for v in (0, -1, 1.5)
    ]
    + [(f"simple_{s}", "local_ratio", v, "from 0 to 1") for s in ("spread", "reference") for v in (-0.1, 1.1)]
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
    assert f"mpe/{name}: {setting} must" in message
    assert bound in message
    assert repr(value) in message
    assert message.endswith(".")
    assert "\n" not in message


def test_opponents_are_on_different_sides() -> None:
    sides = {name: particles(name).spec.sides for name in VERSIONS}
    rivals = {
        "simple_adversary": ("adversary", "agent", "agent"),
        "simple_crypto": ("adversary", "agent", "agent"),
        "simple_push": ("adversary", "agent"),
        "simple_tag": ("adversary",) * 3 + ("agent",),
        "simple_world_comm": ("adversary",) * 4 + ("agent",) * 2,
    }
    assert {name: own for name, own in sides.items() if len(set(own)) > 1} == rivals


@pytest.mark.parametrize(("name", "continuous"), [(name, mode) for name in VERSIONS for mode in (DISCRETE, CONTINUOUS)])
def test_a_step_keeps_the_shape_of_the_state(name: str, continuous: bool) -> None:
    """So that steps can be scanned, and resets and steps exchanged."""
    env = particles(name, continuous_actions=continuous)
    key = jax.random.key(0)
    state, first = jax.eval_shape(env.reset, key)
    n, a = env.spec.num_agents, env.spec.action_size
    action = jnp.zeros((n, a)) if continuous else jnp.zeros(n, jnp.int32)
    after, second, reward, over, cut = jax.eval_shape(env.step, key, state, action)
    assert jax.tree.structure((state, first)) == jax.tree.structure((after, second))
    for x, y in zip(jax.tree.leaves((state, first)), jax.tree.leaves((after, second)), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert second.obs.shape == (n, env.spec.obs_size)
    assert second.obs.dtype == jnp.float32
    assert reward.shape == (n,)
    assert reward.dtype == jnp.float32
    assert over.shape == cut.shape == ()
    assert over.dtype == cut.dtype == bool


def test_a_step_shows_where_it_leads() -> None:
    for case in (("simple_spread", {}, DISCRETE), ("simple_tag", {}, CONTINUOUS), ("collect_treasure", {}, DISCRETE)):
        match = played(CASES.index(case))
        world, action = cast(match.plays[1].worlds[0], np.float32), match.plays[1].action[0].astype(np.float32)
        after, observation, reward, *_ = quick(match.env.step)(jax.random.key(0), world, action)
        for ours, wanted in zip((observation.obs, reward), match.look(after), strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-6)
        assert np.ptp(reward) > 0


@pytest.mark.parametrize("cycles", [1, 2])
def test_an_episode_that_succeeds_at_its_last_step_is_cut(cycles: int) -> None:
    env = particles("simple_spread", N=1, terminate_on_success=True, max_cycles=cycles)
    peer = reference("simple_spread", N=1, terminate_on_success=True, max_cycles=cycles)
    peer.reset(seed=0)
    peer.unwrapped.world.agents[0].state.p_pos = peer.unwrapped.world.landmarks[0].state.p_pos + 0.05
    world = cast(copy("simple_spread", peer.unwrapped), np.float32)
    *_, over, cut = quick(env.step)(jax.random.key(0), world, np.array([0]))
    _, _, terminated, truncated, _ = peer.step({"agent_0": 0})
    assert (bool(over), bool(cut)) == (terminated["agent_0"], truncated["agent_0"]) == (cycles == 2, cycles == 1)


def test_the_price_of_leaving_the_square() -> None:
    x = np.array([0.0, 0.9, 0.95, 0.999, 1.0, 1.0005, 1.5, 2.0, 2.2, 50.0])
    price = np.array([0.0, 0.0, 0.5, 0.99, 1.0, np.exp(0.001), np.e, np.exp(2.0), 10.0, 10.0])
    for sign in (-1, 1):
        spots = np.stack([sign * x, 0.95 * np.ones_like(x)], axis=1)
        np.testing.assert_allclose(quick(geometry.stray)(spots), price + 0.5, atol=1e-4)


def test_bodies_in_the_same_place_stay_finite() -> None:
    env, world = particles("simple_spread"), first("simple_spread")
    world = world._replace(pos=world.pos[[0, 0, 0, 3, 4, 5]])
    after, observation, reward, *_ = quick(env.step)(jax.random.key(1), world, jnp.zeros(3, int))
    assert all(np.isfinite(x).all() for x in (*jax.tree.leaves(after), observation.obs, reward))


@pytest.mark.parametrize("m", [1, 2, 7, 64, 65])
def test_ranking_is_a_stable_sort(m: int) -> None:
    rng = np.random.default_rng(m)
    keys = rng.integers(0, 5, (6, m)).astype(np.float32)
    table = rng.normal(size=(6, m, 3)).astype(np.float32)
    (ours,) = quick(geometry.by_rank)(keys, table)
    order = np.argsort(keys, axis=1, kind="stable")
    np.testing.assert_array_equal(ours, np.take_along_axis(table, order[..., None], axis=1))


@pytest.mark.parametrize("name", VERSIONS)
def test_frames_show_agents_where_they_are(name: str) -> None:
    env, world = particles(name), first(name)
    n, e = env.n, len(world.pos)
    angle = np.arange(e) * 2 * np.pi / e
    pos = 0.8 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    world = world._replace(pos=pos)
    image = frame(env.scenario, world, 200)
    assert image.shape == (200, 200, 3)
    assert image.dtype == np.uint8
    span, paint = fit(env.scenario, [world]), env.scenario.paint(world)
    assert paint.shape == (e, 4)
    assert paint.min() >= 0
    assert paint.max() <= 1
    for i in range(n):
        column = 100 + 100 * (pos[i, 0] - span.x) / span.half
        row = 100 - 100 * (pos[i, 1] - span.y) / span.half
        np.testing.assert_allclose(image[int(row), int(column)], 255 * paint[i, :3], atol=12)


def test_an_episode_has_one_camera_and_trails() -> None:
    env, world = particles("simple_spread", N=1), first("simple_spread")
    walk = [world._replace(pos=np.array([[0.1 * t, 0.0], [-0.5, -0.5]])) for t in range(20)]
    images = env.render(walk, size=150)
    assert len(images) == 20
    assert all(image.shape == (150, 150, 3) for image in images)
    alone = frame(env.scenario, walk[-1], 150, span=fit(env.scenario, walk))
    assert (images[-1] != alone).any()
    assert (images[0] != images[-1]).any()
    trace = (images[-1] != alone).any(axis=-1)
    assert trace.sum() > 50
    assert not trace[100:].any()
    assert env.render([]) == []


def test_words_and_lost_treasures_in_frames() -> None:
    env, world = particles("simple_speaker_listener"), first("simple_speaker_listener")
    said = [frame(env.scenario, world._replace(comm=np.eye(2, 3, k)), 200) for k in range(3)]
    silent = frame(env.scenario, world, 200)
    assert all((a != silent).any() for a in said)
    assert (said[0] != said[1]).any()
    assert (said[1] != said[2]).any()
    env, world = particles("collect_treasure"), first("collect_treasure")
    pos, alive = world.pos.copy(), world.info.alive.copy()
    pos[env.n], alive[0] = -999.0, False
    assert fit(env.scenario, [world._replace(pos=pos, info=world.info._replace(alive=alive))]).half < 1.2
