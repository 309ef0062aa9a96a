"""Q-learning for teams: DQN, IQL, VDN, QMIX, QPLEX, weighted QMIX, QTRAN. One learner and a mixer.

Mnih et al. 2015, Tan 1993 (IQL), Sunehag et al. 2018 (VDN, arXiv 1706.05296), Rashid et al. 2018 (QMIX,
arXiv 1803.11485), Wang et al. 2021 (QPLEX, 2008.01062), Rashid et al. 2020 (weighted QMIX, 2006.10800),
Son et al. 2019 (QTRAN, 1905.05408).

    y = r + gamma Q'_tot(s', a'),  a'_i = argmax_a Q_i(o'_i, a),      L = E[w (Q_tot(s, a) - y)^2]

Q_tot is made of the agents' own values by the mixer; without one (IQL) every agent has a target of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flockrl.algos.exploration import alike, level, others_change, random_action, taken_chance
from flockrl.algos.family import Family
from flockrl.algos.mixing import make_mixer, side_loss
from flockrl.algos.parts import joint, mean, own_key, require_discrete
from flockrl.algos.q_config import QConfig
from flockrl.algos.replay_learner import Learned, ReplayLearner, ReplayState
from flockrl.algos.returns import lambda_returns, n_step_returns
from flockrl.core.errors import UsageError
from flockrl.core.groups import merge, take
from flockrl.core.lives import learning_weight
from flockrl.core.random import Source, uniform
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.heads import ILLEGAL, best_action, pick
from flockrl.nets.mixers import Joint, total
from flockrl.policies.listening import attention
from flockrl.policies.network import TeamNetwork, one_step, unroll
from flockrl.replay.ring import Replay, stretch, typical


class Columns(NamedTuple):
    """What each learning unit (an agent, or a side with a mixer) met, [T, b, K]."""

    reward: Array
    terminated: Array
    over: Array
    weight: Array


def make(spec: EnvSpec, config: QConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return QLearner(spec, config, envs, updates).algorithm()


FAMILY = Family(
    make,
    QConfig,
    continuous=False,
    bonus="replay",
    central=lambda config: config.mixer not in ("none", "sum"),
    grows=lambda config: config.mixer in ("none", "sum"),
)


class QLearner(ReplayLearner):
    """params: {"q": one network per group, "mixer": one per side}."""

    def __init__(self, spec: EnvSpec, config: QConfig, envs: int, updates: int):
        require_discrete(spec, "Q-learning")
        super().__init__(spec, config, envs, updates)
        self.net = TeamNetwork(spec, self.groups, config, [g.action_size + config.dueling for g in self.groups])
        if config.importance and spec.num_agents == 1:
            raise UsageError(f"importance weighs what others did, and {spec.name} has one agent: leave it out.")
        self.own = spec.own_actions
        teams = [np.flatnonzero(np.array(spec.sides) == side) for side in dict.fromkeys(spec.sides)]
        self.sides = teams if config.mixer != "none" else []
        self.teams = teams if config.mixer == "none" and config.team_reward else []  # they share rewards alone
        self.mixers: list[Any] = [make_mixer(spec, config) for _ in self.sides]

    # State

    def networks(self, key: Array) -> PyTree:
        spec = self.spec
        nets = self.net.init([jax.random.fold_in(key, group.number) for group in self.groups])
        keys = [jax.random.fold_in(key, self.groups[0].of + self._side_number(k)) for k in range(len(self.mixers))]
        mixers = tuple(
            net.init(
                k,
                Joint(
                    jnp.zeros((1, len(side))), jnp.zeros((1, len(side))),
                    jnp.zeros((1, len(side), spec.action_size)), jnp.zeros((1, spec.central_size)),
                ),
            ).get("params", {})
            for net, k, side in zip(self.mixers, keys, self.sides, strict=True)
        )  # fmt: skip
        return {"q": nets, "mixer": mixers}

    def policy(self, state: ReplayState) -> PyTree:
        config, progress = self.config, state.iterations / self.iterations
        epsilon = level("epsilon", config.explore_start, config.explore_end, config.explore_part, progress)
        warm = self._steps(state) >= config.learning_starts
        return {"q": state.learned.params["q"], "epsilon": jnp.where(warm, epsilon, 1.0)}

    def _side_number(self, k: int) -> int:
        """Number of side k among all sides of the environment."""
        whole = self.spec.whole
        return k if whole is None else list(dict.fromkeys(whole.sides)).index(self.spec.sides[self.sides[k][0]])

    def memory(self, batch: int) -> PyTree:
        return self.net.memory(batch)

    @property
    def talk(self) -> Any:
        return self.net.talk

    def says(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        return self.net.says(params["q"], observation, memory)

    def attends(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        return attention(self.net, params["q"], observation, memory)

    # Values

    def _q(
        self, params: PyTree, seen: Observation, memory: PyTree = (), first: Array | None = None
    ) -> tuple[Array, PyTree]:
        """Values [..., N, A] of all actions for observations [..., N, O], and each group's memory after each step."""
        outs, memories = self.net(params, seen, memory, first)
        return self._of_team(outs), memories

    def _of_team(self, outs: list[Array]) -> Array:
        """Values [..., N, A] of all actions, of each group's outputs [..., n, width]."""
        values = []
        for group, out in zip(self.groups, outs, strict=True):
            if self.config.dueling:
                value, advantage = out[..., :1], out[..., 1:]
                average = (advantage * group.legal).sum(-1, keepdims=True) / group.legal.sum(-1, keepdims=True)
                out = value + advantage - average
            values.append(out)
        return merge(values, self.groups, outs[0].ndim - 2, self.spec.action_size)

    def _unroll(self, params: PyTree, seen: Trajectory) -> tuple[Array, PyTree]:
        """Values [T, b, N, A] along a stretch after its burn-in, and the memory after each step."""
        if not self.recurrent:
            return self._q(params, jax.tree.map(lambda x: x[: self.steps], seen.observation), self.memory(1))
        return unroll(partial(self._q, params), seen.memory, seen.observation, seen.first, self.config.filling)

    def values_along(self, learned: Learned, trajectory: Trajectory) -> Array:
        blank = self.memory(trajectory.first.shape[1])
        q, _ = self._q(learned.params["q"], trajectory.observation, blank, trajectory.first)
        return pick(q, trajectory.action)

    def _next_q(self, params: PyTree, seen: Trajectory, memories: PyTree) -> Array:
        """Values [T, b, N, A] of what followed each step, the real final observation of an ended episode included."""
        if not self.recurrent:
            return self._q(params, seen.next_observation, self.memory(1))[0]
        return one_step(partial(self._q, params), seen.next_observation, memories)

    # Acting

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        seen = self.net.with_luck(observation, memory, key, explore)
        outs, memory, noted = self.net.step(params["q"], seen, memory)
        q, legal = self._of_team(outs), self._legal(observation.avail)
        greedy = best_action(q, legal)[1]
        if not explore:
            return greedy, memory, noted
        key = own_key(self.spec, key)
        chance, number = uniform(key, greedy.shape, range(self.spec.num_agents), copies=2)
        chance = alike(chance, self.config.explore_together)
        return jnp.where(chance < params["epsilon"], random_action(number, legal), greedy), memory, noted

    def scores(self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool) -> Array:
        """[B, N, A] values; random numbers above them for agents that explore."""
        q = jnp.where(
            self._legal(observation.avail), self._of_team(self.net.step(params["q"], observation, memory)[0]), ILLEGAL
        )
        if not explore:
            return q
        chance, number = uniform(own_key(self.spec, key), q.shape, range(self.spec.num_agents), copies=2)
        chance = alike(chance[..., 0], self.config.explore_together)
        legal = q > ILLEGAL
        most = 1.0 + jnp.abs(q).max((-1, -2), keepdims=True, where=legal, initial=0.0)
        return jnp.where((chance < params["epsilon"])[..., None] & legal, (1.0 + 9.0 * number) * most, q)

    def _legal(self, avail: Array | None) -> Array:
        """[..., N, A]: the actions that exist, and are legal now."""
        return jnp.asarray(self.own) if avail is None else avail & self.own

    # Learning

    def _extra(self) -> PyTree:
        return jnp.float32(1) if self.config.importance else ()  # how likely random actions are now

    def update(self, state: ReplayState, trajectory: Trajectory, key: Array) -> tuple[ReplayState, Metrics]:
        if self.config.importance:  # how likely actions were is known while their policy is
            policy = self._acting(state)
            seen = self.seen(policy, trajectory.observation)
            q, _ = self._q(policy["q"], seen, trajectory.memory, trajectory.first)
            chance = taken_chance(q, trajectory.action, self._legal(trajectory.avail), policy["epsilon"])
            trajectory = trajectory._replace(extras={**trajectory.extras, "chance": chance})
            state = state._replace(learned=state.learned._replace(extra=policy["epsilon"]))
        return super().update(state, trajectory, key)

    def learn(
        self, learned: Learned, replay: Replay, place: tuple[Array, Array, Array], factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        row, env, weight = place
        seen = learned.scales.experience(stretch(replay, row, env, self.window))
        loss = jax.value_and_grad(self._loss, has_aux=True)
        (_, (error, metrics)), grads = loss(learned.params, learned.targets, seen, weight, learned.extra)
        metrics["grad_norm"] = optax.tree.norm(grads["q"])
        for name, part in grads.items():
            learned = self._descend(learned, name, part, self.config.lr * factor)
        learned = learned._replace(updates=learned.updates + 1)
        return self._follow(learned), error, metrics

    def _follow(self, learned: Learned) -> Learned:
        """Targets move by tau when it is their turn. With tau 1 they become the online networks exactly."""
        due = learned.updates % self.config.target_every == 0
        rate = jnp.where(due, self.config.tau, 0.0)
        moved = jax.tree.map(lambda t, p: (1 - rate) * t + rate * p, learned.targets, learned.params)
        return learned._replace(targets=moved)

    def _loss(
        self, params: PyTree, targets: PyTree, seen: Trajectory, weight: Array, epsilon: Any = ()
    ) -> tuple[Array, tuple[Array, dict[str, Array]]]:
        """The squared errors along stretches [W, b]; each sample's error [b], and metrics. epsilon: now, or ()."""
        q, memories = self._unroll(params["q"], seen)
        live = jax.tree.map(lambda x: x[self.config.filling :], seen._replace(memory=()))
        columns, follows = self._columns(live), self._next_values(params, targets, seen, live, memories)
        args = columns.reward, follows, columns.terminated, columns.over, self.config.gamma
        if self.config.td_lambda:
            target = lambda_returns(*args, self.config.td_lambda)
        else:
            target = n_step_returns(*args, self.config.n_step)
        target = jax.lax.stop_gradient(target)
        head, known = jax.tree.map(lambda x: x[: self.steps], (live, columns.weight))
        if self.sides:
            losses, errors = self._mixed(params["mixer"], q[: self.steps], head, target, known, weight)
        else:
            worth = self._importance(q[: self.steps], head, epsilon)
            losses, errors = self._independent(q[: self.steps], head, target, known, weight[:, None] * worth)
        metrics = {"loss": losses, "q": mean(errors + target, known), "td_error": mean(jnp.abs(errors), known)}
        if self.config.conservative:
            gap = self._gap(q[: self.steps], head)
            losses, metrics = losses + self.config.conservative * gap, {**metrics, "conservative_gap": gap}
        return losses, (typical(errors, known), metrics)

    def _gap(self, q: Array, seen: Trajectory) -> Array:
        """How far the soft maximum of all legal actions' values lies above the value of what was done, each group's
        mean added up (Kumar et al. 2020, arXiv 2006.04779)."""
        assert seen.alive is not None
        alive = seen.alive.astype(jnp.float32)
        most = jax.nn.logsumexp(jnp.where(self._legal(seen.avail), q, ILLEGAL), axis=-1)
        gap = most - pick(q, seen.action)
        return sum(mean(take(gap, g, 2), take(alive, g, 2)) for g in self.groups)  # type: ignore[return-value]

    def _columns(self, seen: Trajectory) -> Columns:
        """Rewards and ends of each agent, or of each side: it ends with its last agent."""
        assert seen.alive is not None  # the replay writes both always
        assert seen.next_alive is not None
        weight, over = learning_weight(self.spec, seen.alive), seen.terminated | seen.truncated
        reward, terminated = seen.reward, seen.terminated
        if self.teams:
            reward = self.paid(reward)
        if self.sides:
            reward = jnp.stack([self._team_reward(reward, side) for side in self.sides], -1)
            left, going = seen.next_alive, seen.next_alive & ~over
            terminated = jnp.stack([~left[..., side].any(-1) for side in self.sides], -1)
            over = jnp.stack([~going[..., side].any(-1) for side in self.sides], -1)
            weight = jnp.stack([seen.alive[..., side].any(-1) for side in self.sides], -1)
        begins = jnp.concatenate([seen.first[1:], jnp.zeros_like(seen.first[:1])])
        return Columns(reward, terminated, over | begins[..., None], weight.astype(jnp.float32))

    def paid(self, reward: Array) -> Array:
        """[..., N] what each agent learns from: its side's reward where a mixer or `team_reward` says so."""
        for team in self.teams or self.sides:
            reward = reward.at[..., team].set(self._team_reward(reward, team)[..., None])
        return reward

    def _team_reward(self, reward: Array, team: np.ndarray) -> Array:
        """[T, b] what a team earned, of its agents' rewards [T, b, N]."""
        earned = total(reward[..., team])
        return earned / len(team) if self.config.of_mixer("team_reward") == "mean" else earned

    def _next_values(
        self, params: PyTree, targets: PyTree, seen: Trajectory, live: Trajectory, memories: PyTree
    ) -> Array:
        """[T, b, K] value of what followed each step, by the target networks."""
        after = self._unroll(targets["q"], seen)[1] if self.recurrent else ()
        q = self._next_q(targets["q"], live, after)
        legal = self._legal(live.next_avail)
        chooser = self._next_q(params["q"], live, memories) if self.config.double_q else q
        action = best_action(chooser, legal)[1]
        if not self.sides:
            return pick(q, action)
        assert live.next_alive is not None  # as above
        whole = self._joint(q, action, legal, live.next_alive, joint(self.spec, live.next_obs, live.next_state))
        values = []
        for k, net in enumerate(self.mixers):
            out = net.apply({"params": targets["mixer"][k]}, self._of_side(whole, k))
            parts: Any = out if isinstance(out, tuple) else (out, out)
            values.append(parts[1] if self.config.mixer == "weighted" else parts[0])
        return jnp.stack(values, -1)

    def _joint(self, q: Array, action: Array, legal: Array, alive: Array, state: Array) -> Joint:
        """What all agents do, the dead with value 0 and no action."""
        there = alive.astype(q.dtype)
        code = jax.nn.one_hot(action, q.shape[-1]) * there[..., None]
        return Joint(pick(q, action) * there, best_action(q, legal)[0] * there, code, state)

    def _of_side(self, whole: Joint, k: int) -> Joint:
        side = self.sides[k]
        if len(side) == self.spec.num_agents:
            return whole
        return Joint(whole.q[..., side], whole.best[..., side], whole.action[..., side, :], whole.state)

    def _independent(
        self, q: Array, seen: Trajectory, target: Array, known: Array, weight: Array
    ) -> tuple[Array, Array]:
        """IQL: every agent's own error; each group's mean added up. weight: [T, b, N], or what broadcasts to it."""
        error = pick(q, seen.action) - target
        square = weight * error**2
        return sum(mean(take(square, g, 2), take(known, g, 2)) for g in self.groups), error  # type: ignore[return-value]

    def _importance(self, q: Array, seen: Trajectory, epsilon: Any) -> Array:
        """[T, b, N] what replayed steps weigh for each agent; [1] where all weigh alike."""
        if not self.config.importance:
            return jnp.ones(1)
        now = taken_chance(q, seen.action, self._legal(seen.avail), epsilon)
        return jax.lax.stop_gradient(others_change(now, seen.extras["chance"], seen.weight > 0))

    def _mixed(
        self, mixers: PyTree, q: Array, seen: Trajectory, target: Array, known: Array, weight: Array
    ) -> tuple[Array, Array]:
        """The errors of every side's joint value, each side's mean added up."""
        assert seen.alive is not None
        legal, state = self._legal(seen.avail), joint(self.spec, seen.obs, seen.state)
        done = self._joint(q, seen.action, legal, seen.alive, state)
        best = self._joint(q, best_action(q, legal)[1], legal, seen.alive, state)
        losses, errors = [], []
        for k, net in enumerate(self.mixers):
            sides = self._of_side(done, k), self._of_side(best, k)
            square, error = side_loss(self.config, net, {"params": mixers[k]}, *sides, target[..., k])
            losses.append(mean(weight[:, None] * square[..., None], known[..., k : k + 1]))
            errors.append(error)
        return sum(losses), jnp.stack(errors, -1)  # type: ignore[return-value]
