"""Pieces that learners share: what critics read, weighted means, schedules, one gradient step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from flockrl.core.errors import UsageError
from flockrl.core.random import Source, fold_in
from flockrl.core.types import Array, EnvSpec, PyTree, Trajectory

Schedule = Literal["constant", "linear", "cosine", "exponential"]


def require_discrete(spec: EnvSpec, who: str) -> None:
    """Refuse other actions with a sentence that names learners for them."""
    if spec.maskable and not spec.discrete:
        raise UsageError(
            f"{who} needs one choice per agent, and agents of {spec.name} have several at once or real actions: use "
            "ippo, mappo or ireinforce instead, or give the sides players of their own."
        )
    if not spec.discrete:
        raise UsageError(
            f"{who} needs discrete actions, and {spec.name} has continuous ones: use ippo, mappo, ireinforce, maddpg, "
            "matd3 or masac instead."
        )


def require_room(size: int, what: str, setting: str) -> None:
    """Refuse what does not fit into this machine's memory. size: bytes; what: "A replay ... takes"."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > 0.8 * available:
        raise UsageError(
            f"{what} {size / 1e9:.1f} GB, and this machine has {available / 1e9:.1f} GB: choose a smaller {setting}."
        )


def joint(spec: EnvSpec, obs: Array, state: Array | None) -> Array:
    """[..., S] what a centralised critic reads: the global state, or the observations [..., N, O] side by side."""
    if state is not None:
        return state
    sizes = [space.size for space in spec.observations]
    if min(sizes) == spec.obs_size:
        return obs.reshape(*obs.shape[:-2], -1)
    return jnp.concatenate([obs[..., i, :size] for i, size in enumerate(sizes)], axis=-1)


def as_team(trajectory: Trajectory) -> Trajectory:
    """The same experience where everyone is paid the team's reward: the mean over agents of rewards [T, B, N]."""
    paid = jnp.broadcast_to(trajectory.reward.mean(-1, keepdims=True), trajectory.reward.shape)
    return trajectory._replace(reward=paid)


def own_key(spec: EnvSpec, key: Source) -> Source:
    """A key for numbers that are drawn for a whole side at once, another one for each side."""
    return key if spec.whole is None else fold_in(key, spec.places[0])


def mean(x: Array, weight: Array | None) -> Array:
    return x.mean() if weight is None else (x * weight).sum() / jnp.maximum(weight.sum(), 1.0)


def var(x: Array, weight: Array | None) -> Array:
    return mean((x - mean(x, weight)) ** 2, weight)


def schedule_factor(schedule: Schedule, progress: Array) -> Array:
    """A schedule, of the learning rate or of a weight: a factor after this part of the run, from 1 to 0 unless it is
    constant; exponential, where every step takes the same part away, from 1 to a hundredth."""
    progress = jnp.minimum(progress, 1.0)
    factors = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + jnp.cos(jnp.pi * progress)),
        "exponential": 0.01**progress,
    }
    return jnp.asarray(factors[schedule], jnp.float32)


def as_number(setting: Any) -> Array:
    """A setting as a number that the compiler does not merge with others, so that the result is the same to the bit
    whether it is a constant or part of the state. A constant zero stays one, which costs nothing."""
    if isinstance(setting, int | float) and setting == 0:
        return jnp.float32(0)
    return jax.lax.optimization_barrier(jnp.float32(setting))


def adam(max_grad_norm: float | None, eps: float, freeze: str = "") -> optax.GradientTransformation:
    """Adam without its learning rate, behind a clip of the gradient's norm. freeze: layers that stay as they are, whose
    gradients count as 0."""
    clip = optax.identity() if max_grad_norm is None else optax.clip_by_global_norm(max_grad_norm)
    moving = optax.chain(clip, optax.scale_by_adam(eps=eps))
    if not freeze:
        return moving
    layers = layer_names(freeze)

    def hold(path: Any, grad: Array) -> Array:
        return jnp.zeros_like(grad) if in_layers(path, layers) else grad

    return optax.chain(optax.stateless(lambda grads, _: jax.tree_util.tree_map_with_path(hold, grads)), moving)


def layer_names(text: str) -> tuple[str, ...]:
    """What a user names: `torso,head.bias` as a tuple."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def in_layers(path: Any, layers: Sequence[str]) -> bool:
    """Whether a leaf of a tree stands in one of the layers. A layer is a name on its path, or several in a row with
    dots between them, such as torso or torso.dense_0."""
    names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
    return any(f".{layer}." in f".{'.'.join(names)}." for layer in layers)


def check_layers(setting: str, text: str, trees: Sequence[PyTree]) -> None:
    """Refuse names of layers that none of the trees has."""
    paths = [path for tree in trees for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    for layer in layer_names(text):
        if not any(in_layers(path, (layer,)) for path in paths):
            names = {str(key.key) for path in paths for key in path if isinstance(getattr(key, "key", None), str)}
            raise UsageError(f"{setting}: there is no layer {layer!r}, but {', '.join(sorted(names))}.")


def descend(
    optimiser: optax.GradientTransformation,
    networks: Sequence[PyTree],
    states: Sequence[PyTree],
    grads: Sequence[PyTree],
    lr: Array,
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
    """One step of each network on its own, so that the norms of groups do not touch each other."""
    moved, after = [], []
    for network, state, grad in zip(networks, states, grads, strict=True):
        step, state = optimiser.update(grad, state)
        moved.append(jax.tree.map(lambda p, s: p - lr * s, network, step))
        after.append(state)
    return tuple(moved), tuple(after)
