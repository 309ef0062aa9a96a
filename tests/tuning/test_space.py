"""What a search looks in: every form of a range, and one sentence for what is wrong."""

import pytest

from flockrl.core.code import Untrusted, trusting
from flockrl.core.errors import UsageError
from flockrl.training.space import Dimension, check_space, read_space, settle


def space(*words, algorithm="mappo", **fixed):
    return check_space(read_space(words, algorithm), algorithm, fixed)


def test_ranges_and_choices():
    lr, gamma, epochs, size = space("lr=log:1e-4:1e-2", "gamma=0.9:0.999", "epochs=2:10", "memory_size=log:16:64")
    assert lr == Dimension("lr", 1e-4, 1e-2, log=True)
    assert gamma == Dimension("gamma", 0.9, 0.999)
    assert epochs == Dimension("epochs", 2, 10, whole=True)
    assert size == Dimension("memory_size", 16, 64, log=True, whole=True)
    assert [str(d) for d in (lr, gamma, epochs)] == ["log:0.0001:0.01", "0.9:0.999", "2:10"]


def test_choices_become_values_of_their_setting():
    hidden, norm, memory, clip, envs = space(
        "hidden=32,64x64", "normalize_obs=true,false", "memory=none,gru", "max_grad_norm=0.5,none", "envs=8,16"
    )
    assert dict(hidden.choices) == {"32": [32], "64x64": [64, 64]}
    assert [norm.value("true"), norm.value("false"), clip.value("none")] == [True, False, None]
    options, config = settle("mappo", {"envs": envs.value("8"), "hidden": hidden.value("64x64")})
    assert (options.envs, config.hidden) == (8, (64, 64))
    assert dict(memory.choices)["gru"] == "gru"


def test_a_choice_of_none_means_no_value_only_where_there_may_be_none():
    (memory,) = space("memory=none,gru")
    assert memory.value("none") == "none"


def test_a_file(tmp_path):
    file = tmp_path / "space.toml"
    file.write_text('[search]\nlr = "log:1e-4:1e-2"\nepochs = [2, 5]\nhidden = [[32], [64, 64]]\n')
    lr, epochs, hidden = space(str(file))
    assert (lr.log, dict(epochs.choices), hidden.value("64x64")) == (True, {"2": 2, "5": 5}, [64, 64])


@pytest.mark.parametrize("setting", ["kernel", "shaping"])
def test_code_in_a_file_needs_trust(tmp_path, setting):
    file = tmp_path / "space.toml"
    file.write_text(f'[search]\n{setting} = ["one.module:Net", "other.module:Net"]\n')
    with pytest.raises(Untrusted, match="add --trust"):
        read_space([str(file)], "mappo")
    with trusting(True):
        (found,) = read_space([str(file)], "mappo")
    assert found.value("one.module:Net") == "one.module:Net"


def test_a_date_in_a_file_is_no_setting(tmp_path):
    file = tmp_path / "space.toml"
    file.write_text("[search]\nlr = [2020-01-01, 2021-01-01]\n")
    with pytest.raises(UsageError, match="lr must be a finite number"):
        space(str(file))


WRONG = [
    (("learning_rate=0.1:1",), "mappo has no setting 'learning_rate'. Did you mean 'lr'?"),
    (("steps=1:10",), "steps is the same for all trials"),
    (("lr=1:0.1",), "from a lower to a higher number"),
    (("lr=log:0:1",), "begins above 0"),
    (("lr=a:b",), "LOW:HIGH"),
    (("lr=0.1:nan",), "from a lower to a higher number"),
    (("epochs=1.5:3",), "whole number"),
    (("memory=1:2",), "not a number"),
    (("memory=gru,lstm",), "The search space reaches memory=lstm: memory must be one of none, gru"),
    (("gamma=0.9:1.5",), "The search space reaches gamma=1.5"),
    (("epochs=5",), "at least two choices"),
    (("lr=0.1:1", "lr=0.1:2"), "searched twice"),
    (("space.json",), "Write --search as"),
    (("nowhere.toml",), "Cannot read the search space"),
    ((), "Say what to search"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) or "nothing" for words, _ in WRONG])
def test_wrong_spaces(words, sentence):
    with pytest.raises(UsageError) as caught:
        space(*words)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["", "[search]\n", "search = 1\n", "[search", "[search]\nlr = {low = 1}\n"])
def test_wrong_files(tmp_path, text):
    file = tmp_path / "space.toml"
    file.write_text(text)
    with pytest.raises(UsageError):
        space(str(file))
