"""What DDPG, TD3 and SAC have in common: critics of state and action, targets, the order of an update.

    y = r + gamma^n Q'(s', a'),   L(Q) = E[w (Q(s, a) - y)^2]

A critic reads its agent's observation and action (`critic="own"`), or the global state (else all observations)
and all actions (`critic="central"`, Lowe et al. 2017, arXiv 1706.02275). Each family says what a' is and how
the policy improves.

With memory, actors and critics learn from stretches of the replay (Heess et al. 2015, arXiv 1512.04455): networks
remember the observations along a stretch, after a burn-in, and look at what follows a step from the memory after it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flockrl.algos.parts import joint, mean, own_key
from flockrl.algos.replay_learner import Learned, ReplayLearner, ReplayState
from flockrl.algos.returns import n_step_returns
from flockrl.algos.views import View, both_views
from flockrl.core.groups import Group, merge, take
from flockrl.core.lives import learning_weight
from flockrl.core.random import Source, split
from flockrl.core.types import Array, EnvSpec, Observation, PyTree, Trajectory
from flockrl.nets.actions import ActionCode
from flockrl.policies.listening import attention
from flockrl.policies.network import TeamNetwork, ids, make_network, one_step, unroll
from flockrl.policies.stochastic import legal
from flockrl.replay.ring import Batch, Replay, along, gather, stretch, typical


class OffPolicy(ReplayLearner):
    """Actors and critics. params: {"actor": one per group, "critic": `twins` per group in a row}."""

    twins = 1
    """Critics per group; the smallest estimate counts."""
    noisy = False
    """Whether exploration noise has a state of its own."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        self.code = ActionCode(spec)
        self.actor = TeamNetwork(spec, self.groups, config, [self._actor_width(group) for group in self.groups])
        self.critics = [
            make_network(spec, config, self._critic_width(group), self._whose(group), ids=self._ids(group))
            for group in self.groups
            for _ in range(self.twins)
        ]

    def _ids(self, group: Group) -> int:  # how many agents critics tell apart
        return ids(self.spec, group, self.config, whose=self.config.critic == "central")

    def _whose(self, group: Group) -> Group | None:
        """Whose own observations a critic reads."""
        return group if self.config.critic == "own" else None

    # What a family says

    def _actor_width(self, group: Group) -> int:
        return group.action_size

    def _critic_width(self, group: Group) -> int:
        return 1

    @abstractmethod
    def _behave(
        self, params: PyTree, outs: list[Array], seen: Observation, noise: PyTree, key: Source
    ) -> tuple[Array, PyTree]:
        """Exploring codes [B, N, A] for the policies' outputs, and the exploration noise's state."""

    @abstractmethod
    def _greedy(self, outs: list[Array], avail: Array | None) -> Array:
        """Codes [B, N, A] without exploration."""

    @abstractmethod
    def _next_values(self, learned: Learned, view: View, key: Array) -> Array:
        """[..., N] value of what followed, by the target networks."""

    def _predict(self, critic: PyTree, index: int, view: View, action: Array, own: Array) -> Array:
        """[..., n] Q of the replayed actions (codes `action` [..., N, A]) by critic number `index`.

        own: the same codes where those of dead agents are not set to 0.
        """
        group = self.groups[index // self.twins]
        return self._q(index, critic, view, self._actions(group, action))[..., 0]

    def _penalty(
        self, critics: Sequence[PyTree], learned: Learned, now: View, following: View, action: Array, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """What is added to the critics' loss, and metrics of it."""
        return jnp.float32(0), {}

    @abstractmethod
    def _improve(
        self, learned: Learned, view: View, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        """Policies one step better, targets one step closer. `factor` scales the learning rate."""

    def _noise(self, batch: int) -> PyTree:
        """The state of exploration noise at the start of an episode; () when it has none."""
        return ()

    # State

    def networks(self, key: Array) -> PyTree:
        spec, of = self.spec, self.groups[0].of
        lead = (1, 1) if self.recurrent else (1,)
        obs = jnp.zeros((*lead, spec.num_agents, spec.obs_size))
        state = jnp.zeros((*lead, spec.state_size)) if spec.state_size else None
        action = jnp.zeros((*lead, spec.num_agents, spec.action_size))
        first = jnp.zeros((1, 1), bool) if self.recurrent else None
        keys = jax.random.split(key, of * (1 + self.twins))
        actor = self.actor.init([keys[group.number] for group in self.groups])
        critic = tuple(
            net.init(
                keys[of + group.number * self.twins + i % self.twins], self._observed(group, obs, state),
                self._critic_memory(group, 1), first, beside=self._actions(group, action),
            )["params"]
            for i, net in enumerate(self.critics)
            for group in [self.groups[i // self.twins]]
        )  # fmt: skip
        return {"actor": actor, "critic": critic}

    def policy(self, state: ReplayState) -> PyTree:
        """The actors, how far the run is (exploration falls with it), and whether the random warm-up is over."""
        return {
            "actor": state.learned.params["actor"],
            "progress": state.iterations / self.iterations,
            "warm": self._steps(state) >= self.config.learning_starts,
        }

    def memory(self, batch: int) -> PyTree:
        """What the actors remember, and the exploration noise's state: both, one of them, or ()."""
        return self._together(self.actor.memory(batch), self._noise(batch))

    def remembered(self, memory: PyTree) -> PyTree:
        return self._apart(memory)[0]

    def _together(self, remembered: PyTree, noise: PyTree) -> PyTree:
        if not self.actor.stateful:
            return noise
        return (remembered, noise) if self.noisy else remembered

    def _apart(self, memory: PyTree) -> tuple[PyTree, PyTree]:
        """(what the actors remember, the noise's state) of a `memory`."""
        if not self.actor.stateful:
            return (), memory
        return memory if self.noisy else (memory, ())

    @property
    def talk(self) -> Any:
        return self.actor.talk

    def says(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        return self.actor.says(params["actor"], observation, self._apart(memory)[0])

    def attends(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        return attention(self.actor, params["actor"], observation, self._apart(memory)[0])

    # Networks

    def _outputs(self, params: Sequence[PyTree], view: View) -> list[Array]:
        """What each group's policy network says, [..., n, width]."""
        if view.stretch is None:
            return self.actor(params, view.seen, self.actor.memory(len(view.seen.obs)), None)[0]

        def apply(seen: Observation, memory: PyTree, first: Array) -> tuple[list[Array], PyTree]:
            return self.actor(params, seen, memory, first)

        past = view.stretch
        outs, memories = unroll(apply, past.memory, past.observation, past.first, self.config.filling)
        if view.follows:
            return one_step(apply, view.seen, memories)
        return [out[: self.steps] for out in outs]

    def _observed(self, group: Group, obs: Array, state: Array | None) -> Array:
        """What a critic observes: own [..., n, O], or [..., 1, S] for all."""
        if self.config.critic == "own":
            return take(obs, group, obs.ndim - 2, group.obs_size)
        return joint(self.spec, obs, state)[..., None, :]

    def _actions(self, group: Group, action: Array) -> Array:
        """What a critic reads of codes [..., N, A]: own [..., n, A], or [..., 1, N A] for all or
        one for each memory."""
        if self.config.critic == "own":
            return take(action, group, action.ndim - 2, group.action_size)
        rows = group.size if self.config.memory == "gru" and self._told_apart(group) else 1
        whole = action.reshape(*action.shape[:-2], 1, -1)
        return jnp.broadcast_to(whole, (*whole.shape[:-2], rows, whole.shape[-1]))

    def _actions_with(self, group: Group, action: Array, own: Array) -> Array:
        """The same where each agent of the group does `own` [..., n, A] and the others' `action` is held."""
        if self.config.critic == "own":
            return own
        own = jnp.pad(own, [(0, 0)] * (own.ndim - 1) + [(0, self.spec.action_size - own.shape[-1])])
        mine: Any = np.eye(self.spec.num_agents, dtype=bool)[list(group.agents)][:, :, None]  # [n, N, 1]
        actions = jnp.where(mine, own[..., :, None, :], action[..., None, :, :])
        return actions.reshape(*own.shape[:-1], -1)

    def _told_apart(self, group: Group) -> bool:
        """Whether a critic has a memory for each of the group's agents instead of one for all."""
        return self.config.critic == "own" or self._ids(group) > 0

    def _critic_memory(self, group: Group, batch: int) -> Any:
        """A critic's memory at the start of an episode."""
        if self.config.memory == "none":
            return ()
        return jnp.zeros((batch, group.size if self._told_apart(group) else 1, self.config.memory_size))

    def _q(self, index: int, params: PyTree, view: View, action: Array) -> Array:
        """[..., n, width] outputs of critic number `index` for what it reads of the actions."""
        return self._judge(self.critics[index], self.groups[index // self.twins], params, view, action)

    def _judge(self, net: Any, group: Group, params: PyTree, view: View, action: Array | None) -> Array:
        """[..., n, width] outputs of a network that observes what critics do and, where given, reads actions."""
        if view.stretch is None or self.config.memory == "none":
            out = net.apply({"params": params}, self._observed(group, view.seen.obs, view.seen.state), beside=action)[0]
        else:
            out = self._judge_along(net, group, params, view, action)
        return jnp.broadcast_to(out, (*out.shape[:-2], group.size, out.shape[-1]))

    def _judge_along(self, net: Any, group: Group, params: PyTree, view: View, action: Array | None) -> Array:
        """`_judge` for networks with memory, which depends on the observations alone."""
        past, burn = view.stretch, 0 if view.whole else self.config.filling
        assert past is not None

        def remember(x: Array, memory: PyTree, first: Array) -> tuple[None, PyTree]:
            return None, net.apply({"params": params}, x, memory, first, method="features")[1]

        def apply(x: tuple[Array, Any], memory: PyTree, first: Array) -> tuple[Array, PyTree]:
            return net.apply({"params": params}, x[0], memory, first, beside=x[1])

        observed, memory = self._observed(group, past.obs, past.state), self._critic_memory(group, past.first.shape[1])
        if view.follows:
            memories = unroll(remember, memory, observed, past.first, burn)[1]
            return one_step(apply, (self._observed(group, view.seen.obs, view.seen.state), action), memories)
        if burn:
            memory = jax.lax.stop_gradient(remember(observed[:burn], memory, past.first[:burn])[1][-1])
        now = slice(burn, None if view.whole else burn + self.steps)
        return apply((observed[now], action), memory, past.first[now])[0]

    def values_along(self, learned: Learned, trajectory: Trajectory) -> Array:
        """The smaller value of the twins."""
        seen = trajectory.observation._replace(alive=trajectory.weight)
        view, own = View(seen, trajectory, whole=True), self.code.encode(trajectory.action)
        action = own * trajectory.weight[..., None]
        q = [self._predict(net, i, view, action, own) for i, net in enumerate(learned.params["critic"])]
        return merge([jnp.stack(q[i : i + self.twins]).min(0) for i in range(0, len(q), self.twins)], self.groups, 2)

    def _smallest(self, critics: Sequence[PyTree], group_index: int, view: View, action: Array) -> Array:
        """[..., n, width] the smaller of the twins' outputs."""
        first = group_index * self.twins
        values = [self._q(i, critics[i], view, action) for i in range(first, first + self.twins)]
        return values[0] if self.twins == 1 else jnp.minimum(*values)

    def _team(self, parts: list[Array], alive: Array | None = None) -> Array:
        """Codes of groups as codes of the team, [..., N, A]; those of dead agents are 0."""
        whole = merge(parts, self.groups, parts[0].ndim - 2, self.spec.action_size)
        return whole if alive is None else whole * alive[..., None]

    def _legal(self, avail: Array | None) -> list[Array]:
        """[..., n, A] of each group: the options that exist, and are legal now."""
        masks = [legal(group, avail) for group in self.groups]
        return [
            jnp.asarray(group.legal) if mask is None else mask & group.legal
            for group, mask in zip(self.groups, masks, strict=True)
        ]

    # Acting

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        remembered, noise = self._apart(memory)
        seen = self.actor.with_luck(observation, remembered, key, explore)
        outs, remembered, noted = self.actor.step(params["actor"], seen, remembered)
        if explore:
            random_key, key = split(own_key(self.spec, key))
            chosen, noise = self._behave(params, outs, observation, noise, key)
            random = self.code.random(random_key, len(chosen), observation.avail)
            code = jnp.where(params["warm"], chosen, random)
        else:
            code = self._greedy(outs, observation.avail)
        return self.code.decode(code), self._together(remembered, noise), noted

    # Learning

    def learn(
        self, learned: Learned, replay: Replay, place: tuple[Array, Array, Array], factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        config, scaled = self.config, learned.scales.experience
        if self.recurrent:
            batch = along(scaled(stretch(replay, *place[:2], self.window)), *place, config.filling, self.steps)
        else:
            batch = scaled(gather(replay, *place, config.n_step, config.gamma))
        learned, error, metrics = self.step(learned, batch, factor, key)
        return learned, typical(error, learning_weight(self.spec, batch.alive)), metrics

    def step(
        self, learned: Learned, batch: Batch, factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        """One gradient step on one batch: the new state, the critics' errors [..., N], and metrics."""
        target_key, policy_key = jax.random.split(key)
        now, following = both_views(batch)
        follows = self._next_values(learned, following, target_key)
        target = jax.lax.stop_gradient(self._target(batch, follows))
        action = self.code.encode(batch.action) * batch.alive[..., None]

        def loss(critics: Sequence[PyTree]) -> tuple[Array, tuple[Array, dict[str, Array]]]:
            value, (error, q) = self._critic_loss(critics, now, batch, action, target)
            more, told = self._penalty(critics, learned, now, following, action, jax.random.fold_in(key, 2))
            return value + more, (error, {"critic_loss": value, "q": q, **told})

        (_, (error, told)), grads = jax.value_and_grad(loss, has_aux=True)(learned.params["critic"])
        learned = self._descend(learned, "critic", grads, self.config.critic_lr * factor)
        learned, metrics = self._improve(learned, now, action, policy_key, factor)
        metrics |= {**told, "critic_grad_norm": optax.tree.norm(grads)}
        return learned._replace(updates=learned.updates + 1), error, metrics

    def _target(self, batch: Batch, follows: Array) -> Array:
        """[..., N] n-step returns, with the value of what followed."""
        if batch.stretch is None:
            return batch.reward + batch.discount * follows
        live: Trajectory = jax.tree.map(lambda x: x[self.config.filling :], batch.stretch._replace(memory=()))
        begins = jnp.concatenate([live.first[1:], jnp.zeros_like(live.first[:1])])[..., None]
        over = live.terminated | live.truncated | begins
        return n_step_returns(live.reward, follows, live.terminated, over, self.config.gamma, self.config.n_step)

    def _critic_loss(
        self, critics: Sequence[PyTree], view: View, batch: Batch, action: Array, target: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        """Squared errors of all critics, each critic's mean added up; the first twins' errors and mean value."""
        total, errors, values = jnp.float32(0), [], []
        own, known = self.code.encode(batch.action), learning_weight(self.spec, batch.alive)
        for i, critic in enumerate(critics):
            group, q = self.groups[i // self.twins], self._predict(critic, i, view, action, own)
            axis = q.ndim - 1
            error, weight = q - take(target, group, axis), take(known, group, axis)
            total = total + mean(batch.weight[:, None] * error**2, weight)
            if i % self.twins == 0:
                errors.append(error)
                values.append(mean(q, weight))
        return total, (merge(errors, self.groups, errors[0].ndim - 1), jnp.stack(values).mean())
