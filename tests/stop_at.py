"""A callback that stops a run, as somebody at the keyboard would."""

import os
import signal

import flockrl


class StopAt(flockrl.Callback):
    """Presses Ctrl-C at a step."""

    def __init__(self, step):
        self.step = step

    def on_iteration(self, moment):
        if moment.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)
