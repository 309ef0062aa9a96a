"""The models that an actor has from its server: fetched, tried, kept in a directory, found again without the server."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.portable.model import METADATA, Model
from flockrl.relay.client import BadModel, Client, Unreachable

logger = logging.getLogger("flockrl.relay")


def fetch_model(client: Client, folder: Path, newer_than: int, identity: str, spec: EnvSpec | None) -> Model | None:
    """The server's model, saved under `folder`, or None if it is not newer. The last two models there are kept.

    identity: of the trainer whose version `newer_than` is; a model of another trainer counts as newer. spec: what the
    model must be for. Raises `BadModel` if it is not usable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arriving = folder / "arriving"
    for left in (arriving, arriving.with_name("arriving.part")):
        shutil.rmtree(left, ignore_errors=True)
    version = client.model(arriving, newer_than, identity)
    if version is None:
        return None
    try:
        _sign(arriving / METADATA, client.identity)
        model = Model(arriving)
        if model.version != version:
            raise UsageError(f"it says that it is version {model.version}")
        if spec is not None and model.spec != spec:
            raise UsageError("it is for another environment")
        model.try_out()
    except (UsageError, ValueError, RecursionError) as error:
        raise BadModel(f"{client.server}: model {version} is not usable: {error}", version) from error
    final = folder / f"{version:010d}"
    shutil.rmtree(final, ignore_errors=True)
    arriving.rename(final)
    kept = kept_models(folder)
    later = [path for path in kept if path.name > final.name]  # of a trainer that is no more
    for old in [*later, *[path for path in kept if path not in later][:-2]]:
        shutil.rmtree(old, ignore_errors=True)
    return model


def _sign(file: Path, identity: str) -> None:
    """Write the trainer's identity into a model's metadata."""
    about = json.loads(file.read_text()) if file.is_file() else None
    if isinstance(about, dict):
        file.write_text(json.dumps({**about, "identity": identity}))


def kept_models(folder: Path) -> list[Path]:
    """Models that were fetched, oldest first."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit())


def first_model(model_dir: Any, client: Client | None, queue: Path | None, timeout: float) -> Model:
    """The model to begin with: the given one, the server's, or the last that it gave when it cannot be reached."""
    if model_dir is not None:
        model = Model(Path(model_dir))
        model.try_out()
        return model
    if client is None or queue is None:
        raise UsageError("An actor needs a model: give model_dir, or a server that has one.")
    deadline, known = time.monotonic() + timeout, -1
    while True:
        try:
            fetched = fetch_model(client, queue / "models", known, "", None)
            if fetched is not None:
                return fetched
            if known < 0:
                complaint: UsageError = Unreachable(f"{client.server} has not published a model yet.")
        except BadModel as error:
            complaint, known = error, error.version
        except Unreachable as error:
            complaint = error
        for path in reversed(kept_models(queue / "models")):
            try:
                model = Model(path)
                model.try_out()
                return model
            except UsageError as error:
                logger.warning("%s is left out: %s", path, error)
        if time.monotonic() > deadline:
            raise complaint
        time.sleep(0.2)
