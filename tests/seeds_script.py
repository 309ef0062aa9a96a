"""Seeds side by side on devices against the same seeds alone, in a process with four devices; prints JSON."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from devices_script import LEARNERS, SMALL
from stop_at import StopAt

import flockrl
from flockrl.training.interrupt import Interrupted

TIMING = {"seconds", "steps_per_second"}


def equal(one, other):
    """Whether two runs have the same state and the same figures, bit for bit."""
    pairs = zip(*(jax.tree.leaves(run.state()) for run in (one, other)), strict=True)
    rows = [[{k: v for k, v in row.items() if k not in TIMING} for row in run.metrics()] for run in (one, other)]
    return rows[0] == rows[1] and all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


class Places(flockrl.Callback):
    """The devices that states are on, by seed."""

    def __init__(self):
        self.found = {}

    def on_iteration(self, moment):
        (device,) = {d for x in jax.tree.leaves(moment.state) for d in x.devices()}
        self.found[moment.seed] = device.id


def main(name, out):
    how, env = {**SMALL, **LEARNERS[name], "log": "none"}, "mpe/simple_spread"
    alone = [flockrl.train(name, env, out=out / f"alone-{seed}", seed=seed, **how) for seed in range(3)]
    places = Places()
    beside = flockrl.train(name, env, out=out / "beside", seeds=3, devices=2, callbacks=[places], **how)
    try:
        flockrl.train(name, env, out=out / "cut", seeds=3, devices="all", callbacks=[StopAt(1280)], **how)
    except Interrupted:
        cut = flockrl.resume(out / "cut", devices=2)
    try:
        flockrl.train(name, env, out=out / "idle", seeds=2, devices=4, **how)
    except flockrl.UsageError as error:
        refused = str(error)
    population = ("every=640", "lr=log:1e-4:1e-2")
    pbt = [flockrl.train("ippo", env, out=out / f"pbt-{k}", seeds=3, devices=k, pbt=population, steps=1280,
                         **{k: v for k, v in {**SMALL, **LEARNERS["ippo"]}.items() if k != "steps"})
           for k in (1, 3)] if name == "ippo" else []  # fmt: skip
    return {
        "places": places.found,
        "beside": [equal(*pair) for pair in zip(alone, beside, strict=True)],
        "resumed": [equal(*pair) for pair in zip(alone, cut, strict=True)],
        "population": [equal(*pair) for pair in zip(*pbt, strict=True)],
        "refused": refused,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
