"""The network of a team: who hears whom, sharing, memory, and stretches against a loop over time."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.comm.settings import CommConfig
from flockrl.core.groups import make_groups, merge
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, choose
from flockrl.policies.network import TeamNetwork, one_step, unroll

T, B, N = 4, 6, 4
SPEC = EnvSpec(
    "field", ("wolf_0", "sheep_0", "wolf_1", "sheep_1"), (Box((3,)), Box((5,)), Box((3,)), Box((5,))),
    (Discrete(2), Discrete(3), Discrete(2), Discrete(3)), max_steps=9, neighbours=True,
)  # fmt: skip
SHARES = ["all", "groups", "none"]
MEMORIES = ["none", "gru"]


NEAR = {"comm": "commnet", "channel": "topology=neighbours"}
LATE = {"comm": "tarmac", "comm_rounds": 2, "channel": "topology=neighbours,delay=2"}


def network(share="groups", memory="none", talk=None, spec=SPEC):
    talk = CommConfig(comm_size=3, **talk) if talk else CommConfig()
    kept = {name: getattr(talk, name) for name in ("comm", "channel", "rounds", "heads", "message_size", "early")}
    config = SimpleNamespace(
        hidden=(6,), activation="tanh", kernel=None, agent_ids=True, memory=memory, memory_size=5, **kept
    )  # fmt: skip
    groups = make_groups(spec, share)
    return TeamNetwork(spec, groups, config, [g.action_size for g in groups], out_scale=1.0)


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
    outs, _ = net(params, seen, net.blank(B), first)
    return merge(outs, net.groups, 2, SPEC.action_size)


@pytest.mark.parametrize(
    ("share", "memory", "told"), [*((s, m, True) for s in SHARES for m in MEMORIES), ("groups", "gru", False)]
)
def test_features_reach_those_who_may_hear_them_and_nobody_else(share, memory, told):
    """Each agent in turn sees something else in the second step: exactly its hearers' outputs change, to the bit."""
    net = network(share, memory, NEAR if told else {"comm": "commnet"})
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
        hears = alive & alive[:, :, None, j] & near[:, :, :, j] | (np.arange(N) == j)
        np.testing.assert_array_equal((before != after).any(-1), told_apart[..., None] & hears)


@pytest.mark.parametrize("memory", MEMORIES)
def test_gradients_pass_from_one_agent_into_the_torso_of_another(memory):
    """Unshared agents: what agent 0 does trains the features of living neighbours, and not how they act."""
    net = network("none", memory, NEAR)
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


@pytest.mark.parametrize(
    ("share", "memory", "talk"),
    [
        *((share, "gru", NEAR) for share in SHARES), ("groups", "gru", None), ("groups", "none", NEAR),
        ("groups", "none", LATE), ("none", "gru", LATE),
    ],
)  # fmt: skip
def test_single_steps_equal_a_whole_sequence(share, memory, talk):
    net = network(share, memory, talk)
    params, (seen, first) = initial(net), sights()
    whole, after = jax.jit(lambda seen: net(params, seen, net.blank(B), first))(seen)
    step, remembered = jax.jit(lambda seen, memory: net.step(params, seen, memory)), net.memory(B)
    assert net.recurrent == (memory == "gru" or talk is LATE)
    for t in range(T):
        remembered = choose(first[t], net.memory(B), remembered)
        outs, remembered, _ = step(jax.tree.map(lambda x, t=t: x[t], seen), remembered)
        for g, out in enumerate(whole):
            np.testing.assert_allclose(outs[g], out[t], atol=1e-6)
        if net.recurrent:
            jax.tree.map(lambda a, b, t=t: np.testing.assert_allclose(a, b[t], atol=1e-6), remembered, after)


def by_hand(net, params, held, seen, following, first, burn_in):
    """Outputs of each step after the burn-in, and of what followed it, by a loop that uses `held` for the burn-in."""
    step, memory, now, later = jax.jit(net.step), net.blank(B), [], []
    for t in range(T):
        memory = choose(first[t], net.blank(B), memory)
        outs, memory, _ = step(held if t < burn_in else params, jax.tree.map(lambda x, t=t: x[t], seen), memory)
        if t >= burn_in:
            now.append(outs)
            later.append(step(params, jax.tree.map(lambda x, t=t: x[t], following), memory)[0])
    return jax.tree.map(lambda *rows: jnp.stack(rows), *now), jax.tree.map(lambda *rows: jnp.stack(rows), *later)


@pytest.mark.parametrize(("burn_in", "talk"), [(0, None), (2, NEAR), (2, LATE)])
def test_stretches_equal_a_loop_over_time_and_burn_in_passes_no_gradients(burn_in, talk):
    net = network("groups", "gru", talk)
    params, (seen, first), (following, _) = initial(net), sights(), sights(1)

    def along(params):
        def apply(seen, memory, first):
            return net(params, seen, memory, first)

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


@pytest.mark.parametrize("anonymous", [False, True])
def test_anonymous_agents_are_not_told_apart(anonymous):
    net = network(spec=dataclasses.replace(SPEC, anonymous=anonymous))
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), initial(net))
    seen, first = sights()
    swapped = seen._replace(obs=seen.obs[:, :, np.array([2, 1, 0, 3])])  # the wolves change places
    wolves, others = (team_output(net, params, view, first)[:, :, ::2] for view in (seen, swapped))
    assert np.allclose(wolves[:, :, ::-1], others, atol=1e-6) == anonymous


@pytest.mark.parametrize("talk", [None, {"comm": "dial", "channel": "topology=neighbours"}])
@pytest.mark.parametrize("respawn", [True, False])
def test_a_new_life_knows_nothing_of_the_last_one(respawn, talk):
    """An agent sees something else in the first step and is dead in the second: from then on its memory is as it would
    have been, to the bit, if agents respawn; that of one who lived on is another. Step by step it is all the same."""
    net = network("groups", "gru", talk, dataclasses.replace(SPEC, respawn=respawn))
    params, (seen, first) = initial(net), sights()
    alive = seen.alive.at[:2].set(True).at[1, :, :2].set(False)  # the first wolf and the first sheep are dead
    seen, first = seen._replace(alive=alive.at[2:].set(True), seeds=None), jnp.zeros_like(first)
    if talk:  # nothing is heard
        luck = jnp.zeros((T, B, N, 2), jnp.uint32)
        seen = seen._replace(seeds=luck, neighbours=jnp.zeros_like(seen.neighbours))

    @jax.jit
    def memories(obs):
        return merge(net._apart(net(params, seen._replace(obs=obs), net.blank(B), first)[1])[0], net.groups, 2)

    before, after = memories(seen.obs), memories(seen.obs.at[0, :, :, :3].add(1.0))
    same = (before == after).all(-1)
    assert not same[0].any()
    assert bool(same[1:, :, :2].all()) == respawn
    assert not same[1:, :, 2:].any()

    memory, steps = net.blank(B), []
    for t in range(T):
        _, memory, _ = net.step(params, jax.tree.map(lambda x, t=t: x[t], seen), memory)
        steps.append(merge(net._apart(memory)[0], net.groups, 1))
    np.testing.assert_allclose(jnp.stack(steps), before, atol=1e-6)
