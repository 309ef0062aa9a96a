import numpy as np
import pytest

import flockrl
from flockrl.relay.model import Model


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    return flockrl.export(tiny_run, tmp_path_factory.mktemp("export") / "team")


def test_a_model_acts_as_its_run_does(tiny_run, exported):
    model, policy = Model(exported), tiny_run.policy()
    assert model.spec == tiny_run.env.spec
    assert model.version == 8
    obs = np.random.default_rng(0).normal(size=(50, 3, 18)).astype(np.float32)
    np.testing.assert_array_equal(model.act(obs, explore=False).action, policy.act(obs))
    np.testing.assert_array_equal(model.act(obs[0], explore=False).action, policy.act(obs[0]))
