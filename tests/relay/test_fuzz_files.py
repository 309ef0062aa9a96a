"""Files of logs, queues and models, harmed at random: opening them succeeds or is one sentence, and costs little."""

import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harm_kit import NAMES, SCHEMA, harm_file, harm_json, harm_log, make_log, survivors
from relay_kit import SPEC, batch

from flockrl.core.errors import UsageError
from flockrl.portable.model import Model
from flockrl.relay.log import Log
from flockrl.relay.outbox import Outbox

COUNT = 40
"""Messages in a log."""


@pytest.fixture(autouse=True)
def quiet(caplog):
    with caplog.at_level(logging.CRITICAL):
        yield


class Watch:
    """Measures the slowest of several cases, in seconds of this process: other processes may use the disk."""

    slowest = 0.0

    def __enter__(self):
        self.began = time.process_time()

    def __exit__(self, *_):
        self.slowest = max(self.slowest, time.process_time() - self.began)


def fuzz_logs(home, count, seed):
    make_log(home / "whole", COUNT, segment_bytes=30_000)
    rng, watch, refused = np.random.default_rng(seed), Watch(), 0
    for case in range(count):
        path = shutil.copytree(home / "whole", home / "case")
        touched = harm_log(path, rng)
        try:
            with watch:
                log = Log(path, SCHEMA)
                found, _ = survivors(log)
        except UsageError:  # schema and index at the same time
            refused += 1
        else:
            assert [name for name in NAMES if name in found] == found, case
            assert set(NAMES[:COUNT]) - touched <= set(found), case
            log.append(batch(["more"]), ["more"])
            log.close()
            log = Log(path, SCHEMA)
            assert survivors(log)[0] == [*found, "more"], case
            log.close()
        shutil.rmtree(path)
    assert watch.slowest < 2
    assert refused <= 1 + count / 50


def fuzz_queues(home, count, seed):
    """A queue of which seven messages were sent. Whatever happens, the others are still sent."""
    make_log(home / "whole", COUNT, segment_bytes=30_000, remember=0)
    box = Outbox(home / "whole", SPEC, None, ("", 0), 1 << 20, 1.0, 1.0)
    for _ in range(7):
        _, place = box._read(box._sent)
        box._sent = place
    box._write_json("sent.json", place)
    box._write_json("trainer.json", {"identity": "abc", "foreign": place})
    box.close(0)
    rng, watch, refused = np.random.default_rng(seed), Watch(), 0
    for case in range(count):
        path = shutil.copytree(home / "whole", home / "case")
        touched = harm_log(path, rng) if rng.random() < 0.5 else set()
        harm_file(path / rng.choice(["sent.json", "trainer.json"]), rng)
        try:
            with watch:
                box = Outbox(path, SPEC, None, ("", 0), 1 << 20, 1.0, 1.0)
                found, place = [], box._sent
                while (entry := box._read(place)) is not None:
                    rows, place = entry
                    found.append(rows.column("trajectory")[0].as_py())
        except UsageError:
            refused += 1
        else:
            assert [name for name in NAMES if name in found] == found, case
            assert set(NAMES[7:COUNT]) - touched <= set(found), case
            box.close(0)
        shutil.rmtree(path)
    assert watch.slowest < 2
    assert refused <= 1 + count / 50


def fuzz_models(model_dir, home, count, seed):
    rng, watch, usable = np.random.default_rng(seed), Watch(), 0
    for _ in range(count):
        path = shutil.copytree(model_dir, home / "case")
        if rng.random() < 0.5:
            harm_json(path / "metadata.json", rng)
        else:
            harm_file(rng.choice(sorted(path.iterdir())), rng)
        try:
            with watch:
                model = Model(path)
                model.try_out()
            usable += 1
        except UsageError as error:
            if "\n" in str(error) or len(str(error)) > 1000:
                pytest.fail(f"not a sentence: {error}")
        shutil.rmtree(path)
    assert watch.slowest < 2
    assert 0 < usable < count


def test_logs(tmp_path):
    fuzz_logs(tmp_path, 40, 0)


def test_queues(tmp_path):
    fuzz_queues(tmp_path, 30, 0)


def test_models(model_dir, tmp_path):
    fuzz_models(model_dir, tmp_path, 60, 0)


@pytest.mark.slow
def test_logs_many_times(tmp_path):
    fuzz_logs(tmp_path, 1000, 1)


@pytest.mark.slow
def test_queues_many_times(tmp_path):
    fuzz_queues(tmp_path, 1000, 1)


@pytest.mark.slow
def test_models_many_times(model_dir, tmp_path):
    fuzz_models(model_dir, tmp_path, 1000, 1)


MEASURED = """
import logging, resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import onnxruntime, test_fuzz_files
logging.disable()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in ("logs", "queues", "models"):
    home = Path(sys.argv[3]) / name
    home.mkdir()
    if name == "models":
        test_fuzz_files.fuzz_models(Path(sys.argv[2]), home, 20, 5)
    else:
        getattr(test_fuzz_files, "fuzz_" + name)(home, 15, 5)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_little_memory_is_needed(model_dir, tmp_path):
    words = [sys.executable, "-c", MEASURED, str(Path(__file__).parent), str(model_dir), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 300 << 10  # kilobytes
