"""What a log shows while a run trains."""

from types import SimpleNamespace

from rich.console import Console

from flockrl.core.callbacks import Moment
from flockrl.envs import make
from flockrl.view import progress


def test_a_log_gets_a_line_per_evaluation_and_one_when_it_was_quiet_for_long(tmp_path, capsys, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    options = SimpleNamespace(envs=4, seed=0)
    setting = SimpleNamespace(spec=make("mpe/simple_spread").spec, algorithm=SimpleNamespace(note=""))
    program = SimpleNamespace(setting=setting, note="", fresh=0)
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
    program = SimpleNamespace(setting=setting, note="", fresh=0, compile_seconds=1.0)
    run = SimpleNamespace(algorithm="adversary=ippo,agent=random", env="mpe/simple_tag", options=options)
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
