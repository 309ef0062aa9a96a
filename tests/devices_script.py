"""Runs on one device and on four, in a process that has four; prints what `test_devices.py` compares, as JSON."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from stop_at import StopAt

import flockrl
from flockrl.training.interrupt import Interrupted

SMALL = {
    "steps": 20 * 128, "envs": 8, "rollout_steps": 16, "hidden": (8,), "eval_every": 1280, "eval_episodes": 8,
    "checkpoint_every": 1280,
}  # fmt: skip
LEARNERS = {
    "ippo": {"epochs": 2, "minibatches": 2},
    "qmix": {"steps_per_update": 64, "batch_size": 16, "buffer_size": 2048, "learning_starts": 256},
}


def apart(one, other):
    """The largest difference of parameters and optimiser states."""
    pairs = zip(*(jax.tree.leaves(run.state().learner) for run in (one, other)), strict=True)
    return max(float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max(initial=0)) for a, b in pairs)


def compare(name, out):
    """One device against four, and two runs that move from one layout to the other in the middle."""
    how = {**SMALL, **LEARNERS[name]}
    one = flockrl.train(name, "mpe/simple_spread", out=out / "one", **how)
    found = {"steps": one.result["steps"], "updates": one.metrics()[-1].get("updates", 40)}
    found["four"] = apart(one, flockrl.train(name, "mpe/simple_spread", out=out / "four", devices="all", **how))
    for first, then in ((1, 4), (4, 1)):
        path = out / f"{first}-{then}"
        try:
            flockrl.train(name, "mpe/simple_spread", out=path, devices=first, callbacks=[StopAt(1280)], **how)
        except Interrupted:
            found[f"{first}-{then}"] = apart(one, flockrl.resume(path, devices=then))
    return found


if __name__ == "__main__":
    print(json.dumps({name: compare(name, Path(sys.argv[1]) / name) for name in sys.argv[2:]}))
