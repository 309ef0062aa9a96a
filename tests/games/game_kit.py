"""Games that several tests here look at, unfolded once."""

import functools

import numpy as np

from flockrl.envs import make
from flockrl.games.extensive import unfold
from flockrl.games.markov import from_rules


@functools.cache
def tree(name):
    """The game of that name with its information sets."""
    return unfold(make(f"games/{name}").rules)


@functools.cache
def markov(name):
    """The Markov game of that name."""
    return from_rules(make(f"games/{name}").rules)


def draw_policies(form, seed=0):
    """Random policies of all players."""
    generator = np.random.default_rng(seed)
    return [seat.policy(generator.exponential(size=len(seat.actions))) for seat in form.seats]
