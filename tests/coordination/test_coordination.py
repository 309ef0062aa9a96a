"""Rules of coordination against exact numbers: eigenvalues, expectations, the Hungarian optimum."""

import numpy as np
import pytest

from flockrl.commands.main import main
from flockrl.coordination.auction import auction, best
from flockrl.coordination.consensus import (
    Consensus,
    constant,
    error_factor,
    gossip_factor,
    hierarchical,
    lossy_factor,
    metropolis,
)  # fmt: skip
from flockrl.coordination.graphs import links
from flockrl.coordination.leader import flood, ring
from flockrl.core.errors import UsageError

KNOWN = {(10, "metropolis"): 0.8727, (10, "constant"): 0.8257, (20, "metropolis"): 0.9674, (20, "constant"): 0.9522,
         (50, "metropolis"): 0.9947, (50, "constant"): 0.9921}  # fmt: skip


def values(n, seed=0):
    return np.random.default_rng(seed).normal(size=n)


def run(team, steps):
    found = [team.error]
    for _ in range(steps):
        team.step()
        found.append(team.error)
    return np.array(found)


@pytest.mark.parametrize(("n", "weights"), KNOWN)
def test_the_error_falls_by_the_exact_factor(n, weights):
    rule = {"metropolis": metropolis, "constant": constant}[weights]
    exact = error_factor(rule(links("ring", n)))
    assert exact == pytest.approx(KNOWN[n, weights], abs=6e-5)
    team = Consensus(values(n), links("ring", n), weights)
    found = run(team, 4 * n)
    rate = (found[-1] / found[2 * n]) ** (1 / (2 * n))
    assert rate == pytest.approx(exact, rel=0.01)
    assert team.estimates.mean() == pytest.approx(team.values.mean(), abs=1e-12)


def test_flows_are_linear_averaging():
    graph, x = links("star", 7), values(7)
    team = Consensus(x, graph)
    w = metropolis(graph)
    for _ in range(9):
        team.step()
        x = x + (w * (x - x[:, None])).sum(1)
    np.testing.assert_allclose(team.estimates, x, atol=1e-12)


def test_with_failing_links_the_mean_stays_and_the_squared_error_falls_as_expected():
    graph, loss, runs, steps = links("ring", 10), 0.3, 400, 60
    rng = np.random.default_rng(5)
    teams = [Consensus(values(10, seed), graph, loss=loss, rng=rng) for seed in range(runs)]
    squares = np.mean([run(team, steps) ** 2 for team in teams], axis=0)
    assert (squares[-1] / squares[20]) ** (1 / 40) == pytest.approx(lossy_factor(metropolis(graph), loss), rel=0.01)
    assert lossy_factor(metropolis(graph), 0.0) == pytest.approx(error_factor(metropolis(graph)) ** 2)
    assert max(abs(team.estimates.mean() - team.values.mean()) for team in teams) < 1e-12


def test_gossip_falls_as_expected_where_all_are_linked():
    n, runs, ticks = 12, 400, 40
    exact = gossip_factor(links("all", n))
    assert exact == pytest.approx(1 - 1 / (n - 1))
    rng, ends, begins = np.random.default_rng(3), [], []
    for seed in range(runs):
        team = Consensus(values(n, seed), links("all", n), rng=rng)
        begins.append(team.error**2)
        for _ in range(ticks):
            team.gossip()
        ends.append(team.error**2)
        assert team.estimates.mean() == pytest.approx(team.values.mean(), abs=1e-12)
    assert (np.mean(ends) / np.mean(begins)) ** (1 / ticks) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("weights", ["metropolis", "constant"])
def test_who_leaves_no_longer_counts_and_who_joins_does(weights):
    x = values(8)
    team = Consensus(x, links("all", 8), weights, loss=0.2, there=np.arange(8) < 7)
    run(team, 10)
    team.leave(2)
    run(team, 200)
    own = [0, 1, 3, 4, 5, 6]
    np.testing.assert_allclose(team.estimates[own], x[own].mean(), atol=1e-9)
    team.join(7, 5.0)
    run(team, 200)
    np.testing.assert_allclose(team.estimates[[*own, 7]], (x[own].sum() + 5) / 7, atol=1e-9)


def test_groups_first_then_the_whole_finds_the_same_mean_sooner():
    x, groups = values(21), [range(5), range(5, 12), range(12, 21)]
    inner = {g: links("ring", len(own)) for g, own in enumerate(groups)}
    found = hierarchical(x, groups, inner, links("all", 3), (60, 20))
    np.testing.assert_allclose(found.estimates, x.mean(), atol=1e-4)
    flat = Consensus(x, links("ring", 21))
    errors = run(flat, found.steps)
    assert errors[-1] > 100 * np.abs(found.estimates - x.mean()).max()
    lossy = hierarchical(x, groups, inner, links("all", 3), (200, 60), loss=0.3)
    np.testing.assert_allclose(lossy.estimates, x.mean(), atol=1e-4)


def test_floods_reach_everyone_after_as_many_rounds_as_the_graph_is_wide():
    numbers = np.random.default_rng(0).permutation(11)
    found = flood(links("ring", 11), numbers, 8)
    assert (found.leader == 10).all()
    assert np.flatnonzero(found.agreed == 1)[0] == 5
    np.testing.assert_allclose(found.agreed[:6], np.arange(1, 12, 2) / 11)
    assert found.messages == 8 * 22
    assert flood(links("ring", 11), numbers, 100, loss=0.5).agreed[-1] == 1
    with pytest.raises(UsageError, match="unlike"):
        flood(links("ring", 3), [1, 1, 2], 2)


def test_messages_around_a_ring_are_those_of_chang_and_roberts():
    n = 9
    assert ring(range(n)).messages == 2 * n - 1 + n  # each larger than the last: all but the leader's stop at once
    assert ring(range(n, 0, -1)).messages == n * (n + 1) // 2 + n
    rng = np.random.default_rng(0)
    counts = [ring(rng.permutation(n)).messages for _ in range(3000)]
    expected = n * sum(1 / k for k in range(1, n + 1)) + n
    assert abs(np.mean(counts) - expected) < 4 * np.std(counts) / np.sqrt(len(counts))


def instances(count, seed=0, most=100):
    rng = np.random.default_rng(seed)
    for i in range(count):
        n = int(rng.integers(1, most + 1))
        shape = n, n + int(rng.integers(0, 5)) * (i % 3 == 0)
        yield rng.random(shape) if i % 2 else rng.integers(0, 100, shape).astype(float)


def check(benefit, **options):
    found = auction(benefit, **options)
    assert len(set(found.role.tolist())) == len(benefit)
    assert best(benefit) >= found.benefit - 1e-9
    return found.benefit / best(benefit) if best(benefit) else 1.0


def test_auctions_are_within_a_percent_of_the_hungarian_optimum():
    assert min(check(benefit, tolerance=0.01) for benefit in instances(25, most=40)) >= 0.99


@pytest.mark.slow
def test_a_thousand_auctions_are_within_a_percent_of_the_hungarian_optimum():
    assert min(check(benefit, tolerance=0.01) for benefit in instances(1000)) >= 0.99


def test_lost_bids_are_made_again():
    benefit = np.random.default_rng(2).random((15, 15))
    assert check(benefit, loss=0.5, tolerance=1e-4) >= 0.9999
    assert auction(benefit, loss=0.5).bids > auction(benefit).bids


def test_what_makes_no_sense_is_refused():
    for wrong in (np.ones((3, 2)), np.full((2, 2), np.nan), -np.ones((2, 2)), np.ones(3)):
        with pytest.raises(UsageError):
            auction(wrong)
    with pytest.raises(UsageError, match="falls apart"):
        links("0100/1000/0001/0010", 4)
    with pytest.raises(UsageError, match="symmetric"):
        links("010/001/100", 3)


def test_the_command_prints_and_plots(tmp_path, capsys):
    picture = tmp_path / "x.png"
    assert main(["coordinate", "consensus", "--agents", "10", "--topology", "ring", "--out", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "factor per step 0.8727" in said
    assert "exactly 0.8727" in said
    assert picture.stat().st_size > 1000
    assert main(["coordinate", "consensus", "--agents", "50", "--loss", "0.2"]) == 0
    assert main(["coordinate", "auction", "--agents", "30", "--loss", "0.1"]) == 0
    assert main(["coordinate", "leader", "--agents", "12"]) == 0
    assert "after 6 rounds" in capsys.readouterr().out
    assert main(["coordinate", "consensus", "--loss", "2"]) == 2
    assert main(["coordinate", "consensus", "--out", "x.gif"]) == 2
