"""The commands eval and export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.errors import UsageError
from flockrl.training.compilation import Platform, prepare

SHOWN = 20
"""Agents whose returns are printed one by one."""


@dataclass(frozen=True)
class EvalFlags:
    """What `flockrl eval` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run, or of several seeds; with --policy, the name of an environment."""
    policy: str | None = None
    """Play, in the environment named in place of RUN, a policy that comes with it, or random."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Seed of the episodes."""
    explore: bool = False
    """Sample actions instead of taking the most likely ones."""
    best: bool = False
    """Take the policy whose evaluation during training was the best, instead of the newest."""
    env: str | None = None
    """Play in this environment instead, which must have the same agents and spaces, or other numbers of agents where
    the networks do not depend on these (--net entities)."""
    against: str | None = None
    """Who plays the other sides instead, as SIDE=PLAYER,...: a run (of several seeds, each), a policy that comes with
    the environment, random, or a script."""
    channel: str | None = None
    """Let messages take another channel than in training, as name=value,...: loss, delay, noise, bits, topology, ..."""
    silence: bool = False
    """Cut all messages."""
    record: Path | None = None
    """Write these episodes to this file (.arrow, .parquet or .csv)."""
    gif: Path | None = None
    """Write an animation of one episode to this file (.gif, or .mp4 where ffmpeg is installed)."""
    side_by_side: bool = False
    """Show the best, the median and the worst of 25 episodes side by side instead."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    plot: Path | None = None
    """Write a still picture of the paths in one episode to this file (.png, .pdf or .svg); particle worlds only."""
    trust: bool = False
    """Import code that the run's files name: an environment of your own, a kernel, a script. Only for runs that you
    know: such code can do whatever you can."""


@dataclass(frozen=True)
class ExportFlags:
    """What `flockrl export` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run."""
    out: Path
    """Directory to write to; an earlier export there is replaced."""
    format: Literal["onnx", "torchscript"] = "onnx"
    """Kind of model."""
    side: str | None = None
    """Write the policy of this side alone, of a run with a learner for each side."""
    best: bool = False
    """Write the policy whose evaluation during training was the best, instead of the newest."""
    per_group: bool = False
    """Write one model for each group of agents that share parameters, instead of one for the team."""
    per_agent: bool = False
    """Write one model for each agent, with messages as inputs and outputs, so that agents run apart."""
    trust: bool = False
    """Import code that the run's files name: an environment of your own, a kernel, a script. Only for runs that you
    know: such code can do whatever you can."""


def evaluate(words: list[str]) -> int:
    about = "Play whole episodes with a trained team and report their returns."
    given = parse(EvalFlags, words, "flockrl eval", about)
    prepare(given.platform)
    from flockrl.training.channels import talks
    from flockrl.training.learned import open_runs
    from flockrl.view.animation import write_animation, write_paths

    pictures = [(write_animation, given.gif), (write_paths, given.plot)]
    pictures = [(write, file) for write, file in pictures if file is not None]
    if pictures and given.env is not None and given.policy is None:
        raise UsageError("A picture shows the run's own environment: leave out --env, or --gif and --plot.")
    if given.side_by_side and not pictures:
        raise UsageError("--side-by-side says what a picture shows: give its file with --gif or --plot.")
    if given.policy is not None:
        return _scripted(given, pictures)
    runs = open_runs(given.run)
    if given.record is not None and len(runs) > 1:
        raise UsageError(f"{given.run} holds several seeds: name one of them to record, such as {runs[0].path}.")
    if given.against is not None:
        if pictures or given.record is not None or given.env is not None or given.best or _channel(given) is not None:
            raise UsageError("--against plays in the run's own environment and only counts: leave out other options.")
        return _against(runs, given)
    channel = _channel(given)
    for run in runs:
        options = given.episodes, given.seed, given.explore, given.env, given.record, given.best
        result = run.evaluate(*options, channel)
        _tell(run, result, "sampled " if given.explore else "greedy ", _spec(run, given, result))
        if channel is None and given.record is None and talks(run.config):
            _messages(run, options)
        if getattr(run.config.config, "adversary", "") and not given.best and given.record is None and channel is None:
            attack = run.evaluate(*options[:4], attacked=True)
            how = "sampled" if given.explore else "greedy"
            _tell(run, attack, f"{how}, attacked ({run.config.config.adversary}) ")
    if given.record is not None:
        print(f"wrote {given.record}")
    _draw(runs[0], given, pictures)
    return 0


def _scripted(given: Any, pictures: Sequence[Any]) -> int:
    """A policy that comes with an environment."""
    from flockrl.training.scripted import Scripted

    for name in ("best", "record", "silence", "channel", *(["explore"] if given.against is None else [])):
        if getattr(given, name):
            raise UsageError(f"--{name} is for a run: leave it out with --policy.")
    if given.env is not None:
        raise UsageError("With --policy, name the environment in place of RUN, and leave out --env.")
    if given.run.is_dir():
        raise UsageError(f"--policy plays in an environment, and {given.run} is a directory: name an environment.")
    team = Scripted(given.policy, given.run.as_posix())
    if given.against is not None:
        if pictures:
            raise UsageError("--against only counts: leave out --gif and --plot.")
        return _against([team], given)
    _tell(team, team.evaluate(given.episodes, given.seed))
    _draw(team, given, pictures)
    return 0


def _spec(run: Any, given: Any, result: Any) -> Any:
    """The spec of the environment that was played in, which may have other numbers of agents than the run's own."""
    from flockrl.envs.registry import make

    return run.spec if len(result.per_agent) == run.spec.num_agents else make(given.env).spec


def _tell(run: Any, result: Any, how: str = "", spec: Any = None) -> None:
    """Returns and what the environment measures, both with standard errors over episodes, and the agents' returns."""
    from flockrl.training.figures import parties

    spec = spec or run.spec
    over = f"mean over agents and {result.episodes} {how}episodes"
    print(f"{run.path}: return {result.mean:.3f}{_error(result.returns.mean(1))} ({over}; \u00b1 standard error)")
    for name, own in parties(spec, run.config.config).items():
        print(f"  {name}: return {result.per_agent[list(own)].mean():.3f}")
    if result.measures:
        print("  " + ", ".join(f"{name} {x.mean():.4g}{_error(x, '.2g')}" for name, x in result.measures.items()))
    agents = ", ".join(f"{n} {x:.3f}" for n, x in zip(spec.agents[:SHOWN], result.per_agent, strict=False))
    agents += f" and {spec.num_agents - SHOWN} more" if spec.num_agents > SHOWN else ""
    print(f"  std {result.std:.3f}, episode length {result.lengths.mean():.1f}, per agent: {agents}")


def _draw(run: Any, given: Any, pictures: Sequence[Any]) -> None:
    for write, file in pictures:
        write(run, file, given.seed, given.side_by_side, given.explore, given.best)
        print(f"wrote {file}")


def _channel(given: Any) -> str | None:
    """The channel that messages take instead of the run's own."""
    from flockrl.training.channels import SILENCE

    if given.silence and given.channel is not None:
        raise UsageError("--silence cuts all messages: leave out --channel.")
    return SILENCE if given.silence else given.channel


def _messages(run: Any, options: tuple[Any, ...]) -> None:
    """What the team's messages do: the same episodes in silence, and the measures where there are any."""
    from flockrl.envs.host.env import Host
    from flockrl.training.channels import SILENCE

    silent = run.evaluate(*options, SILENCE)
    print(f"  silenced: return {silent.mean:.3f}; a team trained without messages shows whether they are needed")
    if isinstance(run.env, Host) or options[3] is not None:
        return
    found = run.listening(options[1], options[5])
    told = "" if found.listening is None else f"listening {found.listening.mean():.3f} nats, "
    print(
        f"  messages: signalling {found.signalling.mean():.3f} bits, {told}"
        f"{100 * found.changed.mean():.1f}% of actions change in silence (means over agents)"
    )


def _against(runs: Sequence[Any], given: Any) -> int:
    """Every run against every opponent: a line for each pair, then the mean over pairs of each side."""
    from flockrl.training.players import match, opponents

    spec, scores = runs[0].env.spec, []
    for run in runs:
        for other in opponents(given.against):
            team = given.policy or run
            players = {side: other.get(side, team) for side in {**spec.parties, **other}}
            result = match(players, run.env, episodes=given.episodes, seed=given.seed, explore=given.explore)
            scores.append([float(result.per_agent[list(own)].mean()) for own in spec.parties.values()])
            each = [result.returns[:, list(own)].mean(1) for own in spec.parties.values()]
            told = ", ".join(f"{side} {x.mean():.3f}{_error(x)}" for side, x in zip(spec.parties, each, strict=True))
            print(f"{run.path} against {', '.join(f'{s}={p}' for s, p in other.items())}: {told}")
    if len(scores) > 1:
        means = np.mean(scores, axis=0)
        told = ", ".join(f"{side} {x:.3f}" for side, x in zip(spec.parties, means, strict=True))
        print(f"mean over {len(scores)} pairs: {told} (return, mean over agents and {given.episodes} episodes each)")
    return 0


def _error(each: np.ndarray, form: str = ".3f") -> str:
    """The standard error of a mean over episodes [E], as it is printed; nothing where there is one alone."""
    return f" \u00b1 {each.std(ddof=1) / np.sqrt(len(each)):{form}}" if len(each) > 1 else ""


def export(words: list[str]) -> int:
    given = parse(ExportFlags, words, "flockrl export", "Write a trained team as a model that runs without flockrl.")
    from flockrl.portable.write import export

    options = given.format, given.per_group, given.side, given.best, given.per_agent
    print(f"wrote {export(given.run, given.out, *options)}")
    return 0
