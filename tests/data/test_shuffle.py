"""Recorded trajectories in random orders: each once per pass, another order in each, whole where memory allows it."""

import itertools
import tracemalloc

import numpy as np
import pytest
from made import SPREAD, make_experience

from flockrl.data.experience import join
from flockrl.data.files import Files, Writer
from flockrl.data.shuffle import Shuffled, _size

FILES, EACH, MB = 4, 30, 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four files of thirty trajectories in small batches."""
    where = tmp_path_factory.mktemp("files")
    for i in range(FILES):
        with Writer(where / f"{i}.arrow", SPREAD) as writer:
            for j in range(0, EACH, 5):
                writer.add(make_experience(SPREAD, [3, 1, 5, 2, 4], seed=100 * i + j, rich=False, name=f"{i}"))
    return where


def ids(shuffled, seed=0, number=0, most=10):
    return [name for part in shuffled.read(seed, number, most) for name in part.id]


def test_every_trajectory_comes_once_and_whole(folder):
    files = Files([folder])
    data = join(list(files))
    for window in (1 << 30, _size(data) // 3):
        found = list(Shuffled(files, window).read(7, 2, 10))
        assert max(part.steps for part in found) < 10 + 5
        mixed = join(found)
        assert sorted(mixed.id) == sorted(data.id)
        places = [data.id.tolist().index(name) for name in mixed.id]
        again = data.pick(places)
        assert np.array_equal(mixed.obs, again.obs)
        assert np.array_equal(mixed.step, again.step)
        assert np.array_equal(mixed.reward, again.reward)


@pytest.mark.parametrize("share", [None, 3])
def test_orders_belong_to_seed_and_pass(folder, share):
    files = Files([folder])
    window = 1 << 30 if share is None else _size(join(list(files))) // share
    one, other = Shuffled(files, window), Shuffled(Files([folder]), window)
    orders = {(seed, number): ids(one, seed, number) for seed in (0, 1) for number in (0, 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    # Neither what was read before nor the size of the parts matters.
    assert ids(other, 1, 1, most=1000) == orders[1, 1]
    assert ids(other, 0, 0) == orders[0, 0]


def test_what_fits_is_mixed_wholly_and_read_once(folder, monkeypatch):
    files = Files([folder])
    shuffled = Shuffled(files, 1 << 30)
    first = np.array([[int(name[0]) for name in ids(shuffled, 0, k)] for k in range(20)])
    # Of 120 trajectories in 20 passes each place has a random file: the mean is 1.5, with deviation 0.25.
    assert abs(first.mean(0) - 1.5).max() < 1.2
    monkeypatch.setattr(files, "read", None)
    assert len(ids(shuffled, 3, 3)) == FILES * EACH


def test_what_does_not_fit_is_mixed_over_files_and_window(folder):
    files = Files([folder])
    shuffled = Shuffled(files, _size(join(list(files))) // 3)
    orders = [ids(shuffled, 0, k) for k in range(8)]
    assert {order[0][0] for order in orders} == {"0", "1", "2", "3"}  # the files' order changes
    for order in orders:
        came = [name[0] for name in order]
        assert sum(a != b for a, b in itertools.pairwise(came)) > 10  # and the window mixes them


def test_memory_stays_bounded(tmp_path):
    """55 MB of trajectories pass through a window of 4 MB."""
    big = make_experience(SPREAD, [9] * 400, rich=False)
    with Writer(tmp_path / "big.arrow", SPREAD) as writer:
        for i in range(60):
            writer.add(big._replace(id=np.array([f"{i}-{j}" for j in range(400)], object)))
    grown = {}
    for limit in (16, 2000):
        shuffled = Shuffled(Files([tmp_path / "big.arrow"], limit * MB // 2), limit * MB // 4)
        tracemalloc.start()
        assert sum(part.trajectories for part in shuffled.read(0, 0, 1000)) == 24_000
        grown[limit] = tracemalloc.get_traced_memory()[1] // MB
        tracemalloc.stop()
    assert grown[16] < 16 < 60 < grown[2000], grown
