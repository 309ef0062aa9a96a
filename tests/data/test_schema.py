"""Trajectories as Arrow rows: nothing is lost, and nothing wrong gets in."""

import numpy as np
import pyarrow as pa
import pytest
from made import MIXED, REAL, SPREAD, UNLIKE, make_experience, same

from flockrl.data.experience import join
from flockrl.data.schema import BadData, decode, encode, make_schema, read_about, read_spec


@pytest.mark.parametrize("spec", [UNLIKE, REAL, SPREAD, MIXED], ids=lambda spec: spec.name)
@pytest.mark.parametrize("rich", [True, False])
def test_rows_keep_everything(spec, rich):
    data = make_experience(spec, [4, 1, 9, 2], rich=rich)
    assert same(data, decode(encode(data, spec), spec)) == ""


def test_the_schema_describes_the_environment():
    schema = make_schema(UNLIKE, {"algorithm": "ippo"})
    assert read_spec(schema) == UNLIKE
    assert read_about(schema)["algorithm"] == "ippo"
    with pytest.raises(BadData, match="metadata"):
        read_spec(pa.schema([("x", pa.int8())]))


def test_a_step_without_successor_is_blind():
    data = make_experience(SPREAD, [4, 3, 5], rich=False)
    blind = data._replace(blind=data.last & ~data.terminated.all(1))
    again = decode(encode(blind, SPREAD), SPREAD)
    assert np.flatnonzero(again.blind).tolist() == [6, 11]
    assert not again.next_obs[[6, 11]].any()


def test_picking_and_joining_are_inverse():
    data = make_experience(UNLIKE, [4, 1, 9, 2])
    parts = [data.pick([0, 1]), data.pick([2]), data.pick([3])]
    assert same(data, join(parts)) == ""
    assert data.pick([2]).steps == 9


def _set(name, row, value):
    def change(batch):
        values = batch.column(name).to_pylist()
        values[row] = value
        at = batch.schema.names.index(name)
        return batch.set_column(at, batch.schema.field(at), pa.array(values, batch.schema.field(at).type))

    return change


WRONG = {
    "nan": (_set("obs", 0, [float("nan")] * 6), "not finite"),
    "reward": (_set("reward", 3, float("inf")), "not finite"),
    "narrow": (_set("obs", 0, [1.0]), "must have 6 numbers"),
    "stranger": (_set("agent", 0, "zed"), "no agent 'zed'"),
    "action": (_set("action", 0, [5.0]), "from 0 to 4"),
    "half": (_set("action", 0, [0.5]), "whole numbers"),
    "forbidden": (lambda b: _set("mask", 0, [False] * 5)(b), "forbids"),
    "twice": (_set("agent", 1, "a_0"), "ordered"),
    "back": (_set("step", 3, 0), "ordered"),
    "negative": (_set("step", 0, -1), "negative"),
    "scattered": (_set("trajectory", -1, "t-0-0"), "follow each other"),
    "version": (_set("policy_version", 0, 3), "changes within"),
    "missing": (lambda b: b.drop_columns(["logp"]), "missing"),
    "type": (lambda b: b.set_column(2, "episode", pa.array(["x"] * len(b))), "must be int64"),
    "state": (_set("state", 0, [1.0]), "no global state"),
    "early final": (_set("final_obs", 0, [0.0] * 6), "only where"),
    "aux twice": (_set("aux", 0, [("v", [1.0]), ("v", [2.0])]), "twice"),
    "aux wide": (_set("aux", 0, [("v", [1.0] * 300)]), "256"),
    "aux names": (_set("aux", 0, [(f"v{i}", [1.0]) for i in range(20)]), "21 names"),
    "no rows": (lambda b: b.slice(0, 0), "no rows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows_are_refused_with_a_reason(case):
    change, reason = WRONG[case]
    batch = encode(make_experience(SPREAD, [4, 3]), SPREAD)
    with pytest.raises(BadData, match=reason):
        decode(change(batch), SPREAD)


def test_rows_of_unlike_agents():
    """Each agent's row has its own numbers and no padding."""
    data = make_experience(MIXED, [2])
    rows = encode(data, MIXED).to_pylist()
    assert [len(row["action"]) for row in rows[:3]] == [3, 2, 1]
    assert [len(row["mask"]) for row in rows[:3]] == [9, 2, 5]
    assert rows[0]["action"] == data.action[0, 0].tolist()
    assert rows[2]["action"] == [data.action[0, 2, 0]]
    assert rows[1]["mask"] == [True, True]


UNLIKELY = {
    "option": (_set("action", 0, [0.0, 2.0, 0.0]), "from 0 to 1, not 2.0"),
    "fraction": (_set("action", 0, [0.0, 0.0, 0.5]), "whole numbers from 0 to 2"),
    "one number": (_set("action", 2, [5.0]), "from 0 to 4"),
    "short": (_set("action", 0, [0.0, 1.0]), "must have 3 numbers in a row, not 2"),
    "forbidden": (_set("mask", 0, [True] * 6 + [False] * 3), "forbids"),
    "masked": (_set("mask", 1, [True, False]), "only choices can be masked"),
    "masked end": (_set("final_mask", 4, [False, False]), "only choices can be masked"),
}


@pytest.mark.parametrize("case", UNLIKELY)
def test_wrong_actions_of_unlike_agents_are_refused(case):
    change, reason = UNLIKELY[case]
    batch = encode(make_experience(MIXED, [2]), MIXED)
    with pytest.raises(BadData, match=reason):
        decode(change(batch), MIXED)


def test_columns_of_another_environment_are_refused():
    batch = encode(make_experience(SPREAD, [4]), SPREAD)
    with pytest.raises(BadData):
        decode(batch, UNLIKE)
