"""An exported team that acts: numpy and onnxruntime, nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.spec import spec_from_json
from flockrl.data.choices import is_real

FORMAT, FORMAT_VERSION, METADATA = "flockrl-model", 1, "metadata.json"
Memory = tuple[np.ndarray, ...]


class Act(NamedTuple):
    """What a team does. With a batch axis in front when the observations had one.

    action: [N] int32 or [N, W] float32 within bounds. raw: the same before it was brought within bounds, what a
    trajectory records. logp: [N] the log-probability of `raw`, None for greedy actions and policies without one.
    memory: to be given to the next call; it always has a batch axis.
    """

    action: np.ndarray
    raw: np.ndarray
    logp: np.ndarray | None
    memory: Memory


class Model:
    """A team from a directory with `metadata.json` and an ONNX file. It is checked before it is used."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.metadata, content = _load(self.path)
        if hashlib.sha256(content).hexdigest() != self.metadata["sha256"]:
            raise UsageError(f"The model of {self.path} is damaged: its sha256 is not the one in {METADATA}.")
        self.spec = spec_from_json(self.metadata["spec"])
        self.version: int = self.metadata["policy_version"]
        self._session = _session(content, self.path)
        self._check()
        inputs = {entry["name"]: entry for entry in self.metadata["inputs"]}
        self._shape, self._dtype = tuple(inputs["obs"]["shape"][1:]), np.dtype(inputs["obs"]["dtype"])
        self._mask = tuple(inputs["mask"]["shape"][1:]) if "mask" in inputs else None
        self._noise = tuple(inputs["noise"]["shape"][1:]) if "noise" in inputs else None
        self._all_legal = np.ones((1, *(self._mask or ())), bool)
        names = [entry["name"] for entry in self.metadata["outputs"]]
        self._memories = [name for name in inputs if name.startswith("memory_")]
        self._begin = self._initial_memory([inputs[name] for name in self._memories])
        self._start = self.memory(1)
        real = is_real(self.spec.actions)
        self._unmasked = real[:, None] if real.any() else None
        after = [f"next_{name}" for name in self._memories]
        self._greedy = ["action", *after]
        explore = ["sampled", *(name for name in ("raw", "logp") if name in names)]
        self._explore = [*explore, *after]
        self._raw, self._logp = (explore.index(name) if name in explore else None for name in ("raw", "logp"))

    def memory(self, batch: int = 1) -> Memory:
        """What `batch` teams remember when an episode begins."""
        return tuple(np.repeat(x[None], batch, axis=0) for x in self._begin)

    def _initial_memory(self, inputs: list[dict[str, Any]]) -> Memory:
        """What one team remembers when an episode begins, for each of these inputs; zeros in older exports."""
        values = self.metadata.get("initial_memory", [0] * len(inputs))
        try:
            return tuple(
                np.array(np.broadcast_to(np.array(value).astype(entry["dtype"]), entry["shape"][1:]))
                for value, entry in zip(values, inputs, strict=True)
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self.path / METADATA} has no usable 'initial_memory': {error}.") from error

    def act(
        self,
        obs: np.ndarray,
        mask: np.ndarray | None = None,
        memory: Memory | None = None,
        rng: np.random.Generator | None = None,
        explore: bool = True,
    ) -> Act:
        """Actions of one team or of a batch of teams.

        obs: [N, O] or [B, N, O]. mask: [N, A] or [B, N, A] bool, the legal actions, all by default; real actions are
        never masked. memory: what the last call returned, None when an episode begins. rng: needed to explore, that is
        to act as in training.
        """
        obs = np.asarray(obs, self._dtype)
        single = obs.ndim == 2
        if single:
            obs = obs[None]
        if obs.ndim != 3 or obs.shape[1:] != self._shape:
            raise UsageError(f"The model expects observations of shape {list(self._shape)}, not {list(obs.shape)}.")
        batch = len(obs)
        feed = {"obs": obs}
        if self._mask is not None:
            feed["mask"] = self._legal_actions(mask, batch)
        if self._memories:
            if memory is None:
                memory = self._start if batch == 1 else self.memory(batch)
            feed.update(zip(self._memories, memory, strict=True))
        if self._noise is not None:
            if explore and rng is None:
                raise UsageError("Exploring needs random numbers: give a numpy generator as rng.")
            size = (batch, *self._noise)
            feed["noise"] = rng.random(size, np.float32) if explore and rng is not None else np.zeros(size, np.float32)
        outs = self._session.run(self._explore if explore else self._greedy, feed)
        first = len(outs) - len(self._memories)
        after = tuple(outs[first:])
        if single:
            outs = [x[0] for x in outs[:first]]
        if not explore:
            return Act(outs[0], outs[0], None, after)
        raw = outs[0] if self._raw is None else outs[self._raw]
        return Act(outs[0], raw, None if self._logp is None else outs[self._logp], after)

    def _legal_actions(self, mask: np.ndarray | None, batch: int) -> np.ndarray:
        assert self._mask is not None
        if mask is None:
            return self._all_legal if batch == 1 else np.ones((batch, *self._mask), bool)
        mask = np.asarray(mask, bool)
        mask = mask[None] if mask.ndim == 2 else mask
        if mask.shape != (batch, *self._mask):
            raise UsageError(f"The mask has shape {list(mask.shape)}, and {[batch, *self._mask]} was expected.")
        return mask if self._unmasked is None else mask | self._unmasked

    def _check(self) -> None:
        """The model's inputs and outputs are those that the metadata names."""
        for what, found in (("inputs", self._session.get_inputs()), ("outputs", self._session.get_outputs())):
            named = [(entry["name"], entry["dtype"], entry["shape"]) for entry in self.metadata[what]]
            if named != [(x.name, DTYPES.get(x.type), x.shape) for x in found]:
                raise UsageError(f"The model of {self.path} has other {what} than its {METADATA} says.")
        sizes = {entry["name"]: tuple(entry["shape"][1:]) for entry in self.metadata["inputs"]}
        n, spec = self.spec.num_agents, self.spec
        mask = (n, spec.action_size) if spec.maskable else None
        if sizes.get("obs") != (n, spec.obs_size) or sizes.get("mask") != mask:
            raise UsageError(f"The model of {self.path} is not one for the agents and spaces in its {METADATA}.")


def _session(content: bytes, path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError("Acting with an exported team needs onnxruntime: pip install onnxruntime.") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UsageError(f"onnxruntime cannot load the model of {path}: {str(error).splitlines()[0]}") from error


def _load(path: Path) -> tuple[dict[str, Any], bytes]:
    """The metadata and the model's bytes."""
    saved = _read(path)
    try:
        return saved, (path / saved["model_file"]).read_bytes()
    except OSError as error:
        newer = _read(path)  # a newer export may have taken its place in this moment
        if newer["model_file"] == saved["model_file"]:
            raise UsageError(f"Cannot read the model of {path}: {error.strerror}.") from error
        return _load(path)


def _read(path: Path) -> dict[str, Any]:
    """The metadata, whose fields are all there."""
    try:
        saved = json.loads((path / METADATA).read_text())
    except OSError as error:
        groups = sorted(path.glob(f"*/{METADATA}")) if path.is_dir() else []
        hint = f" It holds one model per group: name one, such as {groups[0].parent}." if groups else ""
        raise UsageError(f"{path} is not an exported team: it has no {METADATA}.{hint}") from error
    except ValueError as error:
        raise UsageError(f"{path / METADATA} is not valid JSON: {error}.") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise UsageError(f"{path} is not a team that flockrl exported.")
    if saved.get("format_version") != FORMAT_VERSION:
        raise UsageError(
            f"{path} has format version {saved.get('format_version')!r}, and this flockrl reads {FORMAT_VERSION}."
        )
    for name, kind in FIELDS.items():
        if not isinstance(saved.get(name), kind) or isinstance(saved.get(name), bool):
            raise UsageError(f"{path / METADATA} has no usable {name!r}.")
    if saved["model_type"] != "onnx":
        raise UsageError(f"{path} holds a TorchScript model: load it with torch.jit.load, or export it as ONNX.")
    if Path(saved["model_file"]).name != saved["model_file"]:
        raise UsageError(f"The model of {path} must lie beside its {METADATA}.")
    for entry in (*saved["inputs"], *saved["outputs"]):
        if not isinstance(entry, dict) or {"name", "dtype", "shape"} - entry.keys():
            raise UsageError(f"{path / METADATA} has no usable inputs and outputs.")
    return saved


DTYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(uint8)": "uint8", "tensor(int32)": "int32",
    "tensor(int64)": "int64", "tensor(bool)": "bool",
}  # fmt: skip
"""onnxruntime's names of the dtypes that inputs and outputs have."""
FIELDS: dict[str, type] = {
    "model_file": str, "model_type": str, "sha256": str, "policy_version": int, "spec": dict, "inputs": list,
    "outputs": list, "memory": list,
}  # fmt: skip
