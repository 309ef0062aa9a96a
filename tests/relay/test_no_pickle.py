"""Nothing that is loaded can run code: no pickle on a load path, and files that try."""

import ast
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
from source_kit import parse

import flockrl
from flockrl.core.errors import UsageError
from flockrl.data.schema import BadData
from flockrl.relay.actor import Actor
from flockrl.relay.wire import unpack

HOME = Path(flockrl.__file__).parent
RUNS_CODE = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def names(tree):
    """Modules that are imported, and functions that are called, anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                yield node.func.id
            yield from (
                "allow_pickle" for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
            )
            if ast.unparse(node.func) in ("torch.load", "jnp.load"):
                yield ast.unparse(node.func)


def test_no_file_of_the_package_unpickles():
    """But the workers, which get their environment's builder from the process that started them."""
    wrong = RUNS_CODE | {"eval", "exec", "allow_pickle", "torch.load", "jnp.load"}
    found = {
        str(file.relative_to(HOME)): used for file in HOME.rglob("*.py")
        if (used := wrong & set(names(parse(file.read_text()))))
    }  # fmt: skip
    assert found == {"envs/host/workers.py": {"pickle"}}


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_malicious_message_or_model_does_nothing(model_dir, tmp_path):
    harm = pickle.dumps(Harm(tmp_path / "harm"))
    with pytest.raises(BadData):
        unpack(harm)
    shutil.copytree(model_dir, tmp_path / "m")
    about = json.loads((tmp_path / "m" / "metadata.json").read_text())
    (tmp_path / "m" / about["model_file"]).write_bytes(harm)
    with pytest.raises(UsageError, match="damaged"):
        Actor(tmp_path / "m")
    about["sha256"] = hashlib.sha256(harm).hexdigest()
    (tmp_path / "m" / "metadata.json").write_text(json.dumps(about))
    with pytest.raises(UsageError, match="cannot load"):
        Actor(tmp_path / "m")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("file", ["../secret.onnx", "/etc/passwd", "sub/model.onnx"])
def test_a_model_stays_in_its_directory(model_dir, tmp_path, file):
    shutil.copytree(model_dir, tmp_path / "m")
    about = json.loads((tmp_path / "m" / "metadata.json").read_text())
    (tmp_path / "m" / "metadata.json").write_text(json.dumps({**about, "model_file": file}))
    with pytest.raises(UsageError, match="beside"):
        Actor(tmp_path / "m")
