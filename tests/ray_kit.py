"""A Ray cluster of several nodes on this machine, and small ones at that."""

import contextlib
import os
import pickle

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


class Near:
    """What flockrl uses of Ray, in this process: actors are objects, and what goes to them and comes back is pickled.

    `kill(number)` has an actor die; so does `fate(actor, method)` that returns True, after the call was done.
    """

    def __init__(self, cores=8):
        self.cores, self.actors, self.calls, self.fate = cores, [], [], lambda actor, method: False
        self.exceptions = type("exceptions", (), {"RayError": NearError, "GetTimeoutError": TimeoutError})

    def cluster_resources(self):
        return {"CPU": self.cores}

    def put(self, value):
        self.calls.append("put")
        return pickle.dumps(value)

    def remote(self, life):
        near = self

        class Made:
            @staticmethod
            def options(**how):
                return Made

            @staticmethod
            def remote(packed, form, count, *more):
                near.actors.append(NearActor(near, life, (packed, form, count, *map(pickle.loads, more))))
                return near.actors[-1]

        return Made

    def get(self, answer, timeout=None):
        if isinstance(answer, Exception):
            raise answer
        return pickle.loads(answer)

    def kill(self, actor):
        actor.dead = True


class NearError(Exception):
    """An actor that is dead, or what a call of it raised."""

    def __init__(self, cause=None):
        super().__init__("dead")
        self.cause = cause


class NearActor:
    def __init__(self, near, life, args):
        self.near, self.dead, self.object = near, False, life(*args)

    def __getattr__(self, method):
        return type("Method", (), {"remote": lambda _, *args: self.call(method, args)})()

    def call(self, method, args):
        self.near.calls.append(method)
        if method == "__ray_terminate__" or self.dead:
            return NearError()
        args = (pickle.loads(arg) if isinstance(arg, bytes) else pickle.loads(pickle.dumps(arg)) for arg in args)
        try:
            answer = pickle.dumps(getattr(self.object, method)(*args))
        except Exception as error:
            return NearError(error)
        self.dead |= self.near.fate(self, method)
        return NearError() if self.dead else answer
