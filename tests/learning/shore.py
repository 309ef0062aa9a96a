"""A tiny task for learners from recordings: two swimmers, a mixed recording, and waters that nobody recorded.

Each swimmer at x moves by half its action and pays x^2; the team shares the mean. Actions beyond half of their range
hurt, and no recorded action goes there, so that only a learner which stays near the data does well. Half of the
recorded episodes swim to the shore at 0, the other half away from it: cloning ends in the middle of both.
"""

import numpy as np

from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.experience import Experience, blank
from flockrl.data.files import Writer

STEPS, AGENTS = 5, ("a_0", "a_1")
CHOICES = np.array([-1.0, -0.35, 0.0, 0.35, 1.0])
"""What the choices of the discrete task mean; the first and the last are never recorded."""
SPECS = {
    "real": EnvSpec("made/shore", AGENTS, (Box((1,)),) * 2, (Box((1,), -1.0, 1.0),) * 2, max_steps=STEPS),
    "choice": EnvSpec("made/choices", AGENTS, (Box((1,)),) * 2, (Discrete(5),) * 2, max_steps=STEPS),
}
SETTINGS = {"steps": 8000, "envs": 4, "hidden": (32,), "eval_episodes": 1, "rollout_steps": 20}
REPLAY = {"steps_per_update": 8, "batch_size": 64, "learning_starts": 1000, "buffer_size": 16_000, "gamma": 0.8}


def begin(episodes, rng):
    return rng.uniform(-1, 1, (episodes, 2)).astype(np.float32)


def move(x, action, kind):
    """Where swimmers at x [E, 2] come to, and what the team earns, [E, 2]."""
    stroke = action[..., 0] if kind == "real" else CHOICES[action]
    x = np.clip(x + 0.5 * stroke, -1.5, 1.5).astype(np.float32)
    earned = -(x**2) - 3.0 * (np.abs(stroke) > 0.5)
    return x, np.broadcast_to(earned.mean(1, keepdims=True), earned.shape).astype(np.float32)


def write(path, kind, episodes=400, seed=0):
    """Record; returns the mean return."""
    rng, spec = np.random.default_rng(seed), SPECS[kind]
    x, way = begin(episodes, rng), np.where(rng.random((episodes, 1)) < 0.5, -1, 1)
    rows = {name: [] for name in ("obs", "action", "reward", "next_obs")}
    for _ in range(STEPS):
        stroke = way * np.sign(x)
        if kind == "real":
            action = (0.3 * stroke + rng.uniform(-0.1, 0.1, x.shape))[..., None].astype(np.float32)
        else:
            action = np.where(rng.random(x.shape) < 0.2, 2, 2 + stroke).astype(np.int32)
        after, reward = move(x, action, kind)
        for name, value in zip(rows, (x[..., None], action, reward, after[..., None]), strict=True):
            rows[name].append(value)
        x = after
    fields = blank(spec, episodes * STEPS, episodes, False, False)
    for name, values in rows.items():
        fields[name] = np.stack(values, 1).reshape(episodes * STEPS, *values[0].shape[1:])
    fields["id"] = np.array([f"e-{i}" for i in range(episodes)], object)
    fields["length"][:] = STEPS
    fields["step"] = np.tile(np.arange(STEPS), episodes)
    fields["truncated"] = np.broadcast_to((fields["step"] == STEPS - 1)[:, None], (episodes * STEPS, 2)).copy()
    fields["alive"][:] = True
    with Writer(path, spec) as writer:
        writer.add(Experience(**fields))
    return float(np.stack(rows["reward"]).sum(0).mean())


def score(policy, kind, episodes=300):
    """The mean return of a policy without exploration."""
    x, total = begin(episodes, np.random.default_rng(99)), 0.0
    for _ in range(STEPS):
        x, reward = move(x, np.asarray(policy.act(x[..., None])), kind)
        total += reward.mean()
    return float(total)
