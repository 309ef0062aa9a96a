"""flockrl train psro and flockrl train fictitious: pools of best responses, exact where a game can be enumerated, or
learned by an algorithm."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from tyro.conf import Positional

from flockrl.commands.games import load_game, show_table
from flockrl.commands.parsing import parse
from flockrl.core.code import SETTINGS, require_trust, trusting
from flockrl.core.errors import UsageError
from flockrl.core.rundir import METRICS, POOLS, RESULT, fresh, new_directories, refuse_run, write_json
from flockrl.core.settings import build
from flockrl.envs.adapters.adapt import code_of as env_code
from flockrl.training.compilation import prepare

POLICIES = "policies.npz"
MARKS = [base * 10**power for power in range(8) for base in (1, 2, 5)]


@dataclass(frozen=True)
class PSROFlags:
    """What `flockrl train psro` takes."""

    game: Annotated[str, Positional, tyro.conf.arg(metavar="GAME")]
    """A matrix game or a game with hidden information, as SUITE/NAME[:setting=value,...], or a file of payoffs."""
    meta: Literal["nash", "uniform", "alpha-rank"] = "nash"
    """How the pools are mixed; uniform is fictitious play."""
    iterations: int | None = None
    """Rounds, in each of which a best response of every player joins its pool; by default 100, or 10 with --oracle."""
    oracle: str | None = None
    """Learn the responses with this algorithm, in any environment with several sides; by default they are exact."""
    oracle_steps: int = 50_000
    """Environment steps in which a response is learned; with --oracle."""
    episodes: int = 400
    """Episodes in which two policies meet, to measure what they get; with --oracle."""
    envs: int = 16
    """Parallel environments in which responses are learned; with --oracle."""
    seed: int = 0
    """Random seed; with --oracle."""
    out: Path | None = None
    """The directory that the pools are written to; by default a fresh one under runs/. Pools of learned responses that
    were stopped go on with `flockrl resume`."""
    quiet: bool = False
    """Print nothing but errors."""


LEARNED = ("oracle_steps", "episodes", "envs", "seed")
"""Flags that only learned responses have."""


def train_psro(name: str, words: list[str]) -> int:
    """name: psro, or fictitious for uniform mixtures."""
    if name == "fictitious":
        words = [*words, "--meta", "uniform"]
    about = "Policy-space response oracles: pools that grow by best responses, exact or (--oracle) learned."
    given = parse(PSROFlags, words, f"flockrl train {name}", about)
    prepare()
    rounds = given.iterations if given.iterations is not None else (10 if given.oracle else 100)
    if given.oracle is not None:
        path = given.out if given.out is not None else fresh(Path("runs") / _short(name, given.game))
        _refuse_used(path)
        return _learned(given, rounds, path)
    for flag in LEARNED:
        if getattr(given, flag) != getattr(PSROFlags, flag):
            raise UsageError(
                f"--{flag.replace('_', '-')} is for responses that are learned: name an algorithm with --oracle, or "
                "leave it out."
            )
    form, what, shown = _open(given.game)
    from flockrl.games.psro import psro

    points: list[tuple[int, float]] = []
    with _fresh(name, given) as path:
        found = psro(form, rounds, given.meta, lambda size, gap: points.append((size, gap.nash_conv)))
        _write(path, given, name, form, found, points, shown)
    if not given.quiet:
        _tell(given, form, what, found, points)
        print(f"wrote {path / POLICIES}, {path / RESULT}")
    return 0


def resume_psro(path: Path, quiet: bool, trust: bool) -> int:
    """Pools of learned responses that were stopped go on."""
    from flockrl.training.ledger import read_pools

    saved = read_pools(path)
    if (path / RESULT).exists():
        print(f"{path} is finished: nothing to resume.")
        return 0
    names = [env_code(saved["env"]), *(saved["settings"].get(name) for name in SETTINGS)]
    with trusting(trust):
        require_trust(path / POOLS, [name for name in names if isinstance(name, str) and name])
    if saved["env"] == "custom":
        raise UsageError(f"{path} grew in an environment of your own: go on with learned_psro in Python.")
    flags = {name: saved[name] for name in ("meta", "iterations", "oracle", *LEARNED)}
    given = build(PSROFlags, {"game": saved["env"], **flags, "quiet": quiet}, "psro")
    return _learned(given, saved["iterations"], path, saved["settings"], trust)


@contextlib.contextmanager
def _fresh(name: str, given: PSROFlags) -> Iterator[Path]:
    """The directory to write to."""
    with new_directories(given.out, _short(name, given.game), [0]) as (path,):
        _refuse_used(path)
        yield path


def _short(name: str, game: str) -> str:
    return f"{name}-{game.partition(':')[0].replace('/', '-')}"


def _refuse_used(path: Path) -> None:
    if (path / POOLS).exists() and not (path / RESULT).exists():
        raise UsageError(f"{path} holds pools that were stopped: continue with `flockrl resume {path}`.")
    refuse_run(path)
    if any((path / file).exists() for file in (RESULT, METRICS, POLICIES, POOLS)) or any(path.glob("round_*")):
        raise UsageError(f"{path} already holds something: choose another --out.")


def _learned(
    given: PSROFlags, rounds: int, path: Path, settings: dict[str, Any] | None = None, trust: bool = False
) -> int:
    """Pools of learned responses. Their runs stand under the directory; the mixtures' weights are in the result."""
    from flockrl.training.pools import Round, learned_psro

    def tell(now: Round) -> None:
        if not given.quiet:
            exact = "" if now.nash_conv is None else f" NashConv {now.nash_conv:.6f}"
            gain = "" if now.gain is None else f" learned responses gain {now.gain:.4f} by playing (sum over sides)"
            print(f"{now.policies:,} policies:{exact}{',' * bool(exact and gain)}{gain}")

    found = learned_psro(
        given.game, str(given.oracle), steps=given.oracle_steps, rounds=rounds, meta=given.meta,
        episodes=given.episodes, envs=given.envs, seed=given.seed, out=path, settings=settings, each=tell, trust=trust,
    )  # fmt: skip
    (path / METRICS).write_text("".join(json.dumps(row._asdict()) + "\n" for row in found.rounds))
    write_json(
        path / RESULT,
        {
            "algorithm": "fictitious" if given.meta == "uniform" else "psro",
            "env": given.game, "meta": given.meta, "oracle": given.oracle,
            "oracle_steps": given.oracle_steps, "rounds": rounds, "nash_conv": found.nash_conv,
            "weights": {side: w.tolist() for side, w in found.weights.items()},
            "runs": {side: [str(run.relative_to(path)) for run in runs] for side, runs in found.runs.items()},
            "payoffs": None if found.payoffs is None else found.payoffs.tolist(),
        },
    )  # fmt: skip
    if not given.quiet:
        for side, weights in found.weights.items():
            print(f"{side}: " + " ".join(f"{w:.3f}" for w in weights) + " (weights; the first policy is untrained)")
        end = "" if found.nash_conv is None else f"NashConv of the last mixtures {found.nash_conv:.6f}, exactly; "
        print(f"{end}wrote {path / RESULT}")
    return 0


def _open(word: str) -> tuple[Any, str, list[np.ndarray]]:
    """The game as a tree, what it is called, and what players see at each information set [I, O]."""
    from flockrl.games.extensive import unfold
    from flockrl.games.markov import MarkovGame
    from flockrl.games.normal import NormalForm
    from flockrl.games.psro import one_move

    game = load_game(word, None)
    if isinstance(game, MarkovGame):
        raise UsageError(
            f"{game.name} is a game of states, and pools of exact best responses are for matrix games and trees: use "
            f"`flockrl solve {word}`, or `flockrl train ippo {word} --self-play`."
        )
    if isinstance(game, NormalForm):
        return one_move(game), game.name, [np.ones((1, 1), np.float32) for _ in game.counts]
    tree = unfold(game)
    return tree.form, tree.name, [np.asarray(x, np.float32) for x in tree.shown]


def _write(
    path: Path, given: PSROFlags, name: str, form: Any, found: Any, points: list[tuple[int, float]], shown: Any
) -> None:
    arrays: dict[str, np.ndarray] = {}
    for i, seat in enumerate(form.seats):
        table = np.zeros((len(seat.counts), int(seat.actions.max()) + 1))
        table[seat.owner[1:], seat.actions[1:]] = found.policies[i][1:]
        arrays |= {
            f"shown_{i}": shown[i],
            f"policy_{i}": table,
            f"pool_{i}": found.plans[i],
            f"mix_{i}": found.weights[i],
        }
    np.savez_compressed(path / POLICIES, **arrays)  # type: ignore[arg-type]
    rows = [f'{{"policies": {size}, "nash_conv": {conv!r}}}\n' for size, conv in points]
    (path / METRICS).write_text("".join(rows))
    write_json(
        path / RESULT,
        {
            "algorithm": name, "env": given.game, "meta": given.meta, "rounds": len(points), "closed": found.closed,
            "nash_conv": found.gap.nash_conv, "exploitability": found.gap.exploitability,
            "values": found.gap.values.tolist(), "pool_sizes": [len(pool) for pool in found.plans],
        },
    )  # fmt: skip


def _tell(given: PSROFlags, form: Any, what: str, found: Any, points: list[tuple[int, float]]) -> None:
    told = [point for i, point in enumerate(points) if i + 1 in MARKS or i + 1 == len(points)]
    rows = [(f"{size:,}", f"{conv:.6f}", f"{conv / form.players:.6f}") for size, conv in told]
    show_table(f"{what}: pools mixed by {given.meta}", ("policies", "NashConv", "exploitability"), rows)
    end = "nobody gains by a best response" if found.closed else f"stopped after {len(points)} rounds"
    print(f"{end}: NashConv {found.gap.nash_conv:.6g} (sum over players), value of player 0 {found.gap.values[0]:.6f}, "
          f"pools of {', '.join(str(len(pool)) for pool in found.plans)} policies")  # fmt: skip
