"""What PPO and REINFORCE have in common: critics, values of a rollout, their scale, running moments.

A critic reads its agent's own observation ("own"), the global state, else all observations ("central"), or that and the
agent's own observation ("agent"). There may be none. Where networks read sets of entities, a central critic reads the
set of what all agents of its group perceive. Each family says how a rollout becomes a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.counterfactual import ChoiceCritic
from flockrl.algos.defaults import settle
from flockrl.algos.on_policy_config import Reads
from flockrl.algos.opponents import foreseen_size
from flockrl.algos.parts import adam, as_number, check_layers, joint, layer_names, mean, schedule_factor, var
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, begins, merge, pooling, take
from flockrl.core.types import Algorithm, Array, Critic, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.network import Network
from flockrl.nets.normalisation import Moments, moments, observe
from flockrl.policies.network import ids, make_network
from flockrl.policies.stochastic import StochasticPolicy


class OnPolicyState(NamedTuple):
    """Everything that learning changes. params: {"actor", "critic"}, a tuple with one entry per group each.

    Without a critic there is no "critic" in `params`, and `value_moments` and `critic_memory` are empty.
    value_moments: of returns; until an episode terminates about the mean of their rollout, with a mean of 0.
    paid: moments of what was earned after each step, within its rollout, which no critic had a say in.
    magnet: PPO's magnet policy, one entry per group, where it is not simply the policy before the update.
    """

    params: PyTree
    optimiser: PyTree
    obs_moments: Moments | tuple[()]
    state_moments: Moments | tuple[()]
    value_moments: Moments | tuple[()]
    paid: Moments
    critic_memory: PyTree
    updates: Array
    magnet: PyTree = ()


def require_whole_episodes(spec: EnvSpec, steps: int, without: str, instead: str) -> None:
    """Refuse rollouts that are shorter than an episode, where nothing estimates what follows them.

    without: what there is none of; instead: what to use for shorter ones.
    """
    if steps < spec.max_steps:
        raise UsageError(
            f"Without a {without} a rollout must hold whole episodes, and those of {spec.name} have up to "
            f"{spec.max_steps} steps, not {steps}: use --rollout-steps {spec.max_steps} or more, or {instead}."
        )


class ValueEstimates(NamedTuple):
    """What the critics estimate along a rollout. value, next_value: [T, B, N] of each step and of what followed it, in
    units of returns; scale: mean and deviation [N] of the critics' own units; memories: theirs after each step."""

    value: Array
    next_value: Array
    scale: tuple[Array, Array]
    memories: PyTree


class OnPolicy(StochasticPolicy, ABC):
    """A team's policies and critics of their states' values. Its methods are pure. Families say how to learn."""

    death_mask = False
    """Whether critics read zeros for dead agents."""
    choice_critic: ChoiceCritic | None = None
    """Critics of each agent's choices, where advantages are counterfactual."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int, critic: Reads):
        config, self.note = settle(config, spec, envs, updates)
        super().__init__(spec, config, foreseen_size(spec, config))
        self.envs, self.updates = envs, updates
        self.critic: Any = critic
        self.critics: list[Network] = []
        if critic == "central" and config.net != "flat":
            if spec.state_size:
                raise UsageError(
                    f"Critics of entities read what agents perceive, and not the global state of {spec.name}: use "
                    "--critic own (for reinforce --baseline own), or --net flat."
                )
            self.critic = "team"
            self.critics = [make_network(spec, config, 1, group, team=True) for group in self.groups]
        elif critic == "central":
            self.critics = [make_network(spec, config, group.size) for group in self.groups]
        elif critic != "none":
            sees = [group if critic == "own" else None for group in self.groups]
            self.critics = [
                make_network(spec, config, 1, own, ids=ids(spec, group, config))
                for group, own in zip(self.groups, sees, strict=True)
            ]
        self.pool = pooling(self.groups, spec.num_agents)
        self.optimiser = adam(config.max_grad_norm, eps=1e-5, freeze=config.freeze)
        heads = [layer for layer in layer_names(config.freeze) if layer.partition(".")[0] == "head"]
        if heads and self.critics and config.normalize_value:
            raise UsageError("freeze: PopArt rescales the critics' head: freeze other layers, or --no-normalize-value.")

    @property
    def judged(self) -> tuple[Group, ...]:
        """The groups that have critics of their own: all of them, or the first where one critic serves all."""
        return self.groups[: len(self.critics)]

    def algorithm(self) -> Algorithm:
        steps, talk = self.config.rollout_steps, self.actor.talk
        return Algorithm(
            self.init, self.policy, self.act, self.update, self.memory, steps, self.note, kl=self.kl,
            says=None if talk is None else self.says, talk=talk, choices=self.choices if self.spec.discrete else None,
            scores=self.scores if self.spec.discrete else None, attends=self.attends if talk and talk.weighs else None,
            critic=Critic(self._valuing, self.values_along) if self.critics else None,
        )  # fmt: skip

    @abstractmethod
    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        """Learn from one rollout."""

    # State

    def init(self, key: Array) -> OnPolicyState:
        spec = self.spec
        state = jnp.zeros((1, 1, spec.state_size)) if spec.state_size else None
        seen = Observation(jnp.zeros((1, 1, spec.num_agents, spec.obs_size)), state=state)
        first = jnp.zeros((1, 1), bool)
        keys = jax.random.split(key, (2, self.groups[0].of))[:, np.array([group.number for group in self.groups])]
        params = {"actor": self.actor.init(keys[0])}
        if self.critics:
            params["critic"] = tuple(
                net.init(k, self._critic_input(group, seen), h, first)["params"]
                for net, k, group, h in zip(
                    self.critics, keys[1][: len(self.judged)], self.judged, self._critic_memory(1), strict=True
                )
            )
        if self.choice_critic is not None:
            choice_keys = jax.random.split(jax.random.fold_in(key, 1), self.groups[0].of)
            params["choice"] = self.choice_critic.init([choice_keys[g.number] for g in self.groups], seen)
        check_layers("freeze", self.config.freeze, [net for nets in params.values() for net in nets])
        normal = self.config.normalize_obs
        return OnPolicyState(
            params=params,
            optimiser={name: tuple(map(self.optimiser.init, nets)) for name, nets in params.items()},
            obs_moments=moments((spec.num_agents, spec.obs_size)) if normal else (),
            state_moments=moments((1, spec.state_size)) if normal and spec.state_size and self.critics else (),
            value_moments=moments((spec.num_agents,)) if self.critics else (),
            paid=moments((spec.num_agents,)),
            critic_memory=self._critic_memory(self.envs),
            updates=jnp.int32(0),
        )

    def choices(self, state: OnPolicyState, trajectory: Trajectory) -> Array:
        """[T, B, N, A] how likely each choice is along a rollout."""
        return self._choices(state.params["actor"], self._seen(state, trajectory.observation), trajectory)

    def policy(self, state: OnPolicyState) -> PyTree:
        return {"actor": state.params["actor"], "obs_moments": state.obs_moments}

    def _critic_memory(self, batch: int) -> PyTree:
        if self.critic == "none":
            return ()
        if self.config.memory == "none":
            return ((),) * len(self.judged)
        sizes = [group.size if self.critic != "central" else 1 for group in self.judged]
        return tuple(jnp.zeros((batch, n, self.config.memory_size)) for n in sizes)

    # Networks

    def _critic_input(self, group: Group, seen: Observation) -> Array:
        """[..., n, O] own observations; [..., S] the state, as one pseudo-agent [..., 1, S] for a GRU; or both, with a
        row [..., n, S + O] for each agent. A critic of the "team" reads own observations, and who lives beside them."""
        axis = seen.obs.ndim - 2
        if self.critic == "central":
            return joint(self.spec, seen.obs, seen.state)[..., None, :]
        x = take(seen.obs, group, axis, group.obs_size)
        if self.critic == "agent":
            whole = joint(self.spec, seen.obs, seen.state)[..., None, :]
            x = jnp.concatenate([jnp.broadcast_to(whole, (*x.shape[:-1], whole.shape[-1])), x], -1)
        if self.critic == "team":
            there = jnp.ones(x.shape[:-1]) if seen.alive is None else take(seen.alive, group, axis) * 1.0
            x = jnp.concatenate([x, there[..., None]], -1)
        if self.death_mask and seen.alive is not None:
            x = jnp.where(take(seen.alive, group, axis)[..., None], x, 0.0)
        return x

    def _values(self, params: PyTree, seen: Observation, memory: PyTree, first: Array | None) -> tuple[Array, PyTree]:
        """Values [..., N] in the critic's own units and each group's memory after each step."""
        outs, memories = [], []
        for net, p, group, h in zip(self.critics, params, self.judged, memory, strict=True):
            opens = first if self.critic == "central" else begins(self.spec, group, first, seen.alive)
            out, after = net.apply({"params": p}, self._critic_input(group, seen), h, opens)
            outs.append(out[..., 0, :] if self.critic == "central" else out[..., 0])
            memories.append(after)
        return merge(outs, self.groups, axis=outs[0].ndim - 1), tuple(memories)

    # What a rollout is worth

    def _valuing(self, state: OnPolicyState) -> OnPolicyState:
        """What of a state the critics need."""
        bare: Any = state._replace(optimiser=(), paid=(), critic_memory=(), updates=(), magnet=())  # type: ignore[arg-type]
        return bare._replace(params={"critic": state.params["critic"]})

    def values_along(self, state: OnPolicyState, trajectory: Trajectory) -> Array:
        """[T, B, N] values of each step in units of returns, by critics that remember nothing from before."""
        seen, memory = self._seen(state, trajectory.observation), self._critic_memory(trajectory.first.shape[1])
        raw, _ = self._values(state.params["critic"], seen, memory, trajectory.first)
        offset, std = self._value_scale(state.value_moments)
        return raw * std + offset

    def _seen(self, state: OnPolicyState, seen: Observation) -> Observation:
        """An observation as the networks read it, normalised."""
        central = None if seen.state is None else self._normal(seen.state, state.state_moments)
        return seen._replace(obs=self._normal(seen.obs, state.obs_moments), state=central)

    def _estimate(self, state: OnPolicyState, trajectory: Trajectory, seen: Observation) -> ValueEstimates:
        critic, memory = state.params["critic"], state.critic_memory
        raw, memories = self._values(critic, seen, memory, trajectory.first)
        offset, std = self._value_scale(state.value_moments)
        value = raw * std + offset
        next_value = self._next_values(state, trajectory, raw, memories) * std + offset
        return ValueEstimates(value, next_value, (offset, std), memories)

    def _value_scale(self, stats: Any) -> tuple[Array, Array]:
        """Mean and deviation [N] that turn the critic's units into returns."""
        return stats.mean, stats.std if self.config.normalize_value else jnp.ones_like(stats.std)

    def _next_values(self, state: OnPolicyState, trajectory: Trajectory, raw: Array, memories: PyTree) -> Array:
        """[T, B, N] value of what followed each step, in the critic's units.

        Inside an episode that is the next row. Final observations are looked at only in the steps
        where some episode was cut, which is rare.
        """
        shifted = jnp.concatenate([raw[1:], jnp.zeros_like(raw[:1])])
        cut = trajectory.truncated.any(-1)
        cut = cut.at[-1].set(True)

        def final(now: tuple[Array, Observation, PyTree]) -> Array:
            seen = jax.tree.map(lambda x: x[None], self._seen(state, now[1]))
            first = jnp.zeros((1, raw.shape[1]), bool)
            return self._values(state.params["critic"], seen, now[2], first)[0][0]

        def step(now: tuple[Array, Observation, PyTree]) -> Array:
            return jax.lax.cond(now[0].any(), final, lambda _: jnp.zeros_like(raw[0]), now)

        memories = memories if self.recurrent else state.critic_memory
        following = Observation(trajectory.next_obs, state=trajectory.next_state, alive=trajectory.next_alive)
        finals = jax.lax.map(step, (cut, following, memories))
        return jnp.where(cut[..., None], finals, shifted)

    def _rescaled(
        self, state: OnPolicyState, estimates: ValueEstimates, returns: Array, weight: Array | None, ended: Array
    ) -> tuple[dict[str, PyTree], Any, tuple[Array, Array], Array]:
        """Critics by name, in units that know these returns [T, B, N], the moments of those, their scale, and by how
        much [N] these critics' values are above the estimates. ended: [T, B, N] whose episode terminated.

        While no episode has terminated, values learn from values, and their level is free to wander. What all lack on
        average is then the least squares of the heads' biases: gradient steps would bend all features after it, and
        such bends last. Once an episode terminated, ends hold the level, and it is learned like all else.
        """
        stats: Any = state.value_moments
        (mean, std), lacking = estimates.scale, jnp.zeros_like(estimates.scale[0])
        if self.config.normalize_value:

            def average(x: Array) -> Array:
                return observe(moments(mean.shape), x, weight, self.pool, slowest=1.0).mean

            held = ended.any() | (stats.mean != 0).any()
            stats = observe(stats, returns - jnp.where(held, 0.0, average(returns)), weight, self.pool, slowest=0.01)
            stats = stats._replace(mean=jnp.where(held, stats.mean, 0.0))
            lacking = jnp.where(held, 0.0, average(returns - estimates.value))
        new_mean, new_std = self._value_scale(stats)
        critics = {"critic": self._popart(state.params["critic"], std, mean + lacking, new_std, new_mean)}
        if "choice" in state.params:  # a difference of values has units, but no mean
            nothing = jnp.zeros_like(mean)
            critics["choice"] = self._popart(state.params["choice"], std, nothing, new_std, nothing)
        return critics, stats, (new_mean, new_std), lacking

    def _popart(self, critic: PyTree, std: Array, mean: Array, new_std: Array, new_mean: Array) -> PyTree:
        """Rescale the last layers so that the values they stand for do not move (van Hasselt et al. 2016)."""
        if not self.config.normalize_value:
            return critic
        scaled = []
        for group, p in zip(self.judged, critic, strict=True):
            i = group.agents[0]
            ratio = std[i] / new_std[i]
            bias = ratio * p["head"]["bias"] + (mean[i] - new_mean[i]) / new_std[i]
            scaled.append({**p, "head": {"kernel": p["head"]["kernel"] * ratio, "bias": bias}})
        return tuple(scaled)

    def _normal_advantage(
        self, paid: Moments, earned: Array, advantage: Array, weight: Array | None
    ) -> tuple[Array, Moments]:
        """Advantages [T, B, N] with mean 0 and deviation 1 within each group, and the moments `paid` after it.

        Before anything but the same reward was ever paid, advantages are the critics' noise and count nothing; later
        they are divided by at least a part of the deviation of what was earned, so that what is small stays small.
        earned: [T, B, N] discounted rewards from each step on, within the rollout, without anybody's estimate.
        """
        if not self.config.normalize_advantage:
            return advantage, paid
        paid = observe(paid, earned, weight, self.pool, slowest=0.01)
        parts = []
        for group in self.groups:
            a = take(advantage, group, 2)
            w = None if weight is None else take(weight, group, 2)
            scale = jnp.sqrt(paid.var[group.agents[0]])
            normal = (a - mean(a, w)) / (jnp.maximum(jnp.sqrt(var(a, w)), self.config.advantage_floor * scale) + 1e-8)
            parts.append(jnp.where(scale > 0, normal, 0.0) if self.config.advantage_floor else normal)
        return merge(parts, self.groups, 2), paid

    def _with_bonus(self, advantage: Array, trajectory: Trajectory) -> Array:
        """Advantages [T, B, N] with those of an exploration bonus, where there is one (`wrappers.bonus`)."""
        more = trajectory.extras.get("bonus_advantage")
        return advantage if more is None else advantage + more

    # The end of an update

    def _lr(self, state: OnPolicyState) -> Array:
        return self.config.lr * schedule_factor(self.config.lr_schedule, state.updates / self.updates)

    def _entropy(self, state: OnPolicyState) -> Array:
        """The weight of the entropy bonus."""
        weight, schedule = as_number(self.config.entropy), self.config.entropy_schedule
        return weight if schedule == "constant" else weight * schedule_factor(schedule, state.updates / self.updates)

    def _explained(self, returns: Array, value: Array, weight: Array | None) -> Array:
        """The part of the returns' variance that the critic foresaw."""
        return 1 - mean((returns - value) ** 2, weight) / (var(returns, weight) + 1e-8)

    def _moved(
        self, state: OnPolicyState, trajectory: Trajectory, weight: Array | None, memories: PyTree
    ) -> OnPolicyState:
        """One update further: observations' moments, the critics' memory after the rollout, the counter."""
        obs_moments, state_moments = state.obs_moments, state.state_moments
        if isinstance(obs_moments, Moments):
            obs_moments = observe(obs_moments, trajectory.obs, weight, self.pool, slowest=0.001)
        if isinstance(state_moments, Moments) and trajectory.state is not None:
            one, there = np.zeros(1, np.int32), None if weight is None else weight.max(-1, keepdims=True)
            state_moments = observe(state_moments, trajectory.state[:, :, None], there, one, slowest=0.001)
        memory = jax.tree.map(lambda h: h[-1], memories)
        return state._replace(
            obs_moments=obs_moments, state_moments=state_moments, critic_memory=memory, updates=state.updates + 1
        )
