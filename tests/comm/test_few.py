"""Teams with few links, fixed or those of the moment, gather what they hear: the same as masking all pairs, and its
gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.comm import few
from flockrl.comm.few import few_links, first_links, gathered
from flockrl.comm.luck import Cut
from flockrl.comm.talk import Talk
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation
from flockrl.envs import make
from flockrl.policies.network import TeamNetwork
from flockrl.policies.policy import Policy
from flockrl.portable.model import Model

N, B = 9, 3
SPEC = EnvSpec("line", tuple(f"a_{i}" for i in range(N)), (Box((4,)),) * N, (Discrete(3),) * N, 9)


def test_links_are_few_in_a_ring_and_not_around_a_hub(monkeypatch):
    monkeypatch.setattr(few, "FEW", 4)
    places = np.arange(N)
    ring = np.isin((places[:, None] - places) % N, (1, N - 1))
    ring[3] = False  # hears nobody
    who, there = few_links(ring)
    assert who.shape == (N, 2)
    assert sorted(who[0]) == [1, 8]
    assert who[3].tolist() == [3, 3]
    assert there.sum(1).tolist() == [2, 2, 2, 0, 2, 2, 2, 2, 2]
    star = (places == 0)[:, None] | (places == 0)
    assert few_links(star)[0] is None


def test_gathering_has_the_gradient_of_a_product_with_zeros_and_ones():
    who = np.array([[1, 2], [2, 2], [0, 1], [5, 0]])
    hot = jnp.asarray(np.eye(6)[who], jnp.float32)
    x, g = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(((B, 6, 3), (B, 4, 2, 3))))
    found = jax.vjp(lambda x: gathered(x, who), x)
    wanted = jax.vjp(lambda x: jnp.einsum("ndj,bjc->bndc", hot, x), x)
    for a, b in ((found[0], wanted[0]), (found[1](g)[0], wanted[1](g)[0])):
        np.testing.assert_allclose(a, b, atol=1e-5)
    now = jnp.stack([jnp.asarray(who), jnp.asarray(who[::-1]), jnp.asarray(who) % 2])  # other links in each moment
    hot = jax.nn.one_hot(now, 6)
    found = jax.vjp(lambda x: gathered(x, now), x)
    wanted = jax.vjp(lambda x: jnp.einsum("bndj,bjc->bndc", hot, x), x)
    for a, b in ((found[0], wanted[0]), (found[1](g)[0], wanted[1](g)[0])):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_first_links_of_a_moment():
    links = jnp.array([[[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0]]], bool)
    who, there = first_links(links, 2)
    assert there[0].tolist() == [[True, True], [False, False], [True, True], [True, False]]
    assert [row[flags].tolist() for row, flags in zip(who[0], there[0], strict=True)] == [[1, 3], [], [0, 1], [2]]
    assert 0 <= who.min() <= who.max() < 4


def test_neighbours_that_never_change_are_links():
    """A lattice of 400 spins: its graph takes the place of what the moment tells, and few links are gathered."""
    env, config = make("mean_field/ising"), make_config("ippo", {"comm": "commnet", "channel": "topology=neighbours"})
    talk = Talk(env.spec, config, [2])
    assert (env.spec.neighbours, talk.near, talk.degree) == (False, False, None)
    assert talk.who.shape == (env.spec.num_agents, 4)
    assert [sorted(row) for row in talk.who.tolist()] == [sorted(near) for near in env.spec.graph]
    both = make_config("ippo", {"comm": "commnet", "channel": "topology=neighbours,nearest=2"})
    with pytest.raises(UsageError, match="nearest needs an environment"):
        Talk(env.spec, both, [2])


FIXED, CHANGING = "topology=ring", "nearest=2"


@pytest.mark.parametrize(
    ("comm", "channel"),
    [
        ("commnet", FIXED), ("tarmac", f"{FIXED},loss=0.4"), ("gat", f"{FIXED},delay=1"), ("share_obs", FIXED),
        ("tarmac", f"{CHANGING},loss=0.4"), ("dial", CHANGING),
        pytest.param("commnet", f"{CHANGING},broadcast_loss=0.3", marks=pytest.mark.slow),
        pytest.param("gat", f"{CHANGING},delay=1", marks=pytest.mark.slow),
        pytest.param("dial", FIXED, marks=pytest.mark.slow),
        pytest.param("ic3net", f"{FIXED},bits=2", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_few_links_are_what_masks_make_of_them(monkeypatch, comm, channel):
    monkeypatch.setattr(few, "FEW", 4)
    spec = dataclasses.replace(SPEC, neighbours=channel.startswith(CHANGING))
    settings = {"comm": comm, "channel": channel, "hidden": (8,), "share": "none"}
    config = make_config("ippo", settings if comm == "tarmac" else {**settings, "share": "groups"})
    groups = make_groups(spec, config.share)
    by_link, all_pairs = (TeamNetwork(spec, groups, config, [3] * len(groups)) for _ in range(2))
    assert (by_link.talk.degree == 2) if spec.neighbours else (by_link.talk.who.shape == (N, 2))
    all_pairs.talk.who, all_pairs.talk._linked, all_pairs.talk.degree = None, all_pairs.talk.links, None
    params = by_link.init(list(jax.random.split(jax.random.key(0), len(groups))))
    obs = jax.random.normal(jax.random.key(1), (B, N, 4))
    near = jax.random.bernoulli(jax.random.key(4), 0.3, (B, N, N)).at[:, 2].set(True) if spec.neighbours else None
    seen = Observation(obs, alive=jax.random.bernoulli(jax.random.key(2), 0.8, (B, N)), neighbours=near)
    cut = Cut(None, jnp.zeros((B, N, N), bool).at[:, 2].set(True))  # agent 2 hears nobody

    def run(team, params, seen):
        seen = team.with_luck(seen, team.memory(B), jax.random.key(3), True)
        _, memory, _ = team.step(params, seen, team.memory(B))
        outs, _, noted = team.step(params, seen._replace(obs=seen.obs[::-1]), memory)
        return jnp.concatenate(outs, 1), noted["messages"]

    def learn(team, seen):
        return jax.jit(jax.value_and_grad(lambda p: (run(team, p, seen)[0] ** 2).sum()))(params)

    for a, b in zip(jax.tree.leaves(learn(by_link, seen)), jax.tree.leaves(learn(all_pairs, seen)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for sees in (seen, seen._replace(seeds=cut)):
        (found, counts), (wanted, same) = run(by_link, params, sees), run(all_pairs, params, sees)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        np.testing.assert_array_equal(counts, same)
    assert np.abs(run(by_link, params, seen)[0] - found).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 64])
def test_an_exported_team_hears_the_nearest(monkeypatch, tmp_path, most):
    """A model masks all pairs, whether the team gathers or not; who is told of more neighbours hears the first."""
    monkeypatch.setattr(few, "FEW", most)
    spec = dataclasses.replace(SPEC, neighbours=True)
    config = make_config("ippo", {"comm": "tarmac", "channel": "nearest=2", "hidden": (8,)})
    algorithm = make_algorithm("ippo", spec, config, envs=4, updates=4)
    assert (algorithm.talk.degree is None) == (most == 64)
    params = algorithm.params(jax.jit(algorithm.init)(jax.random.key(0)))
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    policy = Policy(algorithm, params, spec, name="ippo", share=config.share)
    flockrl.export(policy, tmp_path / "model")
    model, rng = Model(tmp_path / "model"), np.random.default_rng(0)
    obs, near = rng.normal(size=(8, N, 4)).astype(np.float32), rng.random((8, N, N)) < 0.6
    first = near & (np.cumsum(near & ~np.eye(N, dtype=bool), -1) <= 2)
    found = policy.act(obs, neighbours=near)
    np.testing.assert_array_equal(model.act(obs, neighbours=near, explore=False).action, found)
    np.testing.assert_array_equal(policy.act(obs, neighbours=first), found)
    assert (policy.act(obs, neighbours=np.zeros_like(near)) != found).any()
