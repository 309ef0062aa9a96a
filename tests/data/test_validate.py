"""`flockrl data validate` finds what is wrong with a file, and says where."""

import csv
import dataclasses
import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made import SPREAD, UNLIKE, make_experience, same
from relayrl_made import relayrl_arrow, relayrl_csv

from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.data.files import Files, Writer
from flockrl.data.schema import BadData, decode, encode


def kept(batch, *without):
    """The batch without the rows of these agents at these steps; for agent None, of all."""
    keep = np.ones(len(batch), bool)
    for step, agent in without:
        there = pc.equal(batch.column("step"), step).to_numpy(zero_copy_only=False)
        if agent is not None:
            there &= pc.equal(batch.column("agent"), agent).to_numpy(zero_copy_only=False)
        keep &= ~there
    return batch.filter(pa.array(keep))


def write(path, batch):
    with pa.ipc.new_file(str(path), batch.schema) as file:
        file.write_batch(batch)
    return path


def plain(steps=6, **more):
    return encode(make_experience(SPREAD, [steps], rich=False, **more), SPREAD)


HOLES = {
    "a step": (kept(plain(), (2, None)), 7, "from step 1 to step 3"),
    "an agent": (kept(plain(), (2, "a_1")), 5, "no row in the next step"),
    "an agent at the end": (kept(plain(), (5, "a_2")), 15, "no row in the next step"),
    "all but one": (kept(plain(), (5, "a_1"), (5, "a_2")), 14, "no row in the next step"),
}


@pytest.mark.parametrize("name", HOLES)
def test_holes_are_found_and_named(tmp_path, capsys, name):
    batch, row, says = HOLES[name]
    path = write(tmp_path / "x.arrow", batch)
    assert main(["data", "validate", str(path)]) == 2
    out = capsys.readouterr().out
    assert f"x.arrow, row {row}: " in out
    assert says in out


def test_agents_may_come_late_and_come_back():
    """As they do in a relay's recordings: whoever is not seen in the next step ended."""
    data = make_experience(SPREAD, [6], rich=False)
    alive, terminated = data.alive.copy(), data.terminated.copy()
    alive[:2, 0] = False
    alive[3, 1], terminated[2, 1] = False, True
    there = alive[..., None]
    data = data._replace(
        alive=alive, terminated=terminated, obs=data.obs * there, reward=data.reward * alive,
        action=data.action * alive, logp=np.where(alive, data.logp, np.nan).astype(np.float32),
    )  # fmt: skip
    again = decode(encode(data, SPREAD), SPREAD)
    assert same(data._replace(next_obs=again.next_obs), again) == ""


def test_steps_may_be_missing_where_nobody_lived():
    """Where agents respawn, and only if all had ended before."""
    spec = dataclasses.replace(SPREAD, respawn=True)
    data = make_experience(spec, [6], rich=False)
    alive, terminated = data.alive.copy(), data.terminated.copy()
    alive[2:4], terminated[1] = False, True
    empty = data._replace(alive=alive, terminated=terminated)
    again = decode(encode(empty, spec), spec)
    assert again.step.tolist() == [0, 1, 4, 5]
    assert again.terminated[1].all()
    with pytest.raises(BadData, match="from step 1 to step 4"):
        decode(encode(empty, SPREAD), SPREAD)
    terminated[1, 2] = False
    with pytest.raises(BadData, match="from step 1 to step 4"):
        decode(encode(empty._replace(terminated=terminated), spec), spec)


def test_an_agent_that_is_cut_off_says_what_it_saw_last():
    data = make_experience(UNLIKE, [6])  # c is there for three steps
    cut = data._replace(truncated=data.truncated | data.terminated, terminated=np.zeros_like(data.terminated))
    batch = encode(cut, UNLIKE)
    again = decode(batch, UNLIKE)
    np.testing.assert_array_equal(again.next_obs[2, 2], data.next_obs[2, 2])
    for name in ("final_obs", "final_mask"):
        values = batch.column(name).to_pylist()
        values[8] = None
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), pa.array(values, batch.schema.field(place).type))
        if name == "final_obs":
            with pytest.raises(BadData, match="'final_obs' must be given where an agent is truncated") as caught:
                decode(batch, UNLIKE)
            assert caught.value.row == 8
            batch = encode(cut, UNLIKE)
    assert decode(batch, UNLIKE).next_avail[2, 2].all()  # without a mask, everything is legal


def csv_lines(path):
    with Writer(path, SPREAD) as writer:
        writer.add(make_experience(SPREAD, [4, 3]))
    return path.read_text().splitlines(keepends=True)


def cell(lines, number, name, text):
    """The lines with another cell in line `number`, counted from 1."""
    at = lines[1].strip().split(",").index(name)
    row = next(csv.reader([lines[number - 1]]))
    row[at] = text
    out = io.StringIO()
    csv.writer(out).writerow(row)
    return [*lines[: number - 1], out.getvalue(), *lines[number:]]


CELLS = {
    "flag": (("terminated", "yes"), "'yes' is neither true nor false"),
    "number": (("step", "9" * 30), "'step' cannot be read"),
    "digits": (("step", "9" * 5000), "'step' cannot be read"),
    "deep": (("obs", "[" * 50_000), "too deep"),
    "object": (("obs", '{"a": 1}'), "'obs' cannot be read"),
    "list": (("aux", "[1]"), "'aux' cannot be read"),
    "infinite": (("reward", "1e300"), "'reward' has numbers that are not finite"),
    "nan": (("obs", "[NaN, 0, 0, 0, 0, 0]"), "'obs' has numbers that are not finite"),
    "empty": (("reward", ""), "'reward' has empty entries"),
    "action": (("action", "[-5]"), "whole numbers from 0 to 4"),
    "forbidden": (("mask", "[false, false, false, false, false]"), "forbids"),
    "long": (("env", "e" * 300), "more than 200 characters"),
}


@pytest.mark.parametrize("name", CELLS)
def test_wrong_cells_are_named_by_their_line(tmp_path, capsys, name):
    (column, text), says = CELLS[name]
    lines = cell(csv_lines(tmp_path / "x.csv"), 3 if name == "long" else 7, column, text)
    if name == "long":
        for number in range(3, 14):
            lines = cell(lines, number, column, text)
    (tmp_path / "x.csv").write_text("".join(lines))
    assert main(["data", "validate", str(tmp_path / "x.csv")]) == 2
    out = capsys.readouterr().out
    assert f"x.csv, line {3 if name == 'long' else 7}: " in out
    assert says in out
    assert out.count("\n") == 1


def test_text_that_is_cut_or_broken_is_refused(tmp_path, capsys):
    lines = csv_lines(tmp_path / "x.csv")
    content = "".join(lines).encode()
    broken = {
        b"".join(line.encode() for line in lines[:-1]): "line 1",  # a step without its last agent
        content[:-20]: f"line {len(lines)}: ",
        content.replace(b"a_1", b"a_\xff", 2): "not UTF-8",
        content.replace(b",false,", b",fal\0e,", 1): "line 3: ",
        content + b'"' + b"x\n" * 100: f"line {len(lines) + 1}: ",
    }
    for data, says in broken.items():
        (tmp_path / "x.csv").write_bytes(data)
        assert main(["data", "validate", str(tmp_path / "x.csv")]) == 2
        out = capsys.readouterr().out
        assert says in out
        assert out.count("\n") == 1


FOREIGN = {
    "negative": (lambda p: relayrl_arrow(p / "x.arrow", act_binary=np.int64(-5).tobytes()), "row 3: .* from 0 to 2"),
    "beyond": (lambda p: relayrl_arrow(p / "x.arrow", act_binary=np.int64(3).tobytes()), "row 3: .* from 0 to 2"),
    "half": (
        lambda p: relayrl_arrow(p / "x.arrow", act_binary=None, act_f32=[0.5]), "row 3 .* 0.5 is not a whole number",
    ),
    "masked": (lambda p: relayrl_arrow(p / "x.arrow", mask_f32=[1.0, 1.0, 0.0]), "row 3: .* forbids"),
    "type": (lambda p: relayrl_arrow(p / "x.arrow", act_dtype="Q8"), "row 3 .* numbers of type 'q8'"),
    "width": (lambda p: relayrl_arrow(p / "x.arrow", obs_f32=[1.0]), "row 3 .* change their size"),
    "flag": (lambda p: relayrl_csv(p / "x.csv", done="maybe"), "line 2 .* neither true nor false"),
    "reward": (lambda p: relayrl_csv(p / "x.csv", reward="1e300"), "line 2 .* not finite"),
    "text": (lambda p: relayrl_csv(p / "x.csv", reward="much"), "line 2 .* could not convert"),
    "deep": (lambda p: relayrl_csv(p / "x.csv", aux_data="[" * 50_000), "line 2 .* too deep"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_checked_like_ours(tmp_path, name):
    make, says = FOREIGN[name]
    with pytest.raises(BadData, match=says):
        list(Files([make(tmp_path)]))


@pytest.mark.parametrize("name", ["obs", "next_obs", "reward", "logp"])
def test_numbers_that_are_not_finite_are_not_written(tmp_path, name):
    data = make_experience(SPREAD, [4], rich=False)
    values = getattr(data, name).copy()
    values[-1] = np.inf  # what 1e300 is as float32
    with pytest.raises(UsageError, match="not finite"), Writer(tmp_path / "x.arrow", SPREAD) as writer:
        writer.add(data._replace(**{name: values}))
    assert list(tmp_path.iterdir()) == []


def test_line_breaks_in_names_are_not_written_to_csv(tmp_path):
    with pytest.raises(UsageError, match="line break"), Writer(tmp_path / "x.csv", SPREAD) as writer:
        writer.add(make_experience(SPREAD, [4], name="a\nb"))
