"""The conformance kit: what is sound passes, and every kind of breach is named in one plain sentence."""

import functools
import random
import runpy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, MultiDiscrete, Observation
from flockrl.envs import check, make
from flockrl.envs.checks.compiled import problems
from flockrl.envs.games.matrix import MatrixGame
from flockrl.envs.registry import SUITES, environments

LENGTH = 4


class State(NamedTuple):
    t: jax.Array
    noise: jax.Array


def chance(key):
    """A number in 0..1 from a key, cheaper to compile than `jax.random.uniform`."""
    return (jax.random.key_data(key).sum() % 97).astype(jnp.float32) / 97


class Sound:
    """Two unlike agents, with every optional field. The second one dies after 2 of 4 steps."""

    def __init__(self):
        self.spec = EnvSpec(
            name="sound",
            agents=("walker", "sitter"),
            observations=(Box((3,), -1.0, 1.0), Box((2,), -1.0, (1.0, 0.5))),
            actions=(Discrete(3), Discrete(2)),
            max_steps=LENGTH,
            state_size=2,
        )

    def obs(self, state):
        return jnp.zeros((2, 3)).at[0, 0].set(state.noise).at[1, 1].set(state.t / LENGTH / 2)

    def avail(self, state):
        return jnp.array([[True, True, True], [True, False, False]])

    def alive(self, state):
        return jnp.stack([jnp.bool_(True), state.t < 2])

    def globe(self, state):
        return jnp.stack([state.noise, state.noise])

    def observe(self, state):
        return Observation(self.obs(state), self.avail(state), self.globe(state), self.alive(state))

    def reset(self, key):
        state = State(jnp.int32(0), chance(key))
        return state, self.observe(state)

    def advance(self, key, state, action):
        return State(state.t + 1, chance(key))

    def reward(self, state, action):
        return action.astype(jnp.float32)

    def terminated(self, state):
        return jnp.stack([state.t >= LENGTH, state.t == 2])

    def truncated(self, state):
        return jnp.bool_(False)

    def step(self, key, state, action):
        state = self.advance(key, state, action)
        flags = self.terminated(state), self.truncated(state)
        return state, self.observe(state), self.reward(state, action), *flags


class Plain(Sound):
    """Sound without the optional fields."""

    def __init__(self):
        super().__init__()
        self.spec = replace(self.spec, state_size=0)

    def observe(self, state):
        return Observation(self.obs(state))

    def terminated(self, state):
        return state.t >= LENGTH


def broken(base=Sound, spec=None, **methods):
    """An environment with some methods replaced, and fields of its spec."""
    env = type("Broken", (base,), methods)()
    if spec:
        env.spec = replace(env.spec, **spec)
    return env


def when(t, new, old):
    """`new` once step t is reached, `old` before."""
    return lambda self, state: jnp.where(state.t >= t, jnp.asarray(new), jnp.asarray(old(self, state)))


def expect(env, *words):
    """The first sentence has all the words, is one sentence, and begins with the environment's name."""
    with pytest.raises(UsageError) as caught:
        check(env)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert text.endswith(".")
    assert "\n" not in text
    assert text.startswith(f"{env.spec.name}: " if isinstance(getattr(env, "spec", None), EnvSpec) else "")


# --- what is sound passes


@pytest.mark.parametrize("env", [Sound(), Plain()], ids=["all fields", "no fields"])
def test_sound_environments_pass(env):
    check(env)
    assert problems(env) == []


CASES = ("traffic", "market", "fleet", "swarm", "grid", "tasks")
"""Suites of larger environments, which take longer to compile."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{s}/{n}", marks=[pytest.mark.slow] if s in CASES else [])
        for s in SUITES
        for n in environments(s)
        if n != "file"
    ],
)
def test_built_in_environments_pass(name):
    check(make(name))


@pytest.mark.parametrize(
    "name",
    ["mpe/simple_spread:continuous_actions=true", "probe/action:continuous=true", "games/penalty:history=true"],
)
def test_variants_pass(name):
    check(make(name))


def test_games_of_any_shape_pass():
    check(MatrixGame(np.arange(2 * 3 * 4).reshape(2, 3, 4), rounds=2, history=True))


def test_the_example_passes():
    path = Path(__file__).parents[2] / "examples" / "custom_environment.py"
    check(runpy.run_path(str(path))["MeetUp"]())


def test_the_environment_in_the_docs_passes():
    text = (Path(__file__).parents[2] / "docs" / "custom-environments.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("run = ")[0]
    assert "check(Echo())" in code
    exec(code, {"__name__": "docs"})


def test_unbounded_actions_and_cached_properties_pass():
    class Cached(Plain):
        @functools.cached_property
        def table(self):
            return np.ones(2, np.float32)

        def reward(self, state, action):
            return jnp.asarray(self.table) * action.sum()

    check(broken(Cached, spec={"actions": (Box((2,)), Box((1,), 0.0))}))


def test_other_episodes_can_be_asked_for():
    rare = broken(obs=lambda self, state: Sound.obs(self, state) + jnp.where(state.noise > 0.98, jnp.nan, 0.0))
    assert any(problems(rare, episodes=64, seed=seed) for seed in range(2))


# --- the object and the spec


def test_the_object():
    for thing in (Sound, Sound(), lambda: Sound(), "games/climbing"):
        check(thing)
    expect(broken(reset=None), "no method reset")
    env = Sound()
    env.spec = {"agents": 2}
    expect(env, "Sound: the environment's spec must be an EnvSpec, not dict")
    del env.spec
    expect(env, "Sound: the environment's spec must be an EnvSpec, not NoneType")


BOX = Box((3,), -1.0, 1.0)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"agents": ("twin", "twin")}, ["names of their own, not twin, twin"]),
        ({"max_steps": 0}, ["max_steps must be a whole number of at least 1, not 0"]),
        ({"max_steps": 2.5}, ["max_steps", "not 2.5"]),
        ({"state_size": -1}, ["state_size must be a whole number of at least 0, not -1"]),
        ({"groups": (0, 0)}, ["'walker' and 'sitter'", "group 0", "equal spaces"]),
        ({"observations": (BOX, Discrete(2))}, ["agent 'sitter'", "must be a Box, not Discrete"]),
        ({"observations": (BOX, Box((0,)))}, ["agent 'sitter'", "positive sizes", "(0,)"]),
        ({"observations": (BOX, Box((2,), 1.0, -1.0))}, ["agent 'sitter'", "low <= high, not 1.0 and -1.0"]),
        ({"observations": (BOX, Box((2,), float("nan")))}, ["agent 'sitter'", "low <= high, not nan"]),
        ({"observations": (BOX, Box((2,), (0.0, 0.0, 0.0)))}, ["one number or 2 as low, not 3"]),
        ({"actions": (Discrete(3), Discrete(0))}, ["agent 'sitter'", "at least 1 action, not 0"]),
        ({"actions": (Box((1,)), Box((1,), 2.0, 1.0))}, ["agent 'sitter'", "its action space", "low <= high"]),
    ],
)
def test_the_spec(spec, words):
    expect(broken(spec=spec), *words)


def test_all_that_is_wrong_with_a_spec_is_listed():
    assert len(problems(broken(spec={"max_steps": 0, "agents": ("twin", "twin"), "groups": (0, 0)}))) == 3


# --- what reset and step return


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (
            {"obs": lambda self, state: jnp.zeros((2, 4))},
            ["reset gives obs as float32 of shape [2, 4], but expected float32 of shape [2, 3]"],
        ),
        ({"obs": lambda self, state: jnp.zeros((2, 3), jnp.int32)}, ["obs as int32 of", "expected float32 of"]),
        ({"obs": lambda self, state: None}, ["NoneType for obs", "expected float32 of shape [2, 3]"]),
        (
            {"avail": lambda self, state: jnp.ones((2, 2), bool)},
            ["avail as bool of shape [2, 2]", "bool of shape [2, 3]"],
        ),
        ({"avail": lambda self, state: jnp.ones((2, 3))}, ["avail as float32", "expected bool of shape [2, 3]"]),
        ({"alive": lambda self, state: jnp.ones(3, bool)}, ["alive as bool of shape [3]", "bool of shape [2]"]),
        ({"alive": lambda self, state: jnp.ones(2)}, ["alive as float32", "expected bool of shape [2]"]),
        ({"globe": lambda self, state: jnp.ones(5)}, ["state as float32 of shape [5]", "shape [2]"]),
        ({"globe": lambda self, state: None}, ["reset gives no global state, but spec.state_size is 2"]),
        (
            {"reward": lambda self, state, action: action},
            ["step gives reward as int32", "expected float32 of shape [2]"],
        ),
        ({"reward": lambda self, state, action: jnp.float32(1)}, ["reward as float32 of shape []", "shape [2]"]),
        (
            {"terminated": lambda self, state: jnp.zeros(3, bool)},
            ["terminated as bool of shape [3]", "one bool for all"],
        ),
        ({"terminated": lambda self, state: state.t}, ["terminated as int32 of shape []", "expected bool"]),
        ({"truncated": lambda self, state: jnp.zeros(2)}, ["truncated as float32", "expected bool of shape [2]"]),
    ],
)
def test_shapes_and_types(methods, words):
    expect(broken(**methods), *words)


def test_global_state_that_the_spec_does_not_mention():
    expect(broken(spec={"state_size": 0}), "reset gives a global state, but spec.state_size is 0")


def test_masks_for_continuous_actions():
    expect(broken(spec={"actions": (Box((3,), 0.0, 1.0),) * 2}), "avail", "only discrete actions can be masked")


@pytest.mark.parametrize("field", ["avail", "alive"])
def test_fields_that_come_and_go(field):
    def reset(self, key):
        state, seen = Sound.reset(self, key)
        return state, seen._replace(**{field: None})

    def step(self, *args):
        state, seen, *rest = Sound.step(self, *args)
        return state, seen._replace(**{field: None}), *rest

    expect(broken(reset=reset), f"step gives {field} but reset leaves it out")
    expect(broken(step=step), f"reset gives {field} but step leaves it out")


def test_wrong_return_values():
    swapped = lambda self, key: Sound.reset(self, key)[::-1]  # noqa: E731
    expect(broken(reset=swapped), "reset must return (state, Observation), not (Observation, State)")
    expect(broken(reset=lambda self, key: Sound.reset(self, key)[1].obs), "reset must return", "not ShapeDtypeStruct")
    gym = lambda self, *args: Sound.step(self, *args)[:4]  # noqa: E731
    expect(broken(step=gym), "step must return (state, Observation, reward, terminated, truncated), not (State, ")


def test_a_state_that_changes_its_form():
    def advance(**changes):
        return lambda self, key, state, action: Sound.advance(self, key, state, action)._replace(**changes)

    expect(
        broken(advance=advance(t=jnp.float32(9))),
        "state.t is int32 of shape [] after reset but float32 of shape [] after step",
    )

    class Deaf(Sound):
        obs = lambda self, state: jnp.zeros((2, 3))  # noqa: E731
        globe = lambda self, state: jnp.zeros(2)  # noqa: E731

    longer = broken(Deaf, advance=advance(noise=jnp.zeros(2)))
    expect(longer, "state.noise is float32 of shape [] after reset but float32 of shape [2] after step")
    expect(broken(Deaf, advance=advance(noise=None)), "state.noise is there after reset but gone after step")
    nested = broken(Deaf, advance=advance(noise={"a": jnp.zeros(()), "b": 1}))
    expect(nested, "state.noise is there after reset but gone after step")
    assert len(problems(nested)) == 3, "and state.noise['a'] and ['b'] are new"

    def as_dict(self, *args):
        state, *rest = Sound.step(self, *args)
        return dict(state._asdict()), *rest

    expect(broken(step=as_dict), "state.t is there after reset but gone after step")


def test_code_that_cannot_be_traced():
    def branch(self, state, action):
        return action * 1.0 if state.t > 1 else action * 2.0

    def convert(self, state, action):
        return jnp.asarray(np.asarray(action) * 1.0)

    def loop(self, state, action):
        return jnp.ones(2) * sum(range(int(state.t)))

    def typo(self, state, action):
        return self.rewards[action]

    file = Path(__file__).name
    expect(broken(reward=branch), "step cannot be compiled", f"{file}, line ", "jnp.where or jax.lax.cond")
    expect(broken(reward=convert), "step cannot be compiled", f"{file}, line ", "jax.numpy instead of numpy")
    expect(broken(reward=loop), "step cannot be compiled", f"{file}, line ", "stay with jax.numpy")
    expect(broken(reward=typo), "step cannot be compiled", "AttributeError: 'Broken' object has no attribute 'rewards'")
    line = branch.__code__.co_firstlineno + 1
    expect(broken(reward=branch), f"({file}, line {line})")
    with pytest.raises(UsageError) as caught:
        check(broken(reward=typo))
    assert isinstance(caught.value.__cause__, AttributeError), "the traceback of the cause is kept"


def test_values_kept_on_the_object_between_reset_and_step():
    def reset(self, key):
        state, seen = Sound.reset(self, key)
        self.start = state.noise
        return state, seen

    env = broken(reset=reset, reward=lambda self, state, action: action * self.start)
    expect(env, "reset changes the environment's attribute 'start', which belongs into the state")


def test_code_that_cannot_be_mapped():
    def reward(self, state, action):
        return jax.pure_callback(lambda a: np.asarray(a, np.float32), jax.ShapeDtypeStruct((2,), jnp.float32), action)

    expect(broken(reward=reward), "cannot be mapped over environments by jax.vmap")


# --- purity


@pytest.mark.parametrize("method", ["reset", "step"])
def test_counters_on_the_object(method):
    def counting(self, *args):
        self.calls = getattr(self, "calls", 0) + 1
        return getattr(Sound, method)(self, *args)

    expect(broken(**{method: counting}), f"{method} changes the environment's attribute 'calls'")


PYTHON, NUMPY = random.Random(0), np.random.default_rng(0)
"""Seeded, because two free draws may by chance be as close as rounding."""


@pytest.mark.parametrize("draw", [PYTHON.random, lambda: NUMPY.random(2, np.float32)])
def test_random_numbers_that_are_not_jax(draw):
    unseeded = lambda self, state, action: action * jnp.asarray(draw(), jnp.float32)  # noqa: E731
    expect(broken(reward=unseeded), "step gives different results for the same key, state and action", "jax.random")

    def reset(self, key):
        state = State(jnp.int32(0), jnp.sum(jnp.asarray(draw(), jnp.float32)))
        return state, self.observe(state)

    expect(broken(reset=reset), "reset gives different results for the same key")


def test_jit_on_the_method_does_not_hide_it():
    @functools.partial(jax.jit, static_argnums=0)
    def step(self, key, state, action):
        out = Sound.step(self, key, state, action)
        return *out[:2], out[2] * PYTHON.random(), *out[3:]

    expect(broken(step=step), "step gives different results for the same key, state and action")

    @functools.partial(jax.jit, static_argnums=0)
    def pure(self, key, state, action):
        return Sound.step(self, key, state, action)

    check(broken(step=pure))


def test_programs_that_differ_in_words_alone_are_pure():
    def reward(self, state, action):
        return action.astype(jnp.float32) + 0.0 * random.random()

    check(broken(reward=reward))


def test_chance_from_outside_while_running():
    def reward(self, state, action):
        shape = jax.ShapeDtypeStruct((2,), jnp.float32)
        draw = lambda a: np.random.default_rng().random(a.shape).astype(np.float32)  # noqa: E731
        return jax.pure_callback(draw, shape, action, vmap_method="expand_dims")

    expect(broken(reward=reward), "an episode played twice from the same key comes out differently")


# --- numbers


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (
            {"obs": lambda self, state: jnp.zeros((2, 3)).at[1, 0].set(jnp.where(state.t == 3, jnp.nan, 0))},
            ["agent 'sitter': obs[0] after step 3 is nan, but expected a finite number"],
        ),
        ({"obs": lambda self, state: jnp.zeros((2, 3)).at[0, 2].set(jnp.inf)}, ["'walker': obs[2] after reset is inf"]),
        ({"globe": when(1, np.full(2, np.nan, np.float32), Sound.globe)}, ["global state[0] after step 1 is nan"]),
        (
            {"reward": lambda self, state, action: jnp.where(state.t == 2, jnp.array([0, -jnp.inf]), 0.0)},
            ["agent 'sitter': reward of step 2 is -inf"],
        ),
        (
            {"obs": lambda self, state: jnp.zeros((2, 3)).at[0, 1].set(state.t * 0.6)},
            ["agent 'walker': obs[1] after step 2 is 1.2", "its space says -1 to 1"],
        ),
        (
            {"obs": lambda self, state: jnp.zeros((2, 3)).at[1, 1].set(0.7)},
            ["agent 'sitter': obs[1] after reset is 0.7", "-1 to 0.5"],
        ),
        (
            {"obs": lambda self, state: jnp.zeros((2, 3)).at[1, 2].set(0.1)},
            ["agent 'sitter': obs[2] after reset is 0.1", "beyond its 2 numbers expected zeros"],
        ),
        (
            {"avail": when(1, [[False] * 3, [True, False, False]], Sound.avail)},
            ["agent 'walker': avail after step 1 has no legal action"],
        ),
        (
            {"avail": when(1, [[True] * 3, [False, False, True]], Sound.avail)},
            ["agent 'sitter': avail after step 1 has no legal action"],
        ),
        (
            {"avail": lambda self, state: jnp.ones((2, 3), bool)},
            ["agent 'sitter': avail after reset allows action 2, but it has 2"],
        ),
        (
            {"alive": lambda self, state: jnp.ones(2, bool)},
            ["agent 'sitter': it was terminated by step 2 but alive after step 2 says it lives"],
        ),
        (
            {"alive": lambda self, state: jnp.stack([jnp.bool_(True), state.t != 2])},
            ["agent 'sitter': it was terminated by step 3 but alive after step 3 says it lives"],
        ),
        (
            {"terminated": lambda self, state: jnp.stack([state.t >= LENGTH, jnp.bool_(False)])},
            ["agent 'sitter': alive ends with step 2, but neither terminated nor truncated says so"],
        ),
        ({"alive": lambda self, state: jnp.zeros(2, bool)}, ["no agent is alive after reset"]),
        (
            {"terminated": lambda self, state: jnp.stack([jnp.bool_(False), state.t == 2])},
            ["still going on after spec.max_steps = 4 steps"],
        ),
    ],
)
def test_numbers(methods, words):
    expect(broken(**methods), *words)


def test_an_agent_that_ends_first_needs_alive():
    ends = lambda self, state: jnp.stack([state.t >= LENGTH, state.t == 2])  # noqa: E731
    expect(
        broken(Plain, terminated=ends),
        "agent 'sitter': it was terminated by step 2 and the others went on, so reset and step must give alive",
    )
    cut = broken(Plain, terminated=lambda self, state: jnp.bool_(False), truncated=ends)
    expect(cut, "agent 'sitter': it was truncated by step 2 and the others went on")


def test_what_does_not_matter_is_not_judged():
    """What the dead see and may do, what a terminated agent may do next, what comes after the end."""
    dead = when(2, [[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]], Sound.obs)
    check(broken(obs=dead))
    check(broken(avail=when(2, [[True] * 3, [False] * 3], Sound.avail)))
    check(broken(avail=when(LENGTH, np.zeros((2, 3), bool), Sound.avail)))
    check(broken(obs=when(LENGTH + 1, np.full((2, 3), np.nan, np.float32), Sound.obs), spec={"max_steps": 9}))


def test_an_agent_that_is_cut_off_still_has_a_next_action():
    none_left = broken(
        Sound,
        avail=when(LENGTH, np.zeros((2, 3), bool), Sound.avail),
        terminated=lambda self, state: jnp.stack([jnp.bool_(False), state.t == 2]),
        truncated=lambda self, state: state.t >= LENGTH,
    )
    expect(none_left, "agent 'walker': avail after step 4 has no legal action")


def test_longer_episodes_are_not_played_out():
    check(broken(Plain, terminated=lambda self, state: jnp.bool_(False), spec={"max_steps": 100_000},
                 obs=lambda self, state: jnp.zeros((2, 3))))  # fmt: skip


# --- unlike kinds of actions


class Several:
    """One agent with a choice, one with two choices at once, one with real actions. The reward of an action that is not
    legal is not finite, which the checks would complain about."""

    spec = EnvSpec(
        "several", ("one", "two", "real"), (Box((1,)),) * 3,
        (Discrete(4), MultiDiscrete((2, 3)), Box((2,), (-1.0, 3.0), (1.0, 7.0))), max_steps=20,
    )  # fmt: skip
    mask = np.array([[0, 1, 1, 0, 0], [1, 0, 0, 1, 1], [1, 1, 0, 0, 0]], bool)

    def look(self):
        return Observation(jnp.zeros((3, 1)), jnp.asarray(self.mask))

    def reset(self, key):
        return jnp.int32(0), self.look()

    def step(self, key, state, action):
        one, two, real = action[0, 0], action[1], action[2]
        good = (one == jnp.round(one)) & (one >= 1) & (one <= 2) & (two[0] == 0) & ((two[1] == 1) | (two[1] == 2))
        good &= (jnp.abs(real[0]) <= 1) & (real[1] >= 3) & (real[1] <= 7)
        return state + 1, self.look(), jnp.where(good, jnp.zeros(3), jnp.nan), jnp.bool_(False), state + 1 >= 20


def test_random_actions_of_unlike_agents_are_legal():
    check(Several())
    free = Several()
    free.mask = free.spec.own_actions
    expect(free, "agent 'one': reward of step")  # what the masks forbid is tried where they do not


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((0, slice(1, 3)), ["agent 'one': avail after reset has no legal action, but expected at least one"]),
        ((1, slice(2, 5)), ["agent 'two': avail after reset has no legal option of choice 1"]),
        ((2, 1), ["agent 'real': avail after reset has a forbidden dimension of a real action"]),
    ],
)
def test_masks_of_unlike_agents(place, words):
    env = Several()
    env.mask = env.mask.copy()
    env.mask[place] = False
    assert any(all(word in text for word in words) for text in problems(env))


def test_specs_of_several_choices():
    env = Several()
    for choices in ((), (2, 0), [2, 3]):
        actions = (Discrete(4), MultiDiscrete(choices), env.spec.actions[2])
        env.spec = replace(Several.spec, actions=actions, groups=(0, 1, 2))
        expect(env, "agent 'two': MultiDiscrete needs a tuple of whole numbers of at least 1")
