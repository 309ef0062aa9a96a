"""The command line: what there is, and which module has each command."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from flockrl.core.errors import Notice, UsageError, install, nearest, reason
from flockrl.core.text import lines

OVERVIEW = """\
flockrl trains teams of agents.

  flockrl list [algorithms|envs]          what there is
  flockrl train ALGORITHM ENV [options]   train a team, e.g. flockrl train mappo mpe/simple_spread
  flockrl train SIDE=PLAYER,... ENV       one player per side, e.g. adversary=maddpg,agent=runs/prey
  flockrl resume RUN                      continue an interrupted run, exactly
  flockrl eval RUN [options]              play whole episodes with a trained team
  flockrl export RUN --out DIR            write a trained team as ONNX or TorchScript
  flockrl bench SUITE                     algorithms x environments x seeds, with statistics
  flockrl tune ALGORITHM ENV --search S   search for settings, and confirm the best on fresh seeds
  flockrl data info FILES...              look into recorded trajectories; also: validate, convert
  flockrl recommend ENV                   which algorithms fit an environment, and why
  flockrl report RUNS... [--out FILE]     one self-contained page about finished runs
  flockrl solve GAME [--method NAME]      equilibria of a game, with their regret
  flockrl exploit RUN                     how much opponents could gain against a trained policy
  flockrl crossplay RUNS... [--out FILE]  every pair of policies that were trained apart, and ratings
  flockrl coordinate consensus|auction|leader   teams that agree by rules, without learning
  flockrl serve --data DIR [options]      train on what actors send, while they play
  flockrl status ADDRESS                  how such a server is
  flockrl dash [DIR...]                   a page in the browser: all runs, live
  flockrl watch RUN                       a trained team in the browser: play, pause, step, look inside
  flockrl completion bash|zsh|fish        completion for a shell
  flockrl --version                       this version, JAX's, and where it computes

`flockrl COMMAND --help` explains a command; `flockrl train mappo --help` lists MAPPO's settings.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 for failed training or writing, 2 for wrong input, 130 after
    Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW)
        return 0 if words else 2
    if words[0] == "--version":
        print(_version())
        return 0
    warnings.formatwarning = _format_warning  # type: ignore[assignment]
    try:
        if words[0] not in COMMANDS:
            raise UsageError(f"There is no command {words[0]!r}.{nearest(words[0], COMMANDS)}")
        status = COMMANDS[words[0]](words[1:])
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _closed():
            raise
        return 0
    except UsageError as error:
        print(f"flockrl: {lines(error)}", file=sys.stderr)
        return error.status
    except MemoryError as error:
        print(f"flockrl: There is not enough memory: {lines(reason(error))}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"\n{error}" if str(error) else "\nInterrupted.", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2


def _version() -> str:
    """This version, JAX's, and the platform that JAX finds."""
    from importlib.metadata import version

    import jax

    from flockrl.training.compilation import found

    platform = found()
    where = f"{platform} ({jax.devices()[0].device_kind})" if platform else "no device that it can use"
    return f"flockrl {version('flockrl')}\njax {jax.__version__} on {where}\npython {sys.version.split()[0]}"


def _closed() -> bool:
    """Whether nobody reads the output any more, as after `| head`. Then nothing more is written to it."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _format_warning(message: Warning | str, category: type[Warning], *place: Any) -> str:
    """Warnings of flockrl as one sentence; others as usual."""
    return f"flockrl: {lines(message)}\n" if category is Notice else _usual_format(message, category, *place)


_usual_format: Any = warnings.formatwarning


def _later(module: str, command: str) -> Callable[[list[str]], int]:
    """A command of another module, imported when it is called."""

    def call(words: list[str]) -> int:
        try:
            commands = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"This command needs {error.name}: {install('relay')}.") from error
        return getattr(commands, command)(words)

    return call


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": _later("flockrl.commands.listing", "listing"),
    "train": _later("flockrl.commands.train", "train"), "resume": _later("flockrl.commands.train", "resume"),
    "eval": _later("flockrl.commands.play", "evaluate"), "export": _later("flockrl.commands.play", "export"),
    "tune": _later("flockrl.commands.tune", "tune"),
    "bench": _later("flockrl.commands.evidence", "bench"),
    "report": _later("flockrl.commands.evidence", "report"),
    "recommend": _later("flockrl.commands.evidence", "recommend"),
    "solve": _later("flockrl.commands.games", "solve"), "exploit": _later("flockrl.commands.exploit", "exploit"),
    "crossplay": _later("flockrl.commands.games", "crossplay"),
    "coordinate": _later("flockrl.commands.coordinate", "coordinate"),
    "completion": _later("flockrl.commands.completion", "completion"),
    "data": _later("flockrl.commands.data", "data"),
    "dash": _later("flockrl.commands.dash", "dash"), "watch": _later("flockrl.commands.dash", "watch"),
    "serve": _later("flockrl.commands.relay", "serve"), "status": _later("flockrl.commands.relay", "status"),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
