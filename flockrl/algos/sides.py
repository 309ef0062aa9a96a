"""Several learners in one environment: one for each side of a game, put together into one `Algorithm`.

Each learner sees the spec, the observations and the rollouts of its own agents. What a central critic of a side reads
of the others comes to it as global state: all observations (or the environment's own state) and, where its family
reads joint actions, the others' actions. Sides may also be played by a policy that is frozen, by a function, or at
random: those are algorithms that do not learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.opponents import note_moves
from flockrl.algos.parts import joint, own_key
from flockrl.core.errors import UsageError
from flockrl.core.groups import interleave, pick_agents
from flockrl.core.random import Source, Tape
from flockrl.core.types import Actor, Algorithm, Array, Critic, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.actions import ActionCode

Script = Callable[[EnvSpec, Observation, Any], Array]
"""(the side's spec, what it sees [B, n, ...], key) -> its actions [B, n] or [B, n, W]. Compiled, so written in JAX."""


class Player(NamedTuple):
    """Who plays for one side.

    spec: of its agents, a part of the whole. algorithm: an `Algorithm`, or an `Actor` where it does not learn.
    central, actions: whether the learner reads what all agents see, and what the others do. learns: whether it is
    updated at all. models: whether it predicts what the others do. for_all: whether its policy was made for all agents;
    then it sees them all, and what it would do for others is left out.
    """

    spec: EnvSpec
    algorithm: Any
    central: bool = False
    actions: bool = False
    learns: bool = True
    models: bool = False
    for_all: bool = False


def side_spec(whole: EnvSpec, agents: Sequence[int], central: bool, actions: bool) -> EnvSpec:
    """The spec that the learner of a side sees. With `central` it has a global state."""
    if not central:
        return whole.part(agents)
    others = whole.num_agents - len(agents)
    return whole.part(agents, whole.central_size + actions * others * whole.action_size)


def per_side(whole: EnvSpec, players: Mapping[str, Player]) -> Algorithm:
    """One algorithm out of one for each side. States, parameters and memories are dicts with an entry per side.

    Rollouts have the length of the longest; a learner of shorter ones learns from them piece by piece. All get the same
    keys, and tell each other apart by `Group.number` and `parts.own_key`.
    """
    learners = {name: player for name, player in players.items() if player.learns}
    steps = common_steps({name: player.algorithm.rollout_steps for name, player in learners.items()})
    code = ActionCode(whole) if any(player.actions for player in learners.values()) else None
    notes = [f"{name}: {player.algorithm.note}" for name, player in players.items() if player.algorithm.note]
    act, memory = compose(whole, players)

    def init(key: Array) -> PyTree:
        return {name: player.algorithm.init(key) for name, player in players.items()}

    def params(state: PyTree) -> PyTree:
        return {name: player.algorithm.params(state[name]) for name, player in players.items()}

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        state = dict(state)
        metrics: dict[str, Array] = {}
        for name, player in learners.items():
            own = side_trajectory(whole, player, trajectory, code)._replace(memory=trajectory.memory[name])
            state[name], found = _in_pieces(player.algorithm, state[name], own, key)
            metrics |= {f"{name}/{metric}": value for metric, value in found.items()}
        return state, metrics

    return Algorithm(init, params, act, update, memory, steps, "; ".join(notes), critic=_critics(whole, learners, code))


def _critics(whole: EnvSpec, learners: Mapping[str, Player], code: ActionCode | None) -> Critic | None:
    """Those of the sides that learn and have such."""
    critics = {name: own.algorithm.critic for name, own in learners.items() if own.algorithm.critic is not None}

    def values(params: PyTree, trajectory: Trajectory) -> Array:
        found = jnp.full(trajectory.reward.shape, jnp.nan)
        for name, critic in critics.items():
            own = side_trajectory(whole, learners[name], trajectory, code)._replace(memory=trajectory.memory[name])
            found = found.at[..., np.array(learners[name].spec.places)].set(critic.values(params[name], own))
        return found

    def params(state: PyTree) -> PyTree:
        return {name: critic.params(state[name]) for name, critic in critics.items()}

    return Critic(params, values) if critics else None


def common_steps(lengths: Mapping[str, int]) -> int:
    """The rollout length that all learners can take: the longest, which the others must divide."""
    longest = max(lengths.values())
    for name, steps in lengths.items():
        if longest % steps:
            owner = max(lengths, key=lambda side: lengths[side])
            raise UsageError(
                f"Sides learn from the same rollouts: rollout_steps of {owner} ({longest}) must be a multiple of those "
                f"of {name} ({steps}): set --{owner}.rollout-steps or --{name}.rollout-steps."
            )
    return longest


def compose(whole: EnvSpec, players: Mapping[str, Player]) -> Actor:
    """How the sides act together; parameters and memories are dicts with an entry per side."""
    places = [player.spec.places for player in players.values()]

    def act(
        params: PyTree, seen: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        actions, memories, extras = [], {}, {}
        for name, player in players.items():
            own = seen if player.for_all else side_observation(player.spec, seen)
            source: Any = key.seated(player.spec.places) if isinstance(key, Tape) and not player.for_all else key
            played = player.algorithm.act(params[name], own, memory[name], source, explore)
            action, memories[name], extras[name] = played
            if player.for_all:
                actions.append(pick_agents(action, player.spec.places, 1))
            else:
                actions.append(_spread(whole, player.spec, action))
        return interleave(actions, places, 1), memories, _merge_extras(players, extras, places)

    return Actor(act, lambda batch: {name: player.algorithm.memory(batch) for name, player in players.items()})


def _spread(whole: EnvSpec, part: EnvSpec, action: Array) -> Array:
    """A side's actions [B, n(, W)] in the form that they have in the whole."""
    if whole.discrete or part.action_shape[1:] == whole.action_shape[1:]:
        return action
    rows = action[..., None] if part.discrete else action
    return jnp.pad(rows.astype(jnp.float32), ((0, 0), (0, 0), (0, whole.action_width - rows.shape[-1])))


def _merge_extras(
    players: Mapping[str, Player], extras: Mapping[str, Mapping[str, Array]], places: Sequence[Sequence[int]]
) -> dict[str, Array]:
    """Each extra [B, n, ...] of any side as one of all agents; 0 for sides that have none such."""
    found: dict[str, Array] = {}
    for name, like in {name: x for own in extras.values() for name, x in own.items()}.items():
        shapes = [(like.shape[0], player.spec.num_agents, *like.shape[2:]) for player in players.values()]
        parts = [extras[s].get(name, jnp.zeros(shape, like.dtype)) for s, shape in zip(players, shapes, strict=True)]
        found[name] = interleave(parts, places, 1)
    return found


def side_observation(part: EnvSpec, seen: Observation) -> Observation:
    """What the agents of a side see, cut to the sizes of their own spaces."""
    places, axis = part.places, seen.obs.ndim - 2

    def own(x: Any, size: int | None = None) -> Any:
        if x is None:
            return None
        x = pick_agents(x, places, axis)
        return x if size is None else x[..., :size]

    near = own(seen.neighbours)
    return Observation(
        own(seen.obs, part.obs_size), own(seen.avail, part.action_size), seen.state, own(seen.alive),
        None if near is None else pick_agents(near, places, axis + 1),
        own(seen.seeds),
    )  # fmt: skip


def side_trajectory(whole: EnvSpec, player: Player, trajectory: Trajectory, code: ActionCode | None) -> Trajectory:
    """A rollout [T, B] as the learner of a side sees it; its memory is still that of all."""
    part = player.spec
    now = side_observation(part, trajectory.observation)
    following = side_observation(part, trajectory.next_observation)
    state, next_state = trajectory.state, trajectory.next_state
    if player.central:
        state = joint(whole, trajectory.obs, state)
        next_state = joint(whole, trajectory.next_obs, next_state)
        if player.actions:
            assert code is not None
            does, will = others_actions(whole, part, trajectory, code)
            state, next_state = (jnp.concatenate(pair, -1) for pair in ((state, does), (next_state, will)))
    places = part.places
    columns = {
        name: pick_agents(getattr(trajectory, name), places, 2) for name in ("reward", "terminated", "truncated")
    }
    return trajectory._replace(
        obs=now.obs, avail=now.avail, state=state, alive=now.alive, neighbours=now.neighbours, next_obs=following.obs,
        next_avail=following.avail, next_state=next_state, next_neighbours=following.neighbours,
        next_alive=following.alive,
        action=_own_actions(whole, part, trajectory.action), **columns,
        extras={name: pick_agents(x, places, 2) for name, x in trajectory.extras.items()}
        | (note_moves(whole, trajectory) if player.models else {}),
    )  # fmt: skip


def _own_actions(whole: EnvSpec, part: EnvSpec, action: Array) -> Array:
    """Undo `_spread`, for actions [T, B, N(, W)]."""
    own = pick_agents(action, part.places, 2)
    if whole.discrete:
        return own
    return own[..., 0].astype(jnp.int32) if part.discrete else own[..., : part.action_width]


def others_actions(whole: EnvSpec, part: EnvSpec, trajectory: Trajectory, code: ActionCode) -> tuple[Array, Array]:
    """Codes [T, B, M A] of what the M other agents do at each step, and of what they do after it.

    The latter is what they did at the next step. Where the rollout or the episode ends there is none: there they are
    taken to go on with what they did last.
    """
    others = [i for i in range(whole.num_agents) if i not in part.places]
    codes = code.encode(trajectory.action)
    if trajectory.alive is not None:
        codes = codes * trajectory.alive[..., None]
    codes = pick_agents(codes, others, 2)
    codes = codes.reshape(*codes.shape[:2], -1)
    begins = jnp.concatenate([trajectory.first[1:], jnp.ones_like(trajectory.first[:1])])
    shifted = jnp.concatenate([codes[1:], codes[-1:]])
    return codes, jnp.where(begins[..., None], codes, shifted)


def _in_pieces(algorithm: Algorithm, state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
    """One update, or one for each piece of a rollout that is longer than the learner's own."""
    pieces = len(trajectory.reward) // algorithm.rollout_steps
    if pieces == 1:
        return algorithm.update(state, trajectory, key)
    memory = trajectory.memory
    rows = jax.tree.map(
        lambda x: x.reshape(pieces, algorithm.rollout_steps, *x.shape[1:]), trajectory._replace(memory=())
    )

    def learn(state: PyTree, now: tuple[Trajectory, Array]) -> tuple[PyTree, Metrics]:
        return algorithm.update(state, now[0]._replace(memory=memory), now[1])

    state, metrics = jax.lax.scan(learn, state, (rows, jax.random.split(key, pieces)))
    return state, jax.tree.map(jnp.mean, metrics)


# Players that do not learn


def frozen(policy: Algorithm | Actor, init: Callable[[Array], PyTree], samples: bool) -> Algorithm:
    """A policy that stays as it is. Its state are its parameters; `init` gives their structure.

    samples: whether it draws from its policy while others explore; otherwise it always acts greedily.
    """

    def act(
        params: PyTree, seen: Observation, memory: PyTree, key: Any, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        action, memory, _ = policy.act(params, seen, memory, key, explore and samples)
        return action, memory, {}

    return Algorithm(init, lambda state: state, act, _stay, policy.memory, 1)


def scripted(part: EnvSpec, function: Script) -> Algorithm:
    """A side that a function of the user's plays."""

    def act(
        params: PyTree, seen: Observation, memory: PyTree, key: Any, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        action = jnp.asarray(function(part, seen, own_key(part, key)))
        expected = (len(seen.obs), *part.action_shape)
        if action.shape != expected:
            raise UsageError(f"The script must return actions of shape {list(expected)}, not {list(action.shape)}.")
        return action.astype(part.action_dtype), memory, {}

    return Algorithm(lambda key: (), lambda state: (), act, _stay, lambda batch: (), 1)


def random_side(part: EnvSpec) -> Algorithm:
    """A side that takes random legal actions."""
    code = ActionCode(part)

    def act(
        params: PyTree, seen: Observation, memory: PyTree, key: Any, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        return code.decode(code.random(own_key(part, key), len(seen.obs), seen.avail)), memory, {}

    return Algorithm(lambda key: (), lambda state: (), act, _stay, lambda batch: (), 1)


def _stay(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
    return state, {}
