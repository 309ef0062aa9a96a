"""The network of a team: who hears whom, sharing, memory, and stretches against a loop over time."""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.groups import make_groups, merge
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.policies.network import TeamNetwork, one_step, unroll

T, B, N = 4, 6, 4
SPEC = EnvSpec(
    "field", ("wolf_0", "sheep_0", "wolf_1", "sheep_1"), (Box((3,)), Box((5,)), Box((3,)), Box((5,))),
    (Discrete(2), Discrete(3), Discrete(2), Discrete(3)), max_steps=9, neighbours=True,
)  # fmt: skip
SHARES = ["all", "groups", "none"]
MEMORIES = ["none", "gru"]


class Hearsay(nn.Module):
    """Own features beside the mean of those of all others that live and are near."""

    @nn.compact
    def __call__(self, own, team, alive, neighbours, agents):
        heard = jnp.broadcast_to(~np.eye(team.shape[-2], dtype=bool), (*team.shape[:-1], team.shape[-2]))
        if alive is not None:
            heard &= alive[..., None, :]
        if neighbours is not None:
            heard &= neighbours
        heard = heard[..., np.array(agents), :, None]
        total = jnp.where(heard, team[..., None, :, :], 0.0).sum(-2)
        return jnp.concatenate([own, nn.Dense(3)(total / jnp.maximum(heard.sum(-2), 1))], -1)


class Silence(nn.Module):
    """Everyone keeps to itself."""

    def __call__(self, own, team, alive, neighbours, agents):
        return own


def network(share="groups", memory="none", exchange=None):
    config = SimpleNamespace(
        hidden=(6,), activation="tanh", kernel=None, agent_ids=True, memory=memory, memory_size=5
    )  # fmt: skip
    groups = make_groups(SPEC, share)
    talk = None if exchange is None else lambda group: exchange()
    return TeamNetwork(SPEC, groups, config, [g.action_size for g in groups], out_scale=1.0, exchange=talk)


def initial(net, seed=0):
    return jax.jit(lambda key: net.init(jax.random.split(key, len(net.groups))))(jax.random.key(seed))


def sights(seed=0):
    """T moments of B teams: observations, who lives, who perceives whom; and where episodes begin."""
    rng = np.random.default_rng(seed)
    width = np.array([box.size for box in SPEC.observations])
    obs = rng.normal(size=(T, B, N, SPEC.obs_size)) * (np.arange(SPEC.obs_size) < width[:, None])
    alive, near = rng.random((T, B, N)) < 0.7, rng.random((T, B, N, N)) < 0.6
    first = np.zeros((T, B), bool)
    first[2, :2] = first[0, 2:4] = True
    seen = Observation(obs.astype(np.float32), alive=alive, neighbours=near)
    return jax.tree.map(jnp.asarray, seen), jnp.asarray(first)


def team_output(net, params, seen, first):
    """[T, B, N, A] of everyone, in the order of the team."""
    outs = [out for out, _ in net(params, seen, net.blank(B), first)]
    return merge(outs, net.groups, 2, SPEC.action_size)


@pytest.mark.parametrize(
    ("share", "memory", "told"), [*((s, m, True) for s in SHARES for m in MEMORIES), ("groups", "gru", False)]
)
def test_features_reach_those_who_may_hear_them_and_nobody_else(share, memory, told):
    """Each agent in turn sees something else in the second step: exactly its hearers' outputs change, to the bit."""
    net = network(share, memory, Hearsay)
    params, (seen, first) = initial(net), sights()
    alive, near = np.asarray(seen.alive), np.asarray(seen.neighbours)
    if not told:
        seen = seen._replace(alive=None, neighbours=None)
        alive, near = np.ones_like(alive), np.ones_like(near)
    run = jax.jit(lambda obs: team_output(net, params, seen._replace(obs=obs), first))
    before = np.asarray(run(seen.obs))
    for j in range(N):
        after = np.asarray(run(seen.obs.at[1, :, j, :3].add(1.0)))
        told_apart = np.zeros((T, B), bool)
        told_apart[1] = True
        if memory == "gru":
            told_apart[2:] = ~np.cumsum(np.asarray(first)[2:], axis=0).astype(bool)
        hears = alive[:, :, None, j] & near[:, :, :, j] | (np.arange(N) == j)
        np.testing.assert_array_equal((before != after).any(-1), told_apart[..., None] & hears)


@pytest.mark.parametrize("memory", MEMORIES)
def test_gradients_pass_from_one_agent_into_the_torso_of_another(memory):
    """Unshared agents: what agent 0 says trains the features of living neighbours, and not how they speak."""
    net = network("none", memory, Hearsay)
    params, (seen, first) = initial(net), sights()
    alive = jnp.ones((T, B, N), bool).at[..., 2].set(False)
    near = jnp.ones((T, B, N, N), bool).at[..., 0, 3].set(False)
    seen = seen._replace(alive=alive, neighbours=near)
    slopes = jax.jit(jax.grad(lambda p: (team_output(net, p, seen, first)[..., 0, :] ** 2).sum()))(params)
    size = lambda tree: max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))  # noqa: E731
    assert size(slopes[0]["head"]) > 1e-3
    assert size(slopes[1]["torso"]) > 1e-3
    assert size(slopes[1]["head"]) == 0
    assert size(slopes[2]) == size(slopes[3]) == 0


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("share", SHARES)
def test_an_exchange_that_says_nothing_changes_nothing(share, memory):
    plain, silent = network(share, memory), network(share, memory, Silence)
    params, (seen, first) = initial(plain), sights()
    jax.tree.map(np.testing.assert_array_equal, params, initial(silent))
    both = jax.jit(lambda seen: [net(params, seen, net.blank(B), first) for net in (plain, silent)])
    jax.tree.map(np.testing.assert_array_equal, *both(seen))


@pytest.mark.parametrize(
    ("share", "memory", "exchange"),
    [*((share, "gru", Hearsay) for share in SHARES), ("groups", "gru", None), ("groups", "none", Hearsay)],
)
def test_single_steps_equal_a_whole_sequence(share, memory, exchange):
    net = network(share, memory, exchange)
    params, (seen, first) = initial(net), sights()
    whole = jax.jit(lambda seen: net(params, seen, net.blank(B), first))(seen)
    step, remembered = jax.jit(lambda seen, memory: net.step(params, seen, memory)), net.memory(B)
    assert net.recurrent == (memory == "gru") == (len(jax.tree.leaves(remembered)) == len(net.groups))
    for t in range(T):
        remembered = jax.tree.map(lambda h, t=t: jnp.where(first[t][:, None, None], 0.0, h), remembered)
        outs, remembered = step(jax.tree.map(lambda x, t=t: x[t], seen), remembered)
        for g, (out, after) in enumerate(whole):
            np.testing.assert_allclose(outs[g], out[t], atol=1e-6)
            if memory == "gru":
                np.testing.assert_allclose(remembered[g], after[t], atol=1e-6)


def by_hand(net, params, held, seen, following, first, burn_in):
    """Outputs of each step after the burn-in, and of what followed it, by a loop that uses `held` for the burn-in."""
    step, memory, now, later = jax.jit(net.step), net.blank(B), [], []
    for t in range(T):
        memory = tuple(h * ~first[t][:, None, None] for h in memory)
        outs, memory = step(held if t < burn_in else params, jax.tree.map(lambda x, t=t: x[t], seen), memory)
        if t >= burn_in:
            now.append(outs)
            later.append(step(params, jax.tree.map(lambda x, t=t: x[t], following), memory)[0])
    return jax.tree.map(lambda *rows: jnp.stack(rows), *now), jax.tree.map(lambda *rows: jnp.stack(rows), *later)


@pytest.mark.parametrize(("burn_in", "exchange"), [(0, None), (2, Hearsay)])
def test_stretches_equal_a_loop_over_time_and_burn_in_passes_no_gradients(burn_in, exchange):
    net = network("groups", "gru", exchange)
    params, (seen, first), (following, _) = initial(net), sights(), sights(1)

    def along(params):
        def apply(seen, memory, first):
            found = net(params, seen, memory, first)
            return [out for out, _ in found], tuple(after for _, after in found)

        outs, memories = unroll(apply, net.blank(B), seen, first, burn_in)
        found = outs, one_step(apply, jax.tree.map(lambda x: x[burn_in:], following), memories)
        return loss(found), found

    def loss(found):
        return sum((x**2).sum() for x in jax.tree.leaves(found))

    def manual(params, held):
        found = by_hand(net, params, held, seen, following, first, burn_in)
        return loss(found), found

    slopes, found = jax.jit(jax.grad(along, has_aux=True))(params)
    (wanted_slopes, through), wanted = jax.grad(manual, argnums=(0, 1), has_aux=True)(params, params)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)  # noqa: E731
    jax.tree.map(close, found, wanted)
    jax.tree.map(close, slopes, wanted_slopes)
    assert (max(float(jnp.abs(x).max()) for x in jax.tree.leaves(through)) > 1e-2) == (burn_in > 0)
