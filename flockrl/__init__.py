"""flockrl: multi-agent deep reinforcement learning on JAX.

run = flockrl.train("mappo", "mpe/simple_spread", steps=1_000_000, seed=0)
run.evaluate(episodes=100)
policy = run.policy()
"""

from flockrl.callbacks import Callback
from flockrl.envs import make as make_env
from flockrl.errors import UsageError
from flockrl.run import Run
from flockrl.train import resume, train
from flockrl.types import Box, Discrete, EnvSpec, EvalResult, Observation, Trajectory

__version__ = "0.1.0"
__all__ = [
    "Box",
    "Callback",
    "Discrete",
    "EnvSpec",
    "EvalResult",
    "Observation",
    "Run",
    "Trajectory",
    "UsageError",
    "make_env",
    "resume",
    "train",
]
