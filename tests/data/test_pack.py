"""Trajectories as rollouts: every step once, cut where columns end, memory cleared where episodes begin."""

import numpy as np
import pytest
from made import MIXED, SPREAD, make_experience, same

from flockrl.commands.data import summarize
from flockrl.core.types import Trajectory
from flockrl.data.experience import join
from flockrl.data.files import Files, Writer
from flockrl.evaluation.record import Cutter, Joiner
from flockrl.training.pack import Packer


def _packed(lengths, steps, columns, whole, **options):
    packer = Packer(SPREAD, steps, columns, whole)
    packer.add(make_experience(SPREAD, lengths, rich=False, **options))
    return packer


def test_columns_are_filled_and_cut():
    packer = _packed([4, 3, 5], 5, 2, whole=False)
    data = packer.waiting
    assert packer.ready
    rollout = packer.take((), ("logp",))
    assert np.array_equal(rollout.obs.swapaxes(0, 1).reshape(10, 3, 6), data.obs[:10])
    assert np.array_equal(rollout.extras["logp"][:, 1], data.logp[5:10])
    assert rollout.first.T.tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 0, 0]]
    # The first ends for good, the second begins in a column's last row and is cut there, the third too.
    assert rollout.terminated[3, 0].all()
    assert rollout.truncated[4, 0].all()
    assert np.array_equal(rollout.next_obs[4, 0], data.obs[5])
    assert rollout.truncated[4, 1].all()
    assert packer.waiting.length.tolist() == [2]
    assert not packer.ready


def test_whole_episodes_leave_steps_in_which_nobody_lives():
    packer = _packed([4, 3, 5], 5, 2, whole=True)
    assert packer.ready
    rollout = packer.take(())
    assert rollout.alive.all(-1).T.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert not rollout.reward[~rollout.alive].any()
    assert rollout.terminated[~rollout.alive].all()
    assert packer.waiting.length.tolist() == [5]
    assert not packer.ready
    assert packer.take(()).alive.all(-1).T.tolist() == [[1] * 5, [0] * 5]
    assert packer.waiting is None


def test_blind_steps_are_left_out():
    data = make_experience(SPREAD, [1, 3, 2], rich=False)
    data = data._replace(blind=np.array([1, 0, 0, 1, 0, 0], bool))
    packer = Packer(SPREAD, 4, 1, whole=False)
    packer.add(data)
    rollout = packer.take(())
    assert np.array_equal(rollout.obs[:, 0], data.obs[[1, 2, 4, 5]])
    assert rollout.truncated[1, 0].all()


@pytest.mark.parametrize("ending", [".arrow", ".parquet", ".csv"])
@pytest.mark.parametrize("rich", [True, False])
def test_unlike_actions_from_a_recording_to_a_rollout(ending, rich, tmp_path):
    data = make_experience(MIXED, [4, 3, 5], rich=rich)
    with Writer(tmp_path / f"data{ending}", MIXED) as writer:
        writer.add(data)
    files = Files([tmp_path / f"data{ending}"])
    assert files.spec == MIXED
    read = join(list(files))
    assert same(data, read) == ""
    packer = Packer(MIXED, 6, 2, whole=False)
    packer.add(read)
    rollout = packer.take((), ("logp",))
    assert rollout.action.shape == (6, 2, 3, 3)
    assert rollout.action.dtype == np.float32
    assert np.array_equal(rollout.action.swapaxes(0, 1).reshape(12, 3, 3), data.action)
    legal = rollout.avail.swapaxes(0, 1).reshape(12, 3, 9)
    assert np.array_equal(legal, data.avail if rich else np.broadcast_to(MIXED.own_actions, legal.shape))
    assert rollout.next_avail.shape == legal.reshape(6, 2, 3, 9).shape


def test_summaries_name_unlike_actions(tmp_path):
    with Writer(tmp_path / "data.arrow", MIXED) as writer:
        writer.add(make_experience(MIXED, [4]))
    assert summarize(Files([tmp_path / "data.arrow"]))["actions"] == "2 real, 4 x 2 x 3 discrete, 5 discrete"


def _rollout(data, first):
    """Experience [B T] as a rollout [T, B]."""
    steps, envs = first.shape

    def grid(x):
        return x.reshape(envs, steps, *x.shape[1:]).swapaxes(0, 1)

    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs", "alive")
    return Trajectory(**{n: grid(getattr(data, n)) for n in names}, first=first, extras={"logp": grid(data.logp)})


def test_recording_gives_whole_episodes_across_rollouts():
    data = make_experience(SPREAD, [40], rich=False)
    first = np.zeros((20, 2), bool)  # two environments, four rollouts of five steps
    first[[0, 0, 7, 12, 13], [0, 1, 0, 1, 0]] = True
    whole = _rollout(data, first)
    cutter, joiner = Cutter("made/spread", 2), Joiner()
    episodes = {}
    for t in range(0, 20, 5):
        part = whole._replace(
            **{n: getattr(whole, n)[t : t + 5] for n in whole._fields if n not in ("memory", "extras")
               and getattr(whole, n) is not None},
            extras={"logp": whole.extras["logp"][t : t + 5]},
        )  # fmt: skip
        for done in joiner.add(cutter.cut(part, version=t)):
            for k in range(done.trajectories):
                episodes[done.id[k]] = done.pick([k])
    for done in joiner.close():
        for k in range(done.trajectories):
            episodes[done.id[k]] = done.pick([k])
    assert sorted(e.steps for e in episodes.values()) == [6, 7, 7, 8, 12]
    assert all(e.step.tolist() == list(range(e.steps)) for e in episodes.values())
    seen = np.concatenate([e.obs for e in episodes.values()])
    assert sorted(seen[:, 0, 0]) == sorted(data.obs[:, 0, 0])
    long = next(e for e in episodes.values() if e.steps == 12)
    assert np.array_equal(long.obs, whole.obs[:12, 1])
