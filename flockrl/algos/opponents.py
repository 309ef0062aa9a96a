"""What each agent predicts from the features that its policy reads: what the others do at the same step (opponent
modelling), what it will earn, and the global state, which nobody sees.

    L = w * mean over i and j != i of -log q_i(a_j | features of i)
    L = w * mean over i of (v(features of i) - return of i)^2 / 2
    L = w * mean over i and k of (z_k(features of i) - (s_k - mean) / deviation)^2 / 2, for those i that have a choice

These are auxiliary losses (He et al. 2016; Hernandez-Leal et al. 2019): features have to tell what is predicted, and so
have the messages that they are made of. Moves without a choice (dead agents, those who wait, one legal action) count
nothing. In a run with sides and against past selves the moves of those who do not learn come to the learner as extras
of its rollout.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.parts import mean
from flockrl.core.actions import has_choice
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, take
from flockrl.core.types import Array, EnvSpec, Observation, Trajectory

MOVES, CHOSE = "others_moves", "others_chose"
"""Extras of a rollout, [T, B, N] of all agents in the game: what each did, and whether it had a choice."""
CONSTANT = 1e-3
"""Deviation below which a number of the global state counts as constant."""


def models_opponents(config: Any) -> bool:
    return getattr(config, "model_opponents", None) is not None


def predicts_return(config: Any) -> bool:
    return getattr(config, "predict_return", 0.0) > 0


def predicts_state(config: Any) -> bool:
    return getattr(config, "predict_state", 0.0) > 0


def predicts(config: Any) -> bool:
    """Whether policies predict anything."""
    return models_opponents(config) or predicts_return(config) or predicts_state(config)


def foreseen_size(spec: EnvSpec, config: Any) -> int:
    """N A for the others' actions, S for the global state and 1 for the return: outputs of the heads that predict,
    in this order, where there are such."""
    return _moves_size(spec, config) + _state_size(spec, config) + predicts_return(config)


def _state_size(spec: EnvSpec, config: Any) -> int:
    """S, or 0 where the global state is not predicted. Refuses environments that have none."""
    if not predicts_state(config):
        return 0
    if not spec.state_size:
        raise UsageError(f"predict_state predicts the global state, and {spec.name} has none: leave it out.")
    return spec.state_size


def _moves_size(spec: EnvSpec, config: Any) -> int:
    """N A, or 0 where nobody's actions are predicted. Refuses games in which there is nothing to predict."""
    if not models_opponents(config):
        return 0
    whole = spec.whole or spec
    if not whole.discrete:
        raise UsageError(
            f"model_opponents predicts which action the others choose, and not all agents of {whole.name} choose "
            "one of several: leave it out."
        )
    if whole.num_agents == 1:
        raise UsageError(f"model_opponents predicts other agents, and {whole.name} has none: leave it out.")
    return whole.num_agents * whole.action_size


def note_moves(whole: EnvSpec, trajectory: Trajectory) -> dict[str, Array]:
    """The extras that tell what all agents of a rollout did."""
    chose = jnp.ones(trajectory.reward.shape, bool) if trajectory.alive is None else trajectory.alive
    if trajectory.avail is not None:
        chose = chose & has_choice(whole, trajectory.avail)
    return {MOVES: trajectory.action, CHOSE: chose}


def others_moves(spec: EnvSpec, trajectory: Trajectory) -> tuple[Array, Array]:
    """[T, B, N] what all agents did, and whether they had a choice."""
    noted = trajectory.extras
    if MOVES not in noted:
        if spec.whole is not None:
            raise UsageError("model_opponents needs rollouts in which the others' actions are known: leave it out.")
        noted = note_moves(spec, trajectory)
    return noted[MOVES], noted[CHOSE]


def prediction(
    spec: EnvSpec, group: Group, foreseen: Array, moves: tuple[Array, Array], weight: Array | None
) -> tuple[Array, Array]:
    """Cross-entropy and accuracy of what a group's agents predict, mean over the choices of others.

    foreseen: [..., n, N A or more]; moves: see `others_moves`, [..., N]; weight: [..., n] who learns, None for all.
    """
    whole = spec.whole or spec
    size = whole.num_agents * whole.action_size
    logits = foreseen[..., :size].reshape(*foreseen.shape[:-1], whole.num_agents, whole.action_size)
    logp = jax.nn.log_softmax(jnp.where(whole.own_actions, logits, -1e9))
    did = moves[0][..., None, :].astype(jnp.int32)
    others = np.array([[spec.places[i] != j for j in range(whole.num_agents)] for i in group.agents])
    counts = (moves[1][..., None, :] & others).astype(jnp.float32)
    if weight is not None:
        counts = counts * weight[..., None]
    surprise = -jnp.take_along_axis(logp, jnp.broadcast_to(did, counts.shape)[..., None], -1)[..., 0]
    return mean(surprise, counts), mean((logp.argmax(-1) == did) * 1.0, counts)


def state_miss(foreseen: Array, state: Array, weight: Array | None) -> Array:
    """Half the squared error of predicted global states [..., n, S], mean over all numbers. state: [..., S], taken in
    units of each number's deviation among these moments, so that numbers of any size count alike; weight: [..., n]."""
    moments = tuple(range(state.ndim - 1))
    spread = jnp.maximum(state.std(moments), CONSTANT)
    target = jax.lax.stop_gradient((state - state.mean(moments)) / spread)
    return mean(0.5 * ((foreseen - target[..., None, :]) ** 2).mean(-1), weight)


def deciding(spec: EnvSpec, group: Group, avail: Array | None, weight: Array | None) -> Array | None:
    """[..., n] 1 for agents of a group that learn and have a choice, None for all: who only waits need not know the
    state. avail: [..., N, A] legal actions, None for all; weight: [..., n] who learns, None for all."""
    if avail is None:
        return weight
    chooses = take(has_choice(spec, avail), group, avail.ndim - 2).astype(jnp.float32)
    return chooses if weight is None else chooses * weight


def foreseen_loss(
    spec: EnvSpec, config: Any, group: Group, foreseen: Array, moves: Any, target: Array, known: Array | None,
    weight: Array | None, seen: Observation | None = None,
) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """What a group's predictions add to its loss, and metrics. foreseen: [..., n, K] outputs; target: [rows] returns in
    the critic's units; known: [rows] 1 where these count; seen: what the team saw, with the global state where it is
    predicted; the rest as in `prediction`."""
    total, told = jnp.float32(0), {}
    if models_opponents(config):
        surprise, right = prediction(spec, group, foreseen, moves, weight)
        total, told = config.model_opponents * surprise, {"opponent_loss": surprise, "opponent_accuracy": right}
    if predicts_state(config):
        assert seen is not None
        assert seen.state is not None
        begin, decides = _moves_size(spec, config), deciding(spec, group, seen.avail, weight)
        off = state_miss(foreseen[..., begin : begin + spec.state_size], seen.state, decides)
        total, told = total + config.predict_state * off, {**told, "state_loss": off}
    if predicts_return(config):
        miss = mean(0.5 * (foreseen[..., -1].reshape(-1) - target) ** 2, known)
        total, told = total + config.predict_return * miss, {**told, "return_loss": miss}
    return total, told
