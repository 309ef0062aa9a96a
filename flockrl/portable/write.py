"""Exported teams on disk: a model file and `metadata.json`, which says all that is needed to act and to record."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

import flockrl
from flockrl.algos.assembly import Sides
from flockrl.core.errors import UsageError
from flockrl.core.groups import Share, make_groups
from flockrl.core.rundir import write_json
from flockrl.core.spec import spec_to_json
from flockrl.core.types import Actor, Algorithm, EnvSpec, PyTree
from flockrl.policies.policy import Policy
from flockrl.portable.alone import Alone, hearing, require_apart
from flockrl.portable.graph import Value
from flockrl.portable.lower import stored
from flockrl.portable.model import FORMAT, FORMAT_VERSION, METADATA
from flockrl.portable.team import Portable, trace
from flockrl.portable.to_onnx import write_onnx
from flockrl.portable.to_torch import write_torchscript
from flockrl.training.learned import open_run
from flockrl.training.run import Run

Format = Literal["onnx", "torchscript"]
KINDS = {"onnx": "onnx", "torchscript": "pt"}
"""Formats and what metadata calls them, which is also how their files end."""


def export(
    source: Run | Policy | str | Path,
    out: str | Path,
    format: Format = "onnx",
    per_group: bool = False,
    side: str | None = None,
    best: bool = False,
    per_agent: bool = False,
) -> Path:
    """Write a trained team as a model that needs neither flockrl nor JAX. Returns its directory.

    source: a run, its directory, or a policy. per_group: one model for each group of agents that share parameters, in
    directories of their own below `out`, instead of one for the team. side: the agents of one side alone, of a run with
    a learner for each side. best: the policy of a run whose evaluation was the best, instead of the newest. per_agent:
    one model for each agent, which hears others through its inputs: `flockrl.relay.Member` runs it apart from them.
    """
    if isinstance(source, str | Path):
        source = open_run(source)
    if isinstance(source, Run):
        if (per_group or per_agent) and side is None and isinstance(source.config.config, Sides):
            raise UsageError("Groups and agents belong to a side here: name it with side=... (--side).")
        source = source.policy(side=side, best=best)
    elif side is not None or best:
        raise UsageError("side and best are for runs, and this is a policy: leave them out.")
    policy = source
    exporter = Exporter(
        policy.algorithm, policy.spec, policy.share, name=policy.name, format=format, per_group=per_group,
        per_agent=per_agent,
    )  # fmt: skip
    return exporter.write(policy.params, out, policy.version)


class Exporter:
    """Writes a policy as often as its parameters change. Tracing, which takes a moment, happens once."""

    def __init__(
        self, policy: Algorithm | Actor, spec: EnvSpec, share: Share, *, name: str, format: Format = "onnx",
        per_group: bool = False, per_agent: bool = False,
    ):  # fmt: skip
        if per_group and per_agent:
            raise UsageError("A model is for a group or for an agent: choose one of per_group and per_agent.")
        if format not in KINDS:
            raise UsageError(f"format must be onnx or torchscript, not {format!r}.")
        self.policy, self.spec, self.name, self.kind = policy, spec, name, KINDS[format]
        self.groups = make_groups(spec, share)
        self.parts: list[int | None] = list(range(len(self.groups))) if per_group else [None]
        self.apart = per_agent
        if per_agent:
            self.parts = list(range(spec.num_agents))
            self.heard = hearing(policy)
        self._flags: list[bytes] = []
        self.traced: list[Portable] = []

    def write(self, params: PyTree, out: str | Path, version: int = 0) -> Path:
        """Write the policy with these parameters. An earlier export in `out` is replaced all at once."""
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
        flags = [x.tobytes() for x in arrays if x.dtype == bool]
        if not self.traced or flags != self._flags:
            self.traced = self._trace(params)
            self._flags = flags
        self._id = hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()[:32] if self.apart else ""
        base = Path(out)
        for which, team in zip(self.parts, self.traced, strict=True):
            for value, array in zip(team.parameters, arrays, strict=True):
                if value.parameter is not None:
                    value.parameter = np.asarray(array, stored(array.dtype))
            self._write(team, params, version, *self._place(base, which))
        return base

    def _trace(self, params: PyTree) -> list[Portable]:
        if not self.apart:
            return [trace(self.policy, params, self.spec, self.groups, which) for which in self.parts]
        require_apart(self.policy, params, self.spec, self.groups, self.heard)
        each = [Alone(self.policy, self.spec, self.groups, i) for i in range(self.spec.num_agents)]
        return [trace(one, params, one.spec, make_groups(one.spec, "all"), None) for one in each]

    def _place(self, base: Path, which: int | None) -> tuple[Path, list[list[str]], dict[str, Any]]:
        """Where a part is written, who shares its parameters, and what else its metadata say."""
        if self.apart:
            assert which is not None
            names = self.spec.agents
            return base / f"member_{which}", [[names[which]]], {"member": self._member(which)}
        groups = self.groups if which is None else [self.groups[which]]
        shares = [[self.spec.agents[i] for i in group.agents] for group in groups]
        return base if which is None else base / f"group_{which}", shares, {}

    def _member(self, agent: int) -> dict[str, Any]:
        """An agent's place in its team: who is in it, whom it hears and who hears it, and what messages are like."""
        heard = self.heard
        about = {"index": agent, "team": list(self.spec.agents), "id": self._id}
        if heard is None:
            return about
        hears, heard_by = (np.flatnonzero(links[agent]).tolist() for links in (heard.links, heard.links.T))
        talk = {"rounds": heard.rounds, "size": heard.size, "delay": heard.delay}
        talk |= {"nearest": True} if heard.nearest else {}
        return about | talk | {"hears": hears, "heard_by": heard_by}

    def _write(
        self, team: Portable, params: PyTree, version: int, path: Path, shares: list[list[str]], more: dict[str, Any]
    ) -> None:
        _prepare(path)
        draft = path / f".draft.{self.kind}"
        try:
            (write_onnx if self.kind == "onnx" else write_torchscript)(draft, team.inputs, team.outputs)
            digest = hashlib.sha256(draft.read_bytes()).hexdigest()
            # Named by what is inside: whoever still reads the old metadata never finds a new model under its name.
            file = f"model-{digest[:16]}.{self.kind}"
            os.replace(draft, path / file)
        finally:
            draft.unlink(missing_ok=True)
        write_json(path / METADATA, self._metadata(team, file, digest, params, version, shares) | more)
        for old in path.glob("model-*"):
            if old.name != file:
                old.unlink()

    def _metadata(
        self, team: Portable, file: str, digest: str, params: PyTree, version: int, shares: list[list[str]]
    ) -> dict[str, Any]:
        inputs, outputs = {x.name: x for x in team.inputs}, team.outputs
        obs, action = inputs["obs"], outputs["action"]
        noise = inputs.get("noise")
        return {
            "model_file": file,
            "model_type": self.kind,
            "input_dtype": obs.dtype.name,
            "output_dtype": action.dtype.name,
            "input_shape": [1, *obs.shape[1:]],
            "output_shape": [1, *action.shape[1:]],
            "default_device": "cpu",
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "flockrl_version": flockrl.__version__,
            "sha256": digest,
            "algorithm": self.name,
            "policy_version": version,
            "spec": spec_to_json(team.spec),
            "share": shares,
            "inputs": [_entry(name, x) for name, x in inputs.items()],
            "outputs": [_entry(name, x) for name, x in outputs.items()],
            "memory": [list(x.shape) for x in team.memory],
            "initial_memory": [_plain(x) for x in team.memory],
            "noise": None if noise is None else {"kind": "uniform", "low": 0.0, "high": 1.0, "shape": _shape(noise)},
            "exploration": _scalars(params),
        }


def _prepare(path: Path) -> None:
    """Make the directory, or see that it holds an export already or nothing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot create {path}: {error.strerror}.") from error
    if any(path.iterdir()):
        try:
            ours = json.loads((path / METADATA).read_text()).get("format") == FORMAT
        except (OSError, ValueError, AttributeError):
            ours = False
        if not ours:
            raise UsageError(f"{path} holds something else than an exported team: choose another directory.")


def _entry(name: str, x: Value) -> dict[str, Any]:
    return {"name": name, "dtype": x.dtype.name, "shape": _shape(x)}


def _shape(x: Value) -> list[Any]:
    return ["batch", *x.shape[1:]]


def _plain(x: np.ndarray) -> Any:
    """An array for JSON: one value where all are the same, else nested lists; what is not finite as text."""
    if x.size and (x == x.flat[0]).all():
        x = x.flat[0]
    if np.ndim(x):
        return [_plain(row) for row in x]
    value = x.item()
    return value if math.isfinite(value) else str(value)


def _scalars(params: PyTree) -> dict[str, float]:
    """The single numbers among a policy's parameters: how far exploration has come."""
    named = params.items() if isinstance(params, dict) else ()
    return {name: np.asarray(x).item() for name, x in named if getattr(x, "ndim", 1) == 0}
