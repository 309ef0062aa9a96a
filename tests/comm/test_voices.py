"""The panel that shows who says what to whom."""

import numpy as np

from flockrl.core.types import Observation
from flockrl.envs.sketch import ABOVE, BELOW, LINE, color_of
from flockrl.evaluation.inside import Inside
from flockrl.view.voices import HEARS, SPEAKS, panels

SIZE = 300
ROWS = (SIZE * (0.1 + 0.88 / 3 * (np.arange(3) + 0.5))).astype(int)


def step(said, influence, alive=None):
    seen = Observation(np.zeros((1, 3, 1)), alive=None if alive is None else np.array([alive]))
    return Inside(seen, np.zeros((1, 3)), np.array(said, float), np.array(influence, float))


def middle(picture, speaker, listener):
    """The colour half way between the disc of one who speaks and that of one who listens."""
    return picture[(ROWS[speaker] + ROWS[listener]) // 2, int(SIZE * (SPEAKS + HEARS) / 2)].tolist()


def near(color, other):
    return np.abs(np.array(color) - np.array(other)).max() < 12


def test_lines_lead_from_who_is_heard_and_cells_show_what_is_said():
    none = np.zeros((3, 3))
    talks = none.copy()
    talks[2, 1] = 0.5  # agent 2 hears agent 1
    loud, quiet = panels([step([[1, -1], [0, 0], [0, 0]], talks), step(np.zeros((3, 2)), none)], SIZE)
    assert loud.shape == (SIZE, SIZE, 3)
    assert near(middle(loud, 1, 2), color_of(1))
    assert near(middle(loud, 0, 0), (255, 255, 255))
    assert near(middle(quiet, 1, 2), (255, 255, 255))
    assert near(loud[ROWS[0], int(0.065 * SIZE)].tolist(), ABOVE)
    assert near(loud[ROWS[0], int(0.115 * SIZE)].tolist(), BELOW)


def test_the_dead_are_grey_and_say_nothing():
    (picture,) = panels([step(np.ones((3, 2)), np.zeros((3, 3)), [True, False, True])], SIZE)
    edge = int(SIZE * (SPEAKS + 0.028))
    assert near(picture[ROWS[1], edge].tolist(), LINE)
    assert near(picture[ROWS[0], edge].tolist(), color_of(0))
    assert near(picture[ROWS[1], int(0.065 * SIZE)].tolist(), (255, 255, 255))
