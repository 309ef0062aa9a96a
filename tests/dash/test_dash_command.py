"""The commands dash and watch, and what a run says when training fails."""

import socket
import sys

import pytest

import flockrl
from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.core.rundir import FAILURE, noting_failure


def test_a_directory_that_is_not_there(cli, tmp_path):
    status, _, err = cli("dash", tmp_path / "none")
    assert status == 2
    assert "There is no directory" in err


def test_a_port_that_is_taken(cli, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, _, err = cli("dash", tmp_path, "--port", taken.getsockname()[1])
    assert status == 2
    assert "choose another with --port" in err


def test_without_its_extra(cli, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "flockrl.dash.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    status, _, err = cli("dash", tmp_path)
    assert status == 2
    assert "flockrl[dash]" in err


def test_watching_what_is_no_run(cli, tmp_path):
    status, _, err = cli("watch", tmp_path)
    assert status == 2
    assert "is not a run" in err


def test_a_failure_is_written_down_until_training_goes_on(tmp_path):
    def fail(error):
        with noting_failure([tmp_path]):
            raise error

    with pytest.raises(UsageError):
        fail(UsageError("lr is too high."))
    assert (tmp_path / FAILURE).read_text() == "lr is too high.\n"
    with noting_failure([tmp_path]):
        assert not (tmp_path / FAILURE).exists()
    with pytest.raises(KeyboardInterrupt):  # an interrupted run did not fail
        fail(KeyboardInterrupt())
    assert not (tmp_path / FAILURE).exists()


@pytest.mark.slow
def test_a_run_that_fails_says_why(tmp_path):
    from conftest import TINY

    def stop(moment):
        raise UsageError("no more of this")

    callback = type("Stop", (flockrl.Callback,), {"on_checkpoint": lambda self, moment: stop(moment)})()
    with pytest.raises(UsageError):
        flockrl.train("ippo", "mpe/simple_spread", out=tmp_path / "run", callbacks=[callback], **TINY)
    assert "no more of this" in (tmp_path / "run" / FAILURE).read_text()


def test_a_run_whose_configuration_is_a_link_is_not_watched(tmp_path, capsys):
    (tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").symlink_to(tmp_path / "elsewhere.json")
    assert main(["watch", str(tmp_path / "run")]) == 2
    assert "which the page does not follow" in capsys.readouterr().err
