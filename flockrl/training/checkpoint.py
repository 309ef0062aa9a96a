"""Checkpoints of the entire training state: atomic, without pickle, verified when read.

Orbax writes into a temporary directory and renames it when complete, so a checkpoint that exists is
whole. What is read back is compared with the digest that was written beside it, and with the names,
shapes and types that the run expects.
"""

from __future__ import annotations

import hashlib
import logging
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
        """Write the state after `step` environment steps. Returns once the state is copied, not once it is on disk."""
        leaves = _leaves(state)
        meta = {**meta, "digest": _digest(leaves), "leaves": _signature(state)}
        args = self._ocp.args
        content = args.Composite(state=args.StandardSave(leaves), meta=args.JsonSave(meta))
        self._manager.save(step, args=content, force=True)

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def restore(self, like: PyTree, step: int) -> tuple[PyTree, dict[str, Any]]:
        """Read the state and its meta data. `like` gives the structure that is expected (shapes are enough)."""
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
        try:
            content = args.Composite(state=args.StandardRestore())
            leaves = {key: np.asarray(x) for key, x in self._manager.restore(step, args=content).state.items()}
        except Exception as error:
            raise self._damaged(where) from error
        if _digest(leaves) != meta["digest"]:
            raise self._damaged(where)
        return _rebuild(like, leaves), meta

    @staticmethod
    def _damaged(where: Path) -> UsageError:
        return UsageError(
            f"The checkpoint {where} is damaged and was not loaded: remove it to go on from the one before it."
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


def _leaves(state: PyTree) -> dict[str, np.ndarray]:
    """Leaves by position, as host arrays; typed keys as their words. Empty ones are left out: they hold nothing."""
    return {f"{i:05d}": _words(leaf) for i, leaf in enumerate(jax.tree.leaves(state)) if leaf.size}


def _words(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.array(leaf)


def _signature(state: PyTree) -> list[str]:
    """What each leaf is called and looks like."""
    paths = jax.tree_util.tree_leaves_with_path(state)
    return [f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in paths]


def _digest(leaves: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(leaves):
        digest.update(np.ascontiguousarray(leaves[key]).data)
    return digest.hexdigest()


def _rebuild(like: PyTree, leaves: dict[str, np.ndarray]) -> PyTree:
    old, structure = jax.tree.flatten(like)
    new = []
    for i, leaf in enumerate(old):
        key = f"{i:05d}"
        if not leaf.size:
            new.append(jax.numpy.zeros(leaf.shape, leaf.dtype))
        elif jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            new.append(jax.random.wrap_key_data(jax.numpy.asarray(leaves[key]), impl=jax.random.key_impl(leaf)))
        else:
            new.append(jax.numpy.asarray(leaves[key]))
    return jax.tree.unflatten(structure, new)
