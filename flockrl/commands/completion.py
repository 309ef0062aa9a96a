"""The command completion: what a shell needs to complete commands, algorithms, environments, flags and choices."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from flockrl.core.errors import UsageError, nearest

PLACES = {
    "train": ("train", "TrainFlags"), "resume": ("train", "ResumeFlags"), "eval": ("play", "EvalFlags"),
    "export": ("play", "ExportFlags"), "bench": ("evidence", "BenchFlags"), "report": ("evidence", "ReportFlags"),
    "recommend": ("evidence", "RecommendFlags"), "solve": ("games", "SolveFlags"),
    "exploit": ("exploit", "ExploitFlags"), "crossplay": ("games", "CrossplayFlags"),
    "train psro": ("oracles", "PSROFlags"), "train fictitious": ("oracles", "PSROFlags"),
    "tune": ("tune", "TuneFlags"), "serve": ("relay", "ServeFlags"), "status": ("relay", "StatusFlags"),
    "dash": ("dash", "DashFlags"), "watch": ("dash", "WatchFlags"), "coordinate": ("coordinate", "CoordinateFlags"),
}  # fmt: skip
"""Commands -> the module and the class of their flags."""
SHELLS = ("bash", "zsh", "fish")
USAGE = """usage: flockrl completion bash|zsh|fish

Completion of commands, algorithms, environments and flags. To have it in every new shell:

  bash   flockrl completion bash > ~/.local/share/bash-completion/completions/flockrl
  zsh    flockrl completion zsh >> ~/.zshrc
  fish   flockrl completion fish > ~/.config/fish/completions/flockrl.fish
"""


class Vocabulary(NamedTuple):
    """words: by command, what follows it. flags: by command, and for train by algorithm under "train NAME". choices: by
    flag, its values where they can be listed."""

    words: dict[str, list[str]]
    flags: dict[str, list[str]]
    choices: dict[str, list[str]]


def completion(words: list[str]) -> int:
    if words[:1] in ([], ["-h"], ["--help"]):
        print(USAGE)
        return 0 if words else 2
    if words[0] not in SHELLS:
        raise UsageError(
            f"flockrl completion writes for bash, zsh or fish, not {words[0]!r}.{nearest(words[0], SHELLS)}"
        )
    known = vocabulary()
    print(fish(known) if words[0] == "fish" else bash(known, words[0] == "zsh"))
    return 0


def vocabulary() -> Vocabulary:
    from flockrl.algos.presets import algorithms, family
    from flockrl.commands.main import COMMANDS
    from flockrl.commands.train import POOL_METHODS
    from flockrl.envs.adapters.adapt import SUITES as OUTSIDE
    from flockrl.envs.registry import SUITES, environments
    from flockrl.evidence.suite import shipped
    from flockrl.training.config import TrainOptions

    envs = [f"{suite}/{name}" for suite in SUITES for name in environments(suite)]
    envs += [f"{suite}/" for suite in (*OUTSIDE, "data")]
    words = {
        "": sorted([*COMMANDS, "--help", "--version"]), "train": [*algorithms(), *POOL_METHODS],
        "tune": list(algorithms()), "ENV": envs, "recommend": envs,
        "solve": [name for name in envs if name.startswith("games/")],
        "bench": list(shipped()), "list": ["algorithms", "envs"], "data": ["info", "validate", "convert"],
        "completion": list(SHELLS), "coordinate": ["consensus", "auction", "leader"],
    }  # fmt: skip
    classes: dict[str, list[Any]] = {}
    for command, (module, name) in PLACES.items():
        try:
            classes[command] = [getattr(importlib.import_module(f"flockrl.commands.{module}"), name)]
        except ImportError:  # of an extra that is not installed
            continue
    for name in algorithms():
        try:
            classes[f"train {name}"] = [*classes["train"], TrainOptions, family(name).config]
        except UsageError:  # of another distribution, which is broken
            continue
    flags = {command: ["--help", *_flags(found)] for command, found in classes.items()}
    choices = dict(pair for found in classes.values() for cls in found for pair in _choices(cls))
    return Vocabulary(words, flags, choices)


def _flags(classes: Iterable[Any]) -> Iterator[str]:
    for cls in classes:
        for field, hint in _fields(cls):
            word = field.name.replace("_", "-")
            yield f"--no-{word}" if hint is bool and field.default is True else f"--{word}"


def _choices(cls: Any) -> Iterator[tuple[str, list[str]]]:
    for field, hint in _fields(cls):
        kinds = [hint, *typing.get_args(hint)]
        named = next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is Literal), ())
        if named:
            yield f"--{field.name.replace('_', '-')}", [str(x) for x in named]


def _fields(cls: Any) -> Iterator[tuple[Any, Any]]:
    """Fields that are flags, with their types; words without a flag (`Positional`) are none, nor are tables."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if typing.get_origin(hints[field.name]) not in (typing.Annotated, Mapping):
            yield field, hints[field.name]


def bash(known: Vocabulary, zsh: bool = False) -> str:
    """A function for bash's `complete`; zsh has the same after bashcompinit."""
    flags: dict[str, list[str]] = {}
    for command, found in known.flags.items():
        if command != "train":  # commands with the same flags share a line
            flags.setdefault(" ".join(found), []).append(f"'{command}'")
    of_flags = [f"    {'|'.join(names)}) flags='{found}';;" for found, names in flags.items()]
    of_words = [f"    {name}) words='{' '.join(found)}';;" for name, found in known.words.items() if name]
    of_choices = [f"    {flag}) choices='{' '.join(found)}';;" for flag, found in known.choices.items()]
    lines = [
        "autoload -U +X compinit && compinit && autoload -U +X bashcompinit && bashcompinit" if zsh else "",
        "_flockrl() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" cmd="${COMP_WORDS[1]}"',
        "  local key=\"$cmd\" place=\"$cmd\" words='' flags='' choices=''",
        '  [ "$cmd" = train ] && key="train ${COMP_WORDS[2]}"',
        '  [ "$cmd" = train ] && [ "$COMP_CWORD" -gt 2 ] && place=ENV',
        '  case "$key" in', *of_flags, "  esac",
        '  case "$place" in', *of_words, "  esac",
        '  case "$prev" in', *of_choices, "  esac",
        f"  if [ \"$COMP_CWORD\" = 1 ]; then words='{' '.join(known.words[''])}'; fi",
        '  if [ -n "$choices" ]; then COMPREPLY=( $(compgen -W "$choices" -- "$cur") )',
        '  elif [ "$COMP_CWORD" -gt 1 ] && [ "${cur#-}" != "$cur" ]; then',
        '    COMPREPLY=( $(compgen -W "$flags" -- "$cur") )',
        '  else COMPREPLY=( $(compgen -W "$words" -- "$cur") ); fi',
        "}",
        "complete -o default -F _flockrl flockrl",
    ]  # fmt: skip
    return "\n".join(lines).lstrip("\n")


def fish(known: Vocabulary) -> str:
    """Lines of fish's `complete`. After train, flags are those of all algorithms."""
    lines = [f"complete -c flockrl -n __fish_use_subcommand -f -a '{' '.join(known.words[''])}'"]
    for command, found in known.words.items():
        if command in ("", "ENV"):
            continue
        seen = f"__fish_seen_subcommand_from {command}"
        if command != "train":
            lines.append(f"complete -c flockrl -n '{seen}' -a '{' '.join(found)}'")
            continue
        for count, words in ((2, found), (3, known.words["ENV"])):
            when = f"{seen}; and test (count (commandline -opc)) -eq {count}"
            lines.append(f"complete -c flockrl -n '{when}' -f -a '{' '.join(words)}'")
    flags: dict[str, dict[str, None]] = {}
    for command, found in known.flags.items():
        flags.setdefault(command.partition(" ")[0], {}).update(dict.fromkeys(found))
    for command, names in flags.items():
        for flag in names:
            values = f" -x -a '{' '.join(known.choices[flag])}'" if flag in known.choices else ""
            lines.append(f"complete -c flockrl -n '__fish_seen_subcommand_from {command}' -l {flag[2:]}{values}")
    return "\n".join(lines)
