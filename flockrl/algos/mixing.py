"""How Q-learning mixes the agents' values: the mixer of a side, and what its samples cost."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.algos.q_config import QConfig
from flockrl.core.types import Array, EnvSpec, PyTree
from flockrl.nets.mixers import Constraint, Dueling, Joint, Looking, Monotonic, Sum, Weighted, total


def make_mixer(spec: EnvSpec, config: QConfig) -> nn.Module:
    """The mixer of one side, as the config names it."""
    size, hyper = config.of_mixer("mixer_size"), config.of_mixer("hyper_size")
    mixer: nn.Module = {
        "sum": Sum(),
        "monotonic": Monotonic(size, hyper),
        "qplex": Dueling(hyper),
        "weighted": Weighted(size, hyper, config.hidden),
        "qtran": Constraint(config.hidden),
    }[config.mixer]
    reads = config.mixer != "sum" and not spec.state_size
    return Looking(mixer, spec.sight) if spec.sight.pictures and reads else mixer


def side_loss(
    config: QConfig, net: Any, params: PyTree, done: Joint, best: Joint, target: Array
) -> tuple[Array, Array]:
    """What one side's samples cost [T, b], and the error of its joint value."""
    hold = jax.lax.stop_gradient
    if config.mixer == "weighted":
        mixed, central = net.apply(params, done)
        low = mixed > target
        if config.of_mixer("weighting") == "central":
            chosen = (done.action == best.action).all((-1, -2))
            low = ~(chosen | (target > net.apply(params, best)[1]))
        scale = jnp.where(hold(low), config.of_mixer("low_weight"), 1.0)
        return scale * (mixed - target) ** 2 + (central - target) ** 2, central - target
    if config.mixer == "qtran":
        # The sum of values must meet Q_jt - V at the best joint action and not lie below it elsewhere.
        (value, rest), (top, _) = net.apply(params, done), net.apply(params, best)
        at_best = total(best.q) - hold(top) + rest
        elsewhere = jnp.minimum(total(done.q) - hold(value) + rest, 0.0)
        conditions = config.of_mixer("opt_weight") * at_best**2 + config.of_mixer("nopt_weight") * elsewhere**2
        return (value - target) ** 2 + conditions, value - target
    error = net.apply(params, done) - target
    return error**2, error
