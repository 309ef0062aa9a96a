"""Checkpoints of the entire training state: atomic, without pickle, verified when read.

Orbax writes into a temporary directory and renames it when complete, so a checkpoint that exists is
complete. What is read is compared with the digests that were saved with it, and with the names,
shapes and types that the run expects.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import PyTree

KEEP = 3


class Checkpoints:
    """The checkpoints of one run, newest last. Writing happens in the background."""

    def __init__(self, path: Path):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)
        self._ocp = ocp
        self.path = path
        options = ocp.CheckpointManagerOptions(max_to_keep=KEEP, create=True)
        self._manager = ocp.CheckpointManager(path.absolute(), options=options)

    def save(self, step: int, state: PyTree, meta: dict[str, Any]) -> None:
        """Write the state after `step` environment steps. Returns when the state is copied; it is on disk later."""
        leaves = _leaves(state)
        meta = {**meta, "digests": {name: _digest([x]) for name, x in leaves.items()}, "leaves": _signature(state)}
        args = self._ocp.args
        content = args.Composite(state=args.StandardSave(leaves), meta=args.JsonSave(meta))
        self._manager.save(step, args=content, force=True)

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def restore(
        self, like: PyTree, step: int, wanted: Callable[[str], bool] | None = None
    ) -> tuple[PyTree, dict[str, Any]]:
        """Read the state and its meta data. `like` gives the structure that is expected (shapes are enough).

        wanted: names of the arrays to read, such as ".learner.params['actor'][0]['head']['bias']"; the others stay as
        they are in `like`. By default all are read.
        """
        args, where = self._ocp.args, self.path / str(step)
        try:
            meta = dict(self._manager.restore(step, args=args.Composite(meta=args.JsonRestore())).meta)
            matches = meta["leaves"] == _signature(like)
        except Exception as error:
            raise self._damaged(where) from error
        if not matches:
            raise UsageError(
                f"The checkpoint {where} belongs to another configuration: its arrays differ from what this run needs."
            )
        chosen = None if wanted is None or "digests" not in meta else _chosen(like, wanted)
        try:
            leaves = self._read(step, like, chosen)
            if "digests" in meta:
                good = all(_digest([x]) == meta["digests"][key] for key, x in leaves.items())
            else:  # written before single arrays could be read
                good = _digest([leaves[key] for key in sorted(leaves)]) == meta["digest"]
        except Exception as error:
            raise self._damaged(where) from error
        if not good:
            raise self._damaged(where)
        return _rebuild(like, leaves, chosen), meta

    def _read(self, step: int, like: PyTree, chosen: set[str] | None) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint by position, all of them or those that were `chosen`."""
        args = self._ocp.args
        if chosen is None:
            content = args.Composite(state=args.StandardRestore())
        else:
            item = {key: x for key, x in _shapes(like).items() if key in chosen}
            content = args.Composite(state=args.PyTreeRestore(item=item, partial_restore=True))
        return {key: np.asarray(x) for key, x in self._manager.restore(step, args=content).state.items()}

    @staticmethod
    def _damaged(where: Path) -> UsageError:
        return UsageError(
            f"The checkpoint {where} is damaged and was not loaded: remove it to continue from the one before it."
        )

    def drop_after(self, step: int) -> None:
        """Remove checkpoints newer than `step`, which another seed of the same run does not have."""
        for newer in [s for s in self.steps() if s > step]:
            self._manager.delete(newer)

    def wait(self) -> None:
        """Wait until everything is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

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
