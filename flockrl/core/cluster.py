"""Ray (extra `ray`): processes on many machines. Imported when it is asked for, never by `import flockrl`."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from typing import Any

from flockrl.core.errors import UsageError, install, reason
from flockrl.core.settings import check_count

MOST_JOBS = 1000
AUTO = "auto"
"""The address of the cluster at hand, else of one that is started on this machine."""


RETRIES = 20
"""How often work whose node is lost is given to another."""


def outside(address: Any) -> list[str]:
    """What a file that gives its work to a Ray cluster has to be trusted with: machines that run it, and whose answers
    are unpickled; [] for the cluster at hand."""
    return [f"the Ray cluster at {address}"] if address not in (None, AUTO) else []


def require_ray() -> None:
    """An error that names the extra where Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"Running on a cluster needs Ray: {install('ray')}.")


def check_cluster(jobs: int | None, ray: str | None, cores: int) -> None:
    """Refuse flags that have no meaning with Ray, or without it, and numbers beyond what makes sense."""
    if jobs is not None:
        check_count("jobs", jobs, MOST_JOBS)
    if cores < 1:
        raise UsageError(f"cores must be at least 1, not {cores}.")
    if ray is None:
        if cores != 1:
            raise UsageError("cores is for runs on a cluster: use it with --ray, or --jobs to share out these cores.")
        return
    if jobs is not None:
        raise UsageError("A cluster runs as many at a time as it has cores for: leave out --jobs or --ray.")
    require_ray()


def connect(address: str) -> Any:
    """Ray, connected to the cluster at `address` (HOST:PORT), or with "auto" to the one at hand or a local one.

    Nothing that belongs to the cluster is changed. A local one ends with this process.
    """
    require_ray()
    import ray

    if ray.is_initialized():
        return ray
    where: dict[str, Any] = {} if address == AUTO else {"address": address}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what Ray will do another day
            ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(f"There is no Ray cluster at {address}: {reason(error)}.") from error
    return ray


def connect_for(address: str, cores: int) -> Any:
    """Ray, connected for work that needs so many cores of one machine."""
    ray = connect(address)
    if max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0) < cores:
        raise UsageError(f"No machine of the cluster has {cores} cores: use fewer --cores.")
    return ray
