"""Checkpoints of the entire training state: atomic, without pickle, verified when read.

Orbax writes into a temporary directory and renames it when complete, so a checkpoint that exists is
complete. What is read, meta data included, is compared with the digests that were saved with it, and with the
names, shapes and types that the run expects.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flockrl.core.errors import CannotWrite, UsageError, reason
from flockrl.core.types import PyTree

KEEP = 3
UNFINISHED = ".orbax-checkpoint-tmp"
"""What the names of checkpoints contain that are being written or removed."""
NUMBER = re.compile("0|[1-9][0-9]{0,17}")
BEST = "best"
_SAVED_AS = {"state": ("digests", "leaves"), BEST: ("best_digests", "best_leaves")}
"""Parts of a checkpoint -> where its meta data have the digests of their arrays, and their names, types and shapes."""
FOREVER = 4 * 10**9
"""Seconds that a save may take: a clock that is set forward is no reason to give one up."""


class Checkpoints:
    """The checkpoints of one run, newest last: directories named by numbers. Writing happens in the background.

    Nothing is created or changed before the first `save`.
    """

    def __init__(self, path: Path):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # errors are raised, so that nobody needs them twice
        self._ocp = ocp
        self._alone: dict[str, Any] = {}
        """Where several processes train together, the first one writes and each reads by itself; Orbax is told."""
        if jax.process_count() > 1:
            me = jax.process_index()
            self._alone["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
                primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
            )
        self.path = path
        self._writer: Any = None
        self._broken = False

    def save(self, step: int, state: PyTree, meta: dict[str, Any], best: PyTree = None) -> None:
        """Write the state after `step` environment steps. Returns when the state is copied; it is on disk later.

        best: the parameters of the best policy so far, kept beside the state.
        """
        if jax.process_index():
            return
        self.wait()
        args, parts = self._ocp.args, {"state": state} | ({} if best is None else {BEST: best})
        content: dict[str, Any] = {}
        for name, part in parts.items():
            leaves = _leaves(part)
            content[name] = args.StandardSave(leaves)
            digests, signature = {key: _digest([x]) for key, x in leaves.items()}, _signature(part)
            meta = {**meta, **dict(zip(_SAVED_AS[name], (digests, signature), strict=True))}
        meta = json.loads(json.dumps(meta))  # a copy: it is written later, when the caller may have changed its parts
        meta["meta_digest"] = _digest_of_meta(meta)
        content = args.Composite(**content, meta=args.JsonSave(meta))
        try:
            if self._writer is None:
                self.path.mkdir(parents=True, exist_ok=True)
                self._sweep()
                self._writer = self._ocp.AsyncCheckpointer(self._handler(), timeout_secs=FOREVER, **self._alone)
            self._writer.save((self.path / str(step)).absolute(), args=content, force=True)
        except Exception as error:
            raise self._failed(error) from error

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints in order. What has another name is not a checkpoint."""
        try:
            names = [p.name for p in self.path.iterdir() if p.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"Cannot read {self.path}: {error.strerror}.") from error
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def restore(
        self, like: PyTree, step: int, wanted: Callable[[str], bool] | None = None
    ) -> tuple[PyTree, dict[str, Any]]:
        """Read the state and its meta data. `like` gives the structure that is expected (shapes are enough).

        wanted: names of the arrays to read, such as ".learner.params['actor'][0]['head']['bias']"; the others stay as
        they are in `like`. By default all are read.
        """
        meta = self.meta(step)
        return self._restore(like, step, meta, "state", wanted), meta

    def restore_best(self, like: PyTree, step: int) -> tuple[PyTree, dict[str, Any]]:
        """The parameters of the best policy before `step`, or None where the checkpoint has none; and its meta data."""
        meta = self.meta(step)
        return self._restore(like, step, meta, BEST) if _SAVED_AS[BEST][1] in meta else None, meta

    def _restore(
        self, like: PyTree, step: int, meta: Mapping[str, Any], part: str,
        wanted: Callable[[str], bool] | None = None,
    ) -> PyTree:  # fmt: skip
        """One part of a checkpoint, compared with what its meta data say."""
        digests, signature = (meta.get(name) for name in _SAVED_AS[part])
        if signature != _signature(like):
            raise UsageError(
                f"The checkpoint {self.path / str(step)} belongs to another configuration: its arrays differ from what "
                "this run needs."
            )
        chosen = None if wanted is None or digests is None else _chosen(like, wanted)
        try:
            leaves = self._read(step, part, like, chosen)
            if digests is not None:
                good = all(_digest([x]) == digests[key] for key, x in leaves.items())
            else:  # written before single arrays could be read
                good = _digest([leaves[key] for key in sorted(leaves)]) == meta["digest"]
            state = _rebuild(like, leaves, chosen)
        except Exception as error:
            raise self.damaged(step) from error
        if not good:
            raise self.damaged(step)
        return state

    def meta(self, step: int) -> dict[str, Any]:
        """The meta data of a checkpoint. Those of earlier versions have no digest to compare with."""
        try:
            meta = dict(self._open(step, meta=self._ocp.args.JsonRestore()).meta)
            good = "meta_digest" not in meta or meta["meta_digest"] == _digest_of_meta(meta)
        except Exception as error:
            raise self.damaged(step) from error
        if not good:
            raise self.damaged(step)
        return meta

    def _read(self, step: int, part: str, like: PyTree, chosen: set[str] | None) -> dict[str, np.ndarray]:
        """The arrays of one part of a checkpoint by position, all of them or those that were `chosen`."""
        args = self._ocp.args
        if chosen is None:
            content = args.StandardRestore()
        else:
            item = {key: x for key, x in _shapes(like).items() if key in chosen}
            content = args.PyTreeRestore(item=item, partial_restore=True)
        return {key: np.asarray(x) for key, x in self._open(step, **{part: content})[part].items()}

    def _open(self, step: int, **content: Any) -> Any:
        reader = self._ocp.Checkpointer(self._handler(), **self._alone)
        try:
            return reader.restore((self.path / str(step)).absolute(), args=self._ocp.args.Composite(**content))
        finally:
            reader.close()

    def _handler(self) -> Any:
        if not self._alone:
            return self._ocp.CompositeCheckpointHandler()
        return self._ocp.CompositeCheckpointHandler(composite_options=self._ocp.CompositeOptions(**self._alone))

    def damaged(self, step: int) -> UsageError:
        return UsageError(
            f"The checkpoint {self.path / str(step)} is damaged and was not loaded: remove it to continue from the one "
            "before it."
        )

    def drop_after(self, step: int) -> None:
        """Remove checkpoints newer than `step`, which another seed of the same run does not have."""
        self._remove(self.path / str(s) for s in self.steps() if s > step)

    def wait(self) -> None:
        """Wait until everything is on disk, and remove all but the newest `KEEP` checkpoints."""
        if self._writer is None:
            return
        try:
            self._writer.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error
        self._remove(self.path / str(s) for s in self.steps()[:-KEEP])

    def _failed(self, error: Exception) -> CannotWrite:
        """What to say about a checkpoint that could not be written. What there is of it makes room again."""
        self._broken = True
        self._sweep()
        steps = self.steps()
        kept = f"the last good one is {self.path / str(steps[-1])}" if steps else "there was none before"
        return CannotWrite(f"Cannot write a checkpoint to {self.path}: {reason(error)}; {kept}.")

    def _sweep(self) -> None:
        """Remove what is left of checkpoints that were not completed."""
        with contextlib.suppress(OSError):
            self._remove(p for p in self.path.iterdir() if UNFINISHED in p.name)

    @staticmethod
    def _remove(paths: Iterable[Path]) -> None:
        """Remove directories, each under another name, so that a crash leaves no checkpoint with parts missing."""
        for path in paths:
            doomed = path if UNFINISHED in path.name else path.with_name(f"{path.name}{UNFINISHED}-old")
            if doomed != path:
                shutil.rmtree(doomed, ignore_errors=True)
                path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def close(self) -> None:
        """Let go of the writer. Whether everything is on disk is what `wait` says."""
        if self._writer is not None:
            try:
                self._writer.close()
            except Exception:
                self._broken = True
            if self._broken:  # what the writer's threads were still at when `_failed` swept
                self._sweep()
            self._writer = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _leaves(state: PyTree) -> dict[str, np.ndarray]:
    """Leaves by position, as host arrays; typed keys as their words. Empty arrays are left out."""
    return {f"{i:05d}": _words(leaf) for i, leaf in enumerate(jax.tree.leaves(state)) if leaf.size}


def _words(leaf: Any) -> np.ndarray:
    return np.array(_raw(leaf))


def _signature(state: PyTree) -> list[str]:
    """Name, dtype and shape of each leaf."""
    paths = jax.tree_util.tree_leaves_with_path(state)
    return [f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in paths]


def _shapes(like: PyTree) -> dict[str, Any]:
    """Shape and dtype of each array as it is stored, by position."""
    return {f"{i:05d}": jax.eval_shape(_raw, leaf) for i, leaf in enumerate(jax.tree.leaves(like)) if leaf.size}


def _raw(leaf: Any) -> Any:
    typed = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if typed else leaf


def _chosen(like: PyTree, wanted: Callable[[str], bool]) -> set[str]:
    """Positions of the arrays with wanted names."""
    paths = jax.tree_util.tree_leaves_with_path(like)
    return {f"{i:05d}" for i, (path, _) in enumerate(paths) if wanted(jax.tree_util.keystr(path))}


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _digest_of_meta(meta: Mapping[str, Any]) -> str:
    """The digest of everything in `meta` but itself, as it reads back from JSON."""
    plain = {name: x for name, x in meta.items() if name != "meta_digest"}
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16).hexdigest()


def _rebuild(like: PyTree, leaves: dict[str, np.ndarray], chosen: set[str] | None) -> PyTree:
    old, structure = jax.tree.flatten(like)
    new = []
    for i, leaf in enumerate(old):
        key = f"{i:05d}"
        if chosen is not None and key not in chosen:
            new.append(leaf)
        elif not leaf.size:
            new.append(jax.numpy.zeros(leaf.shape, leaf.dtype))
        elif jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            new.append(jax.random.wrap_key_data(jax.numpy.asarray(leaves[key]), impl=jax.random.key_impl(leaf)))
        else:
            new.append(jax.numpy.asarray(leaves[key]))
    return jax.tree.unflatten(structure, new)
