import pytest
from relay_kit import SMALL, SPEC


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """An exported team that has not learned anything, version 0."""
    import flockrl

    path = tmp_path_factory.mktemp("model") / "0"
    trainer = flockrl.Trainer("ippo", SPEC, hyperparams=SMALL, envs=2, steps=400)
    flockrl.export(trainer.acquire_model(), path)
    return path
