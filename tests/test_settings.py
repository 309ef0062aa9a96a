"""Numbers that users give: the sentence that refuses one says what is allowed."""

import re

import numpy as np
import pytest

from flockrl.algos.presets import PRESETS, make_config
from flockrl.algos.shac import ShacConfig
from flockrl.comm.channel import Channel
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_number
from flockrl.envs.registry import make

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        ("mappo", {"gamma": 2}, "gamma must be from 0 to 1, not 2.0."),
        ("mappo", {"lr": -1}, "lr must be above 0, not -1.0."),
        ("mappo", {"epochs": 0}, "epochs must be at least 1, not 0."),
        ("mappo", {"entropy": -0.1}, "entropy must be at least 0, not -0.1."),
        ("mappo", {"log_std": -11}, "log_std must be from -10 to 10, not -11.0."),
        ("mappo", {"hidden": []}, "hidden must have at least one layer, as in --hidden 64."),
        ("mappo", {"hidden": [64, 0]}, "Each layer of hidden must be at least 1, not 0."),
        ("mappo", {"pool_share": 0}, "pool_share must be above 0 and at most 1, not 0.0."),
        ("mappo", {"comm": "commnet", "comm_size": 5000}, "comm_size must be from 1 to 4,096, not 5000."),
        ("mappo", {"net": "entities", "entity_heads": 0}, "entity_heads must be at least 1, not 0."),
        ("mappo", {"credit": "shapley", "orderings": 1}, "orderings must be at least 2, not 1."),
        ("mappo", {"bonus": "rnd", "bonus_gamma": 1}, "bonus_gamma must be at least 0 and below 1, not 1.0."),
        ("mappo", {"bonus": "count", "bonus_bits": 129}, "bonus_bits must be from 1 to 128, not 129."),
        ("maac", {"attention_heads": 0}, "attention_heads must be at least 1, not 0."),
        ("maac", {"attention_heads": 3}, "attention_heads (3) must divide the last hidden layer (128): change one."),
        ("masac", {"tau": 0}, "tau must be above 0 and at most 1, not 0.0."),
        ("qmix", {"mixer_size": 0}, "mixer_size must be at least 1, not 0."),
        ("implicit_q", {"expectile": 1}, "expectile must be above 0 and below 1, not 1.0."),
        ("hatrpo", {"target_kl": 0.1}, "hatrpo bounds how far policies move by max_kl: leave target_kl out."),
    ],
)
def test_the_sentence_says_what_a_setting_may_be(algorithm, settings, sentence):
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        make_config(algorithm, settings)


@pytest.mark.parametrize("value", [INF, -INF, NAN, 10**400, np.float32("nan"), True, "1", None])
@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, "a finite number,"),
        ({"above": 0}, "a finite number above 0,"),
        ({"least": 0}, "a finite number of at least 0,"),
        ({"least": -10, "most": 10}, "a finite number from -10 to 10,"),
        ({"above": 0, "below": 1}, "a finite number above 0 and below 1,"),
        ({"most": 1e6, "whole": True}, "a whole number of at most 1,000,000,"),
    ],
)
def test_only_finite_numbers_pass(value, bounds, words):
    with pytest.raises(UsageError, match=f"^size must be {words} not "):
        check_number("size", value, **bounds)


def test_bounds_are_met_where_they_are_said_to_be():
    for value in (0, 0.5, 1, np.float32(1), np.int64(0)):
        check_number("size", value, least=0, most=1)
    for value, bounds in ((0, {"above": 0}), (1, {"below": 1}), (1.0, {"least": 0, "most": 1, "whole": True})):
        with pytest.raises(UsageError):
            check_number("size", value, **bounds)


def test_configs_that_code_makes_refuse_what_is_not_finite():
    for make_one in (lambda: ShacConfig(lr=INF), lambda: ShacConfig(gamma=NAN), lambda: ShacConfig(log_std=NAN)):
        with pytest.raises(UsageError, match="must be a finite number"):
            make_one()
    with pytest.raises(UsageError, match="range of a channel must be a finite number of at least 0, not inf"):
        Channel(range=INF)
    assert ShacConfig(gamma=None).gamma is None


def test_environments_speak_the_same_words():
    with pytest.raises(UsageError, match=r"^tasks/allocation: rate must be from 0 to 1, not 2\.$"):
        make("tasks/allocation:rate=2")


def test_settings_to_try_first_exist():
    found = {name: re.findall(r"--([a-z-]+)", type(make_config(name, {})).__doc__ or "") for name in PRESETS}
    assert {"mappo", "qmix", "maddpg", "matd3", "masac"} <= {name for name, flags in found.items() if flags}
    for name, flags in found.items():
        assert all(hasattr(make_config(name, {}), flag.replace("-", "_")) for flag in flags), name
