"""The flags of a hierarchy: its own, and those of each tier behind its name (--manager.lr, --worker.manager.lr)."""

from __future__ import annotations

import dataclasses
from typing import Any

import tyro

from flockrl.algos.feudal_config import FEUDAL, TIERS, FeudalConfig, gathered, hierarchy, is_hierarchy, leads
from flockrl.algos.presets import algorithms, make_config
from flockrl.core.errors import UsageError

HIDDEN: Any = tyro.conf.Suppress[tyro.conf.Fixed[str]]


def tiers_named(name: str, players: dict[str, str], words: list[str]) -> tuple[dict[str, str] | None, list[str]]:
    """Who manages and who works, None where an algorithm is no hierarchy, and the other words.

    `feudal --manager qmix --worker ippo` is manager=qmix,worker=ippo.
    """
    if players or name not in algorithms() or not leads(name):
        return (dict(players) if is_hierarchy(players) else None), words
    found, rest, i = {}, [], 0
    while i < len(words):
        flag, equals, value = words[i].partition("=")
        if flag.removeprefix("--") not in TIERS or not flag.startswith("--"):
            rest.append(words[i])
        elif equals or i + 1 < len(words):
            found[flag.removeprefix("--")] = value if equals else words[i + 1]
            i += not equals
        else:
            raise UsageError(f"{flag} needs the name of an algorithm.")
        i += 1
    return found, rest


def settings_of(name: str, names: dict[str, str], saved: dict[str, Any]) -> dict[str, Any]:
    """The settings of a hierarchy that a file has, with who was named in the place of who stands there."""
    whole = FEUDAL if "=" in name else name
    return vars(make_config(whole, hierarchy(names, saved) if names else gathered(saved)))


def flags_of(settings: dict[str, Any]) -> dict[str, Any]:
    """What the command line asks for: "feudal", the hierarchy's own settings, and by name those of tiers that learn."""
    config = make_config(FEUDAL, settings)
    return {FEUDAL: _flags(config, {}), **_tiers(config)}


def _tiers(config: FeudalConfig) -> dict[str, Any]:
    """Each tier's settings; a hierarchy's as a value of a class whose nested classes are its tiers."""
    own = {name: config.tier(name) for name in config.tiers}
    return {name: _flags(x, _tiers(x)) if isinstance(x, FeudalConfig) else x for name, x in own.items()}


def _flags(config: FeudalConfig, tiers: dict[str, Any]) -> Any:
    hidden = {**dict.fromkeys(TIERS, ""), **{f"{name}_settings": "" for name in TIERS}}
    fields: list[Any] = [
        (name, type(tiers[name]) if name in tiers else HIDDEN, dataclasses.field(default=value))
        for name, value in {**hidden, **tiers}.items()
    ]
    space = {"__post_init__": lambda self: None, "__doc__": FeudalConfig.__doc__}
    cls = dataclasses.make_dataclass("Hierarchy", fields, bases=(FeudalConfig,), namespace=space, frozen=True)
    return cls(**{name: value for name, value in vars(config).items() if name not in hidden})


def chosen(given: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of `feudal` that the flags of `flags_of` say: of a tier those that are not its algorithm's own."""
    config = make_config(FEUDAL, settings)
    found = {**vars(given[FEUDAL]), "manager": config.manager, "worker": config.worker}
    for tier in TIERS:
        found[f"{tier}_settings"] = {}
        if tier in config.tiers:
            own, before = given[tier], config.tier(tier)
            below = {FEUDAL: own, **{name: getattr(own, name) for name in TIERS if hasattr(own, name)}}
            values = chosen(below, vars(before)) if isinstance(own, FeudalConfig) else vars(own)
            usual = {**vars(make_config(getattr(config, tier), {})), "rollout_steps": before.rollout_steps}
            found[f"{tier}_settings"] = {key: x for key, x in values.items() if x != usual[key]}
    return found
