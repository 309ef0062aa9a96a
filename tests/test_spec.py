import json
import math

import pytest

from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete, spec_from_json, spec_to_json

SPECS = [
    EnvSpec("a", ("x_0", "x_1"), (Box((3,)),) * 2, (Discrete(5),) * 2, max_steps=25),
    EnvSpec(
        "b", ("lead", "follow"), (Box((3,), -1.0, 2.0), Box((5,), (0.0,) * 5, (1.0, 2.0, math.inf, 4.0, 5.0))),
        (Box((2,), -1.0, 1.0), Box((1,), (-math.inf,), 3.0)), max_steps=7, sides=("front", "back"), state_size=4,
    ),
    EnvSpec(
        "d", ("pick", "mix", "aim"), (Box((2,)),) * 3, (Discrete(2), MultiDiscrete((3, 2)), Box((1,), -1.0, 1.0)),
        max_steps=3, neighbours=True,
    ),
    EnvSpec("c", ("eye",), (Box((8, 8, 3), 0.0, 255.0, "uint8"),), (Discrete(2),), max_steps=1),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_spec_survives_json(spec):
    text = json.dumps(spec_to_json(spec), allow_nan=False)
    assert spec_from_json(json.loads(text)) == spec


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"agents": "x_0"}, "'agents' of the environment's spec must be a list"),
        ({"agents": [1, 2]}, "must be text"),
        ({"agents": ["only"]}, "one entry per agent"),
        ({"actions": [{"kind": "discrete", "n": 0}] * 2}, "from 1 on, not 0"),
        ({"actions": [{"kind": "tree"}] * 2}, "must be an object of kind"),
        (
            {"observations": [{"kind": "box", "shape": [2], "low": [0.0], "high": None, "dtype": "float32"}] * 2},
            "1 num",
        ),
        ({"observations": [{"kind": "box", "shape": [2], "low": "0", "high": None, "dtype": "float32"}] * 2}, "finite"),
        (
            {"observations": [{"kind": "box", "shape": [2], "low": 0, "high": None, "dtype": "object"}] * 2},
            "dtype must",
        ),
        ({"max_steps": True}, "whole numbers"),
        ({"max_steps": 10**400}, "whole numbers"),
        ({"observations": [{"kind": "box", "shape": [2], "low": 10**400, "high": 0, "dtype": "uint8"}] * 2}, "finite"),
        ({"groups": [0]}, "sides and groups must have one entry per agent"),
        ({"sides": [0, 1]}, "must be text"),
        ({"actions": [{"kind": "multidiscrete", "choices": []}] * 2}, "at least one"),
    ],
)
def test_what_is_not_a_spec_is_refused_with_a_sentence(change, says):
    with pytest.raises(UsageError, match=says):
        spec_from_json({**spec_to_json(SPECS[0]), **change})


@pytest.mark.parametrize("content", [None, [], {"name": "a"}])
def test_a_spec_is_an_object_with_all_its_fields(content):
    with pytest.raises(UsageError, match="spec"):
        spec_from_json(content)


@pytest.mark.parametrize(("teams", "sides"), [([0, 0], ("team", "team")), ([0, 1], ("team_0", "team_1"))])
def test_specs_that_number_their_sides_are_still_read(teams, sides):
    saved = spec_to_json(SPECS[0])
    del saved["sides"], saved["neighbours"]
    assert spec_from_json({**saved, "teams": teams}).sides == sides
