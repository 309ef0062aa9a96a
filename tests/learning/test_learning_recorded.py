"""Learners from a recording of mixed quality: better than what was recorded, where broken versions are not."""

import pytest
import shore

import flockrl

GOOD = -1.9
"""Far above the recording (-2.75 and -2.6) and its clones (-2.6); swimming to the shore earns -0.34."""
CASES = [
    ("cql_continuous", "real", {"conservative_actions": 4, "steps": 5000}),
    ("td3_bc", "real", {"q_scale": 0.5}),
    ("implicit_q", "real", {}),
    ("implicit_q", "choice", {"critic": "central"}),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("cql_continuous", "real", {"critic": "central"}),
            ("cql_continuous", "choice", {}),
            ("td3_bc", "real", {"q_scale": 0.5, "critic": "central"}),
            ("td3_bc", "choice", {"q_scale": 10.0}),
            ("implicit_q", "real", {"critic": "central"}),
            ("cql", "choice", {}),
        )
    ),
]
BROKEN = [
    ("implicit_q", "real", {"advantage_scale": 0.0}),  # clones
    pytest.param("td3_bc", "real", {"q_scale": 0.0}, marks=pytest.mark.slow),  # does, too
    pytest.param("td3_bc", "real", {"behaviour": 0.0}, marks=pytest.mark.slow),  # goes where nobody was
    pytest.param("cql_continuous", "real", {"conservative": 0.0}, marks=pytest.mark.slow),  # does, too
]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shore")
    means = {kind: shore.write(folder / f"{kind}.arrow", kind) for kind in shore.SPECS}
    assert all(mean < -2.4 for mean in means.values())
    return folder


def learned(tmp_path, recordings, name, kind, settings):
    given = {**shore.SETTINGS, **shore.REPLAY, **settings}
    run = flockrl.train(name, f"data/{recordings / kind}.arrow", out=tmp_path / "run", **given)
    return shore.score(run.policy(), kind)


@pytest.mark.parametrize(("name", "kind", "settings"), CASES)
def test_it_becomes_better_than_the_recording(tmp_path, recordings, name, kind, settings):
    assert learned(tmp_path, recordings, name, kind, settings) > GOOD


@pytest.mark.parametrize(("name", "kind", "settings"), BROKEN)
def test_without_its_idea_it_does_not(tmp_path, recordings, name, kind, settings):
    assert learned(tmp_path, recordings, name, kind, settings) < GOOD - 0.2
