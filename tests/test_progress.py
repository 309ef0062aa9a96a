"""What a log shows while a run trains."""

import json
import shutil
import struct
from types import SimpleNamespace

from matplotlib.figure import Figure
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event, SessionLog

import flockrl
from flockrl.core.callbacks import Moment
from flockrl.envs import make
from flockrl.training.log import Board
from flockrl.view import progress
from flockrl.view.plots import draw_curve


def test_a_log_gets_a_line_per_evaluation_and_one_when_it_was_quiet_for_long(tmp_path, capsys, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    options = SimpleNamespace(envs=4, seed=0)
    setting = SimpleNamespace(spec=make("mpe/simple_spread").spec, algorithm=SimpleNamespace(note=""))
    program = SimpleNamespace(setting=setting, note="", fresh=0, chosen={})
    program.compile_seconds = 1.0
    run = SimpleNamespace(algorithm="mappo", env="mpe/simple_spread", options=options)
    shown = progress.Progress(run, program, 1, console=Console(force_terminal=False))  # type: ignore[arg-type]
    shown.on_start(Moment(tmp_path, 0, 0, 900))
    for step, seconds, row in (
        (0, 0, {"eval_return": -30.0}),
        (100, 10, {"return": -25.0, "steps_per_second": 5.0}),
        (200, 31, {"return": -24.0, "steps_per_second": 5.0}),
        (300, 32, {"return": None, "steps_per_second": 5.0}),
        (400, 63, {"return": None, "steps_per_second": 5.0}),
        (500, 64, {"return": -23.0, "steps_per_second": 5.0, "eval_return": -22.0}),
    ):
        clock.now = 100.0 + seconds
        shown.on_iteration(Moment(tmp_path, 0, step, 900, metrics=row))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "/900" in line]
    assert lines == [
        ["0/900", "steps", "eval", "-30.00"],
        ["200/900", "steps", "return", "-24.00", "5", "steps/s"],
        ["400/900", "steps", "5", "steps/s"],
        ["500/900", "steps", "eval", "-22.00", "return", "-23.00", "5", "steps/s"],
    ]


def test_opponents_are_told_apart_and_never_averaged(tmp_path, capsys):
    options = SimpleNamespace(envs=4, seed=0)
    setting = SimpleNamespace(spec=make("mpe/simple_tag").spec, algorithm=SimpleNamespace(note=""))
    program = SimpleNamespace(setting=setting, note="", fresh=0, chosen={}, compile_seconds=1.0)
    run = SimpleNamespace(algorithm="adversary=ippo,agent=random", env="mpe/simple_tag", options=options, trust="")
    shown = progress.Progress(run, program, 1, console=Console(force_terminal=False, width=120))  # type: ignore[arg-type]
    moment = Moment(tmp_path, 0, 900, 900)
    shown.on_start(moment)
    for adversary, agent in ((3.0, -9.0), (9.0, -27.0)):
        moment.metrics = {"eval_return": 0.0, "eval_return_adversary": adversary, "eval_return_agent": agent}
        shown.on_evaluation(moment, None)  # type: ignore[arg-type]
        shown.on_iteration(moment)
    shown.on_end(moment)
    out = capsys.readouterr().out
    assert "eval adversary     9.00  agent   -27.00" in out
    rows = [line.replace("│", " ").split() for line in out.splitlines() if line.startswith("│")]
    assert [row[2:6] for row in rows] == [
        ["adversary", "3.00", "9.00", "9.00"],
        ["agent", "-9.00", "-9.00", "-27.00"],
    ]


def test_after_a_resume_the_table_tells_the_whole_run(tmp_path, tiny_run, capsys):
    path = tmp_path / "run"
    shutil.copytree(tiny_run.path, path)
    shutil.rmtree(path / "checkpoints" / "1024")
    (path / "result.json").unlink()
    flockrl.resume(path, quiet=False)
    out = capsys.readouterr().out
    evals = [row["eval_return"] for row in tiny_run.metrics() if "eval_return" in row]
    (row,) = [line.replace("│", " ").split() for line in out.splitlines() if line.startswith("│")]
    speed = json.loads((path / "result.json").read_text())["steps_per_second"]
    assert row == ["0", "1,024", *(f"{x:.2f}" for x in (evals[0], max(evals), evals[-1])), f"{speed:,.0f}"]


def shown_by_tensorboard(folder):
    """The steps that TensorBoard shows: a restart hides what was written before about its step and later ones."""
    steps = []
    for file in sorted(folder.glob("events.out.tfevents.*"), key=lambda file: file.name):
        content = file.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + size])
            content = content[16 + size :]
            if event.session_log.status == SessionLog.START:
                steps = [step for step in steps if step < event.step]
            if event.summary.value:
                steps.append(event.step)
    return steps


def test_tensorboard_shows_each_row_of_a_resumed_run_once(tmp_path):
    first = Board(tmp_path)
    for step in (0, 100, 200):
        first.write({"step": step, "return": 1.0})
    first.close()
    second = Board(tmp_path, resume_at=100)
    second.write({"step": 200, "return": 1.0})
    second.close()
    assert shown_by_tensorboard(tmp_path) == [0, 100, 200]


def test_the_legend_of_two_sides_hides_neither_curve(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": "ippo", "env": "arena", "seed": 0}))
    rows = [
        {
            "step": step, "eval_return": 0.0, "eval_return_std": 0.0, "eval_return_per_agent": [0.0],
            "eval_episodes": 9,
            "eval_return_wolf": min(step, 3), "eval_return_sheep": max(-step, -4),
        }
        for step in range(20)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file: drawn.append(figure))
    draw_curve([tmp_path], tmp_path / "curve.png")
    (axes,) = drawn[0].axes
    drawn[0].draw_without_rendering()
    box = axes.get_legend().get_window_extent()
    assert len(axes.lines) == 2
    for line in axes.lines:
        assert not any(box.contains(*point) for point in axes.transData.transform(line.get_xydata()))
