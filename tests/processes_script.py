"""One of two processes that train one learner: begins a run and presses Ctrl-C in the middle, or resumes it."""

import sys
from pathlib import Path

from flockrl.training.processes import Processes

SMALL = {
    "steps": 20 * 128, "envs": 8, "rollout_steps": 16, "hidden": (8,), "epochs": 2, "minibatches": 2,
    "eval_every": 1280, "eval_episodes": 4, "checkpoint_every": 640,
}  # fmt: skip


def main(what, port, number, out):
    group = Processes(f"127.0.0.1:{port}", 2, number)
    group.join()
    from stop_at import StopAt

    import flockrl
    from flockrl.training.interrupt import Interrupted

    with group.place(out, resumed=what == "resume") as path:
        if what == "resume":
            flockrl.resume(path)
            return 0
        try:
            stop = [StopAt(1280)] if number == 1 else []  # Ctrl-C in one of them is for all
            flockrl.train("ippo", "mpe/simple_spread", out=path, callbacks=stop, devices="all", **SMALL)
        except Interrupted:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
