"""Environments that chance does not solve: agents have to look for the reward, together."""

from flockrl.envs.explore.k_step import KStep
from flockrl.envs.explore.push_box import PushBox
from flockrl.envs.explore.rooms import Pass, SecretRoom

ENVIRONMENTS = {"pass": Pass, "secret_room": SecretRoom, "push_box": PushBox, "k_step": KStep}
