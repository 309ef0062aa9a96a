"""An exported team that acts: numpy and onnxruntime, nothing else."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, EnvSpec, spec_from_json
from flockrl.data.choices import is_real, option_table

TOLD = "alive", "neighbours"
"""Inputs of teams that talk."""
FORMAT, FORMAT_VERSION, METADATA = "flockrl-model", 1, "metadata.json"
METADATA_BYTES, MODEL_BYTES, NUMBERS = 16 << 20, 1 << 30, 1 << 26
"""The most bytes of the metadata and of a model file, and the most numbers in one input or output for one team."""
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

    apart = False
    """Whether it may be one agent that hears others through its inputs (`portable.member`)."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.metadata, content = _load(self.path)
        if not self.apart and any(entry["name"] == "inbox" for entry in self.metadata["inputs"]):
            raise UsageError(f"{path} is one agent of a team that talks: run it with flockrl.relay.Member.")
        if hashlib.sha256(content).hexdigest() != self.metadata["sha256"]:
            raise UsageError(f"The model of {self.path} is damaged: its sha256 is not the one in {METADATA}.")
        self.spec = spec_from_json(self.metadata["spec"])
        self.version: int = self.metadata["policy_version"]
        self.identity = str(self.metadata.get("identity", ""))
        """Of the trainer whose updates the version counts, where that is known."""
        self._session = _session(content, self.path)
        self._check()
        inputs = {entry["name"]: entry for entry in self.metadata["inputs"]}
        self._shape, self._dtype = tuple(inputs["obs"]["shape"][1:]), np.dtype(inputs["obs"]["dtype"])
        self._mask = tuple(inputs["mask"]["shape"][1:]) if "mask" in inputs else None
        self._noise = tuple(inputs["noise"]["shape"][1:]) if "noise" in inputs else None
        self._told = {name: tuple(inputs[name]["shape"][1:]) for name in TOLD if name in inputs}
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
        self._low, self._high = (x.reshape(self.spec.action_shape) for x in _bounds(self.spec))
        self._edges = list(zip(self._low.ravel().tolist(), self._high.ravel().tolist(), strict=True))

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
        alive: np.ndarray | None = None,
        neighbours: np.ndarray | None = None,
    ) -> Act:
        """Actions of one team or of a batch of teams.

        obs: [N, O] or [B, N, O]. mask: [N, A] or [B, N, A] bool, the legal actions, all by default; real actions are
        never masked. memory: what the last call returned, None when an episode begins. rng: needed to explore, that is
        to act as in training. alive: [N] or [B, N] bool, all by default, and neighbours: [N, N] or [B, N, N] bool, who
        perceives whom: for teams whose agents talk.
        """
        obs, single = self._seen(obs)
        feed = self._feed(obs, mask, memory, rng, explore)
        feed.update(self._tell({"alive": alive, "neighbours": neighbours}, len(obs)))
        return self._answer(self._session.run(self._explore if explore else self._greedy, feed), single, explore)

    def _seen(self, obs: np.ndarray) -> tuple[np.ndarray, bool]:
        """Observations [B, N, O], and whether they came without the batch."""
        obs = np.asarray(obs, self._dtype)
        single = obs.ndim == 2
        if single:
            obs = obs[None]
        if obs.ndim != 3 or obs.shape[1:] != self._shape:
            raise UsageError(f"The model expects observations of shape {list(self._shape)}, not {list(obs.shape)}.")
        return obs, single

    def _tell(self, given: dict[str, np.ndarray | None], batch: int) -> dict[str, np.ndarray]:
        """What agents are told of each other, as far as the model asks for it."""
        found = {}
        for name, shape in self._told.items():
            value = given[name]
            if value is None and name == "neighbours":
                raise UsageError("These agents talk to those whom they perceive: give neighbours.")
            value = np.ones(shape, bool) if value is None else np.asarray(value, bool)
            if value.shape not in (shape, (batch, *shape)):
                raise UsageError(f"{name} has shape {list(value.shape)}, and {[batch, *shape]} was expected.")
            found[name] = np.ascontiguousarray(np.broadcast_to(value, (batch, *shape)))
        return found

    def _feed(
        self, obs: np.ndarray, mask: np.ndarray | None, memory: Memory | None, rng: np.random.Generator | None,
        explore: bool,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """The inputs for observations [B, N, O]."""
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
        return feed

    def _answer(self, outs: list[np.ndarray], single: bool, explore: bool) -> Act:
        """What the model's results mean."""
        outs[0] = self._within(outs[0])
        first = len(outs) - len(self._memories)
        after = tuple(outs[first:])
        if single:
            outs = [x[0] for x in outs[:first]]
        if not explore:
            return Act(outs[0], outs[0], None, after)
        raw = outs[0] if self._raw is None else outs[self._raw]
        return Act(outs[0], raw, None if self._logp is None else outs[self._logp], after)

    def _within(self, action: np.ndarray) -> np.ndarray:
        """Actions [B, N] or [B, N, W] within their bounds."""
        if action.size == len(self._edges) <= 64:  # a loop takes a fifth of NumPy's time here
            for x, (low, high) in zip(action.ravel().tolist(), self._edges, strict=True):
                if not low <= x <= high:
                    break
            else:
                return action
        elif ((action >= self._low) & (action <= self._high)).all():
            return action
        if self.spec.discrete or np.isnan(action).any():
            raise UsageError(f"The model of {self.path} gave an action that does not exist.")
        return np.clip(action, self._low, self._high)

    def try_out(self) -> None:
        """Act for two steps, greedily and not, and check that everything has the form that it should have."""
        spec, rng = self.spec, np.random.default_rng(0)
        obs, mask = np.zeros(self._shape, self._dtype), spec.own_actions if self._mask is not None else None
        around = np.ones((spec.num_agents,) * 2, bool)
        forms = [(x.shape, x.dtype) for x in self._start]
        for explore in (False, True):
            memory: Memory | None = None
            for _ in range(2):
                try:
                    step = self.act(obs, mask, memory, rng, explore, neighbours=around)
                except UsageError:
                    raise
                except Exception as error:  # onnxruntime has its own, and NumPy refuses what has the wrong form
                    raise UsageError(f"The model of {self.path} fails: {str(error).splitlines()[0][:200]}") from error
                numbers = [(step.action, spec.action_shape, spec.action_dtype), (step.raw, spec.action_shape, None)]
                numbers += [] if step.logp is None else [(step.logp, (spec.num_agents,), "float32")]
                good = all(x.shape == shape and np.isfinite(x).all() for x, shape, _ in numbers)
                good = good and all(dtype is None or x.dtype == dtype for x, _, dtype in numbers)
                memory = step.memory
                if not good or [(x.shape, x.dtype) for x in memory] != forms or any(_has_nan(x) for x in memory):
                    raise UsageError(f"The model of {self.path} gives actions or memories of the wrong form.")

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
        for name, shape in (("alive", (n,)), ("neighbours", (n, n))):
            if sizes.get(name, shape) != shape:
                raise UsageError(f"The model of {self.path} has no usable input {name!r}.")
        mask = (n, spec.action_size) if spec.maskable else None
        if sizes.get("obs") != (n, spec.obs_size) or sizes.get("mask") != mask:
            raise UsageError(f"The model of {self.path} is not one for the agents and spaces in its {METADATA}.")
        action = spec.action_dtype, ["batch", *spec.action_shape]
        wanted = {"action": action, "sampled": action}
        for entry in self.metadata["inputs"]:
            if entry["name"].startswith("memory_"):
                wanted[f"next_{entry['name']}"] = entry["dtype"], entry["shape"]
        given = {entry["name"]: (entry["dtype"], entry["shape"]) for entry in self.metadata["outputs"]}
        for name, form in wanted.items():
            if given.get(name) != form:
                raise UsageError(f"The model of {self.path} has no usable output {name!r}.")


def _bounds(spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """[N, W] the least and the greatest number of every entry of an action."""
    most = np.finfo(np.float32).max
    low, high = np.full((2, spec.num_agents, spec.action_width), most, np.float32)
    low *= -1
    counts, _ = option_table(spec.actions)
    low[counts > 0], high[counts > 0] = 0, counts[counts > 0] - 1
    for i, space in enumerate(spec.actions):
        if isinstance(space, Box):
            low[i, : space.width] = np.maximum(space.low, -most)
            high[i, : space.width] = np.minimum(space.high, most)
    return low, high


def _has_nan(x: np.ndarray) -> bool:
    return x.dtype.kind == "f" and bool(np.isnan(x).any())


def _session(content: bytes, path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError("Acting with an exported team needs onnxruntime: pip install onnxruntime.") from error
    # A model is one file: weights in others, whose names could lead anywhere on this machine, are not read.
    if re.search(rb"\n(?:\x08|\x88\x80*\x00)location", content):
        raise UsageError(f"The model of {path} keeps weights in other files, which is not allowed.")
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
        return saved, _bytes(path / saved["model_file"], MODEL_BYTES)
    except OSError as error:
        newer = _read(path)  # a newer export may have taken its place in this moment
        if newer["model_file"] == saved["model_file"]:
            raise UsageError(f"Cannot read the model of {path}: {error.strerror}.") from error
        return _load(path)


def _read(path: Path) -> dict[str, Any]:
    """The metadata, whose fields are all there."""
    try:
        saved = json.loads(_bytes(path / METADATA, METADATA_BYTES))
    except OSError as error:
        groups = sorted(path.glob(f"*/{METADATA}")) if path.is_dir() else []
        hint = f" It holds one model per group: name one, such as {groups[0].parent}." if groups else ""
        raise UsageError(f"{path} is not an exported team: it has no {METADATA}.{hint}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path / METADATA} is not valid JSON: {str(error)[:200]}.") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise UsageError(f"{path} is not a team that flockrl exported.")
    if saved.get("format_version") != FORMAT_VERSION:
        raise UsageError(
            f"{path} has format version {saved.get('format_version')!r}, and this flockrl reads {FORMAT_VERSION}."
        )
    for name, kind in FIELDS.items():
        if not isinstance(saved.get(name), kind) or isinstance(saved.get(name), bool):
            raise UsageError(f"{path / METADATA} has no usable {name!r}.")
    if not -1 <= saved["policy_version"] < 1 << 62:
        raise UsageError(f"{path / METADATA} has no usable 'policy_version'.")
    if saved["model_type"] != "onnx":
        raise UsageError(f"{path} holds a TorchScript model: load it with torch.jit.load, or export it as ONNX.")
    if Path(saved["model_file"]).name != saved["model_file"]:
        raise UsageError(f"The model of {path} must lie beside its {METADATA}.")
    for entry in (*saved["inputs"], *saved["outputs"]):
        if not _usable(entry):
            raise UsageError(f"{path / METADATA} has no usable inputs and outputs.")
    return saved


def _bytes(file: Path, most: int) -> bytes:
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is not a file.")
    if file.stat().st_size > most:
        raise UsageError(f"{file} has more than {most} bytes.")
    return file.read_bytes()


def _usable(entry: Any) -> bool:
    """Whether this describes an input or output: a name, a dtype, and a shape of "batch" and bounded sizes."""
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("name", "dtype")):
        return False
    shape = entry.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(x) is int and 0 <= x < 1 << 31 for x in shape[1:]):
        return False
    return math.prod(shape[1:]) <= NUMBERS


DTYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(uint8)": "uint8", "tensor(int32)": "int32",
    "tensor(int64)": "int64", "tensor(bool)": "bool",
}  # fmt: skip
"""onnxruntime's names of the dtypes that inputs and outputs have."""
FIELDS: dict[str, type] = {
    "model_file": str, "model_type": str, "sha256": str, "policy_version": int, "spec": dict, "inputs": list,
    "outputs": list, "memory": list,
}  # fmt: skip
