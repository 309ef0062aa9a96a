"""Who does what: jobs with skills and deadlines for unlike workers."""

from flockrl.envs.tasks.allocation import Allocation

ENVIRONMENTS = {"allocation": Allocation}
