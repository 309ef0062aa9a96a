"""The oracle of simple_spread: with real and with chosen actions it covers landmarks, and earns more than chance."""

import pytest

from flockrl.training.scripted import Scripted


@pytest.mark.parametrize("more", ["", pytest.param(",continuous_actions=true", marks=pytest.mark.slow)])
def test_the_hungarian_policy_covers_landmarks(more):
    env = "mpe/simple_spread:N=3,local_ratio=0.0" + more
    oracle = Scripted("hungarian", env).evaluate(64).mean
    assert oracle > Scripted("random", env).evaluate(64).mean + 15
