"""What DDPG, TD3 and SAC have in common: critics of state and action, targets, the order of an update.

    y = r + gamma^n Q'(s', a'),   L(Q) = E[w (Q(s, a) - y)^2]

A critic reads its agent's observation and action (`critic="own"`), or the global state (else all observations)
and all actions (`critic="central"`, Lowe et al. 2017, arXiv 1706.02275). Each family says what a' is and how
the policy improves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flockrl.algos.parts import ids, joint, legal, mean, require
from flockrl.algos.replay_learner import Learned, ReplayConfig, ReplayLearner, ReplayState
from flockrl.data.replay import Batch, Replay, gather, typical
from flockrl.draw import Source, split
from flockrl.nets.actions import ActionCode
from flockrl.nets.actor_critic import Network
from flockrl.nets.heads import ILLEGAL
from flockrl.sharing import Group, merge, take
from flockrl.types import Array, EnvSpec, Observation, PyTree


@dataclass(frozen=True)
class OffPolicyConfig(ReplayConfig):
    """Settings that the off-policy actor-critics share."""

    critic: Literal["own", "central"] = "central"
    """What a critic reads: its agent's observation and action, or everyone's."""
    critic_lr: float = 1e-3
    """Adam's learning rate for critics; `lr` is the actors'."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, critic_lr=self.critic_lr > 0)


class Seen(NamedTuple):
    """What critics read. obs: [b, n or 1, F] observations or the state, the same for all n where it is 1.

    action: [b, n or 1, F] codes of own or all actions.
    """

    obs: Array
    action: Array


class OffPolicy(ReplayLearner):
    """Actors and critics. params: {"actor": one per group, "critic": `twins` per group in a row}."""

    twins = 1
    """Critics per group; the smallest estimate counts."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int):
        super().__init__(spec, config, envs, updates, window=config.n_step, samples=config.batch_size)
        self.code = ActionCode(spec)
        self.actors = [self._network(group, self._actor_width(group), 0.01) for group in self.groups]
        self.critics = [
            self._network(group, self._critic_width(group), 1.0) for group in self.groups for _ in range(self.twins)
        ]

    def _network(self, group: Group, outputs: int, scale: float) -> Network:
        number = ids(group, self.config.agent_ids)
        config = self.config
        return Network(
            config.hidden, outputs, config.activation, ids=number, out_scale=scale, picture=self.spec.picture,
            kernel=config.kernel,
        )  # fmt: skip

    # What a family says

    def _actor_width(self, group: Group) -> int:
        return group.action_size

    def _critic_width(self, group: Group) -> int:
        return 1

    @abstractmethod
    def _behave(self, params: PyTree, seen: Observation, memory: PyTree, key: Source) -> tuple[Array, PyTree]:
        """Exploring codes [B, N, A] and the exploration's memory."""

    @abstractmethod
    def _greedy(self, params: PyTree, seen: Observation) -> Array:
        """Codes [B, N, A] without exploration."""

    @abstractmethod
    def _next_values(self, learned: Learned, batch: Batch, key: Array) -> Array:
        """[b, N] value of what followed, by the target networks."""

    def _predict(self, critic: PyTree, index: int, batch: Batch, action: Array) -> Array:
        """[b, n] Q of the replayed actions (codes `action` [b, N, A]) by critic number `index`."""
        group = self.groups[index // self.twins]
        return self._q(index, critic, self._seen(group, batch.obs, batch.state, action))[..., 0]

    @abstractmethod
    def _improve(
        self, learned: Learned, batch: Batch, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        """Policies one step better, targets one step closer. `factor` scales the learning rate."""

    # State

    def networks(self, key: Array) -> PyTree:
        spec = self.spec
        obs = jnp.zeros((1, spec.num_agents, spec.obs_size))
        state = jnp.zeros((1, spec.state_size)) if spec.state_size else None
        action = jnp.zeros((1, spec.num_agents, spec.action_size))
        keys = jax.random.split(key, len(self.actors) + len(self.critics))
        actor = tuple(
            net.init(k, take(obs, group, 1, group.obs_size))["params"]
            for net, k, group in zip(self.actors, keys, self.groups, strict=False)
        )
        inputs = [self._seen(group, obs, state, action) for group in self.groups for _ in range(self.twins)]
        critic = tuple(
            net.init(k, x.obs, beside=x.action)["params"]
            for net, k, x in zip(self.critics, keys[len(actor) :], inputs, strict=True)
        )
        return {"actor": actor, "critic": critic}

    def policy(self, state: ReplayState) -> PyTree:
        """The actors, how far the run is (exploration falls with it), and whether the random warm-up is over."""
        return {
            "actor": state.learned.params["actor"],
            "progress": state.iterations / self.iterations,
            "warm": self._steps(state) >= self.config.learning_starts,
        }

    # Networks

    def _outputs(self, params: Sequence[PyTree], obs: Array) -> list[Array]:
        """What each group's policy network says, [..., n, width]."""
        return [
            net.apply({"params": p}, take(obs, group, obs.ndim - 2, group.obs_size))[0]
            for net, p, group in zip(self.actors, params, self.groups, strict=True)
        ]

    def _seen(self, group: Group, obs: Array, state: Array | None, action: Array) -> Seen:
        """A critic's input for codes [b, N, A]: own [b, n, O] and [b, n, A], or [b, 1, S] and [b, 1, N A] for all."""
        if self.config.critic == "own":
            return Seen(take(obs, group, 1, group.obs_size), take(action, group, 1, group.action_size))
        return Seen(joint(self.spec, obs, state)[:, None], action.reshape(len(action), 1, -1))

    def _seen_with(self, group: Group, obs: Array, state: Array | None, action: Array, own: Array) -> Seen:
        """The same where each agent of the group does `own` [b, n, A] and the others' `action` is held."""
        if self.config.critic == "own":
            return Seen(take(obs, group, 1, group.obs_size), own)
        pad = self.spec.action_size - own.shape[-1]
        own = jnp.pad(own, ((0, 0), (0, 0), (0, pad)))
        mine: Any = np.eye(self.spec.num_agents, dtype=bool)[list(group.agents)][:, :, None]  # [n, N, 1]
        actions = jnp.where(mine, own[:, :, None], action[:, None])
        return Seen(joint(self.spec, obs, state)[:, None], actions.reshape(*own.shape[:2], -1))

    def _q(self, index: int, params: PyTree, x: Seen) -> Array:
        """[b, n, width] outputs of critic number `index` (`twins` per group in a row)."""
        out = self.critics[index].apply({"params": params}, x.obs, beside=x.action)[0]
        return jnp.broadcast_to(out, (len(out), self.groups[index // self.twins].size, out.shape[-1]))

    def _smallest(self, critics: Sequence[PyTree], group_index: int, x: Seen) -> Array:
        """[b, n, width] the smaller of the twins' outputs."""
        first = group_index * self.twins
        values = [self._q(i, critics[i], x) for i in range(first, first + self.twins)]
        return values[0] if self.twins == 1 else jnp.minimum(*values)

    def _team(self, parts: list[Array], alive: Array | None) -> Array:
        """Codes of groups as codes of the team, [b, N, A]; those of dead agents are 0."""
        whole = merge(parts, self.groups, 1, self.spec.action_size)
        return whole if alive is None else whole * alive[..., None]

    def _best(self, outs: Sequence[Array], avail: Array | None, alive: Array | None = None) -> Array:
        """One-hot codes [b, N, A] of each group's best legal discrete action."""
        masks = self._legal(avail)
        best = [jnp.where(mask, out, ILLEGAL).argmax(-1) for out, mask in zip(outs, masks, strict=True)]
        return self._team([jax.nn.one_hot(b, out.shape[-1]) for b, out in zip(best, outs, strict=True)], alive)

    def _legal(self, avail: Array | None) -> list[Array]:
        """[..., n, A] of each group: the actions that exist, and are legal now."""
        masks = [legal(group, avail) for group in self.groups]
        return [
            jnp.asarray(group.legal) if mask is None else mask & group.legal
            for group, mask in zip(self.groups, masks, strict=True)
        ]

    # Acting

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        if not explore:
            return self.code.decode(self._greedy(params, observation)), memory, {}
        random_key, key = split(key)
        chosen, memory = self._behave(params, observation, memory, key)
        random = self.code.random(random_key, len(chosen), observation.avail)
        return self.code.decode(jnp.where(params["warm"], chosen, random)), memory, {}

    # Learning

    def learn(
        self, learned: Learned, replay: Replay, place: tuple[Array, Array, Array], factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        batch = gather(replay, *place, self.config.n_step, self.config.gamma)
        learned, error, metrics = self.step(learned, batch, factor, key)
        return learned, typical(error, batch.alive), metrics

    def step(
        self, learned: Learned, batch: Batch, factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        """One gradient step on one batch: the new state, the critics' errors [b, N], and metrics."""
        target_key, policy_key = jax.random.split(key)
        follows = self._next_values(learned, batch, target_key)
        target = jax.lax.stop_gradient(batch.reward + batch.discount * follows)
        action = self.code.encode(batch.action) * batch.alive[..., None]
        loss = jax.value_and_grad(self._critic_loss, has_aux=True)
        (value, (error, q)), grads = loss(learned.params["critic"], batch, action, target)
        learned = self._descend(learned, "critic", grads, self.config.critic_lr * factor)
        learned, metrics = self._improve(learned, batch, action, policy_key, factor)
        metrics |= {"critic_loss": value, "q": q, "critic_grad_norm": optax.tree.norm(grads)}
        return learned._replace(updates=learned.updates + 1), error, metrics

    def _critic_loss(
        self, critics: Sequence[PyTree], batch: Batch, action: Array, target: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        """Squared errors of all critics, each critic's mean added up; the first twins' errors and mean value."""
        total, errors, values = jnp.float32(0), [], []
        for i, critic in enumerate(critics):
            group = self.groups[i // self.twins]
            q = self._predict(critic, i, batch, action)
            error, alive = q - take(target, group, 1), take(batch.alive, group, 1)
            total = total + mean(batch.weight[:, None] * error**2, alive)
            if i % self.twins == 0:
                errors.append(error)
                values.append(mean(q, alive))
        return total, (merge(errors, self.groups, 1), jnp.stack(values).mean())
