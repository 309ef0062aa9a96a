"""A callback that stops a run, as somebody at the keyboard would."""

import os
import signal

import flockrl


class StopAt(flockrl.Callback):
    """Presses Ctrl-C at a step, once, whatever the number of seeds."""

    def __init__(self, step):
        self.step, self.pressed = step, False

    def on_iteration(self, moment):
        if moment.step == self.step and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
