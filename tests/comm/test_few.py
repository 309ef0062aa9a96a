"""Teams with few links gather what they hear: the same as masking all pairs, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.presets import make_config
from flockrl.comm import few
from flockrl.comm.few import few_links, gathered
from flockrl.comm.luck import Cut
from flockrl.core.groups import make_groups
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation
from flockrl.policies.network import TeamNetwork

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


@pytest.mark.parametrize(
    ("comm", "more"),
    [
        ("commnet", ""), ("tarmac", ",loss=0.4"), ("gat", ",delay=1"), ("share_obs", ""),
        pytest.param("dial", "", marks=pytest.mark.slow), pytest.param("ic3net", ",bits=2", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_ring_is_what_masks_make_of_it(monkeypatch, comm, more):
    monkeypatch.setattr(few, "FEW", 4)
    settings = {"comm": comm, "channel": f"topology=ring{more}", "hidden": (8,), "share": "none"}
    config = make_config("ippo", settings if comm == "tarmac" else {**settings, "share": "groups"})
    groups = make_groups(SPEC, config.share)
    by_link, all_pairs = (TeamNetwork(SPEC, groups, config, [3] * len(groups)) for _ in range(2))
    assert by_link.talk.who.shape == (N, 2)
    all_pairs.talk.who, all_pairs.talk._linked = None, all_pairs.talk.links
    params = by_link.init(list(jax.random.split(jax.random.key(0), len(groups))))
    obs = jax.random.normal(jax.random.key(1), (B, N, 4))
    seen = Observation(obs, alive=jax.random.bernoulli(jax.random.key(2), 0.8, (B, N)))
    cut = Cut(None, jnp.zeros((B, N, N), bool).at[:, 2, 1].set(True))  # agent 2 does not hear agent 1

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
