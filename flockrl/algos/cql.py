"""Conservative Q-learning with real actions: SAC whose critics give low values to what the data does not show.

Kumar et al. 2020 (arXiv 2006.04779), CQL(H). To the loss of every critic is added

    conservative E[log int exp Q_i(s, a_i, a_-i) da_i - Q_i(s, a_i, a_-i)],   s, a from the data

The integral over the agent's own action, in units of half its range, is estimated from K uniform actions, K of the
policy at s and K of the policy at s', each weighed by the inverse of its density. The other agents' actions a_-i are
the recorded ones. Discrete policies take the sum over their own legal actions exactly. For teams that only choose,
`conservative` of the Q-learning family does the same without a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.family import Family
from flockrl.algos.off_policy_config import JOINT
from flockrl.algos.parts import mean
from flockrl.algos.replay_learner import Learned
from flockrl.algos.sac import SAC, SACConfig
from flockrl.algos.views import View
from flockrl.core.groups import Group, take
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, PyTree
from flockrl.nets.heads import ILLEGAL


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Settings of conservative SAC."""

    conservative: float = 1.0
    """How hard values of actions that the data does not show are pushed down; 0 is SAC."""
    conservative_actions: int = 10
    """Real actions of each of the three kinds that stand for all actions."""
    normalize_reward: bool = False
    """Count rewards in units of a tenth of the largest discounted sum so far; `conservative` then refers to
    values in this unit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "conservative", least=0)
        check_numbers(self, "conservative_actions", least=1)


def make(spec: EnvSpec, config: CQLConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for rollouts of `envs` columns and a run of `updates` updates."""
    return ConservativeSAC(spec, config, envs, updates).algorithm()


FAMILY = Family(make, CQLConfig, **JOINT)


class ConservativeSAC(SAC):
    """SAC with a penalty on critics."""

    def _penalty(
        self, critics: Sequence[PyTree], learned: Learned, now: View, following: View, action: Array, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        if not self.config.conservative:
            return super()._penalty(critics, learned, now, following, action, key)
        gaps = jnp.stack(self._gaps(critics, learned.params["actor"], now, following, action, key))
        return self.config.conservative * gaps.sum(), {"conservative_gap": gaps.mean()}

    def _gaps(
        self, critics: Sequence[PyTree], actors: Sequence[PyTree], now: View, following: View, action: Array, key: Array
    ) -> list[Array]:
        """How far each critic's soft maximum over an agent's actions lies above its value of what was done."""
        outs = zip(self._outputs(actors, now), self._outputs(actors, following), strict=True)
        keys, masks = jax.random.split(key, len(self.groups)), self._legal(now.seen.avail)
        gaps = []
        for g, (group, (here, there), legal) in enumerate(zip(self.groups, outs, masks, strict=True)):
            others = self._candidates(keys[g], group, here, there[: len(here)], legal) if group.continuous else None
            for i in range(g * self.twins, (g + 1) * self.twins):
                if others is not None:
                    most = self._soft_maximum(i, critics[i], now, action, *others)
                else:
                    q = self._q(i, critics[i], now, self._reads(group, action))
                    most = jax.nn.logsumexp(jnp.where(legal, q, ILLEGAL), axis=-1)
                gap = most - self._predict(critics[i], i, now, action, action)
                gaps.append(mean(gap, take(now.alive, group, gap.ndim - 1)))
        return gaps

    def _candidates(self, key: Array, group: Group, here: Array, there: Array, legal: Array) -> tuple[Array, Array]:
        """Actions that stand for all of a group's: codes [3 K, ..., n, A] and their log-densities [3 K, ..., n].

        here, there: the policy's outputs [..., n, 2 A] at the moments to value and at those that followed.
        """
        count, lead = self.config.conservative_actions, here.shape[:-1]
        even, now, after = (jax.random.split(k, count) for k in jax.random.split(key, 3))
        any_action = jax.vmap(lambda k: jax.random.uniform(k, (*lead, group.action_size), minval=-1.0))(even) * legal
        density = jnp.broadcast_to(-np.log(2.0) * group.legal.sum(-1), (count, *lead))
        draws = [
            jax.vmap(lambda k, out=out: self._sample(k, out, legal, group))(keys)
            for keys, out in ((now, here), (after, there))
        ]
        codes, densities = zip((any_action, density), *draws, strict=True)
        return jnp.concatenate(codes), jnp.concatenate(densities)

    def _soft_maximum(
        self, index: int, critic: PyTree, view: View, action: Array, codes: Array, density: Array
    ) -> Array:
        """[..., n] estimates of log int exp Q over the agent's own action, beside the others' `action`."""
        group = self.groups[index // self.twins]

        def value(own: Array) -> Array:
            return self._q(index, critic, view, self._actions_with(group, action, own))[..., 0]

        return jax.nn.logsumexp(jax.vmap(value)(codes) - density, axis=0) - np.log(len(codes))
