"""A Ray cluster of several nodes on this machine, and small ones at that."""

import contextlib
import os

SMALL = {"object_store_memory": 80 * 2**20}


@contextlib.contextmanager
def cluster(nodes, cpus=1):
    """A head without cores, and so many nodes with `cpus` cores each, as ray.cluster_utils.Cluster has them."""
    # Actors are not to die because others use up the machine's memory.
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL})
    try:
        made.workers = [made.add_node(num_cpus=cpus, **SMALL) for _ in range(nodes)]
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
