"""Experience made up for tests: teams of unlike agents that die, masks, states, cut episodes."""

import numpy as np

from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete
from flockrl.data.choices import choices, is_real
from flockrl.data.experience import Experience, blank

UNLIKE = EnvSpec(
    "made/unlike", ("a", "b", "c"), (Box((3,)), Box((2,)), Box((4,))), (Discrete(3), Discrete(2), Discrete(5)),
    max_steps=9, state_size=2,
)  # fmt: skip
REAL = EnvSpec("made/real", ("a_0", "a_1"), (Box((3,)),) * 2, (Box((2,), -1.0, 1.0), Box((1,), -1.0, 1.0)), max_steps=9)
MIXED = EnvSpec(
    "made/mixed", ("a", "b", "c"), (Box((3,)), Box((2,)), Box((4,))),
    (MultiDiscrete((4, 2, 3)), Box((2,), -1.0, 1.0), Discrete(5)), max_steps=9,
)  # fmt: skip
SPREAD = EnvSpec("made/spread", ("a_0", "a_1", "a_2"), (Box((6,)),) * 3, (Discrete(5),) * 3, max_steps=9)


def make_experience(spec, lengths, seed=0, rich=True, version=0, name="t"):
    """Trajectories of these lengths that end in turn by termination, by truncation, and in the middle.

    rich: with agents that die, masks and aux values.
    """
    rng, total, count = np.random.default_rng(seed), sum(lengths), len(lengths)
    masks = rich and spec.maskable
    fields = blank(spec, total, count, masks, bool(spec.state_size))
    sizes = np.array([space.size for space in spec.observations])
    own = np.arange(spec.obs_size) < sizes[:, None]
    ends = np.cumsum(lengths)
    last = np.zeros(total, bool)
    last[ends - 1] = True
    fields["id"] = np.array([f"{name}-{seed}-{i}" for i in range(count)], object)
    fields["env"][:] = spec.name
    fields["episode"], fields["version"][:] = np.arange(count), version
    fields["length"] = np.array(lengths)
    fields["step"] = np.arange(total) - np.repeat(ends - lengths, lengths)
    fields["time"] = 1_000 + np.arange(total)
    alive = np.ones((total, spec.num_agents), bool)
    if rich:  # the last agent is there in the first three steps only
        alive[:, -1] = fields["step"] < 3
        fields["terminated"][:, -1] = alive[:, -1] & ((fields["step"] == 2) | last)
    kind = np.repeat(np.arange(count) % 3, lengths)[:, None]
    fields["terminated"] |= last[:, None] & alive & (kind == 0)
    fields["truncated"] |= last[:, None] & alive & ~fields["terminated"] & (kind == 1)

    def number(*shape):
        return rng.normal(size=(total, *shape)).astype(np.float32)

    def follow(values):
        after = np.concatenate([values[1:], values[:1]])
        ended = last[:, None] | fields["terminated"] | fields["truncated"]
        other = rng.permutation(values)
        return np.where(ended[..., None], other, after)

    fields["alive"] = alive
    fields["obs"] = number(spec.num_agents, spec.obs_size) * own * alive[..., None]
    fields["next_obs"] = follow(fields["obs"]) * own
    fields["reward"] = number(spec.num_agents) * alive
    fields["logp"] = np.where(alive, -np.abs(number(spec.num_agents)), np.nan).astype(np.float32)
    if spec.discrete:
        widths = np.array([space.size for space in spec.actions])
        fields["action"] = (rng.integers(0, 1000, alive.shape) % widths * alive).astype(np.int32)
    else:
        fields["action"] = number(spec.num_agents, spec.action_width) * alive[..., None] * spec.own_numbers
        for choice in choices(spec.actions):
            numbers = rng.integers(0, choice.size, total) * alive[:, choice.agent]
            fields["action"][:, choice.agent, choice.entry] = numbers
    if masks:
        legal = (rng.random((total, *spec.own_actions.shape)) < 0.7) | is_real(spec.actions)[:, None]
        rows = fields["action"].reshape(total, spec.num_agents, -1)
        for choice in choices(spec.actions):
            place = choice.start + rows[:, choice.agent, choice.entry].astype(int)
            legal[np.arange(total), choice.agent, place] = True
        fields["avail"] = legal & spec.own_actions & alive[..., None]
        fields["next_avail"] = follow(fields["avail"])
    if spec.state_size:
        fields["state"] = number(spec.state_size)
        fields["next_state"] = np.where(last[:, None], number(spec.state_size), np.roll(fields["state"], -1, 0))
    aux = {}
    if rich:
        value = np.where(alive, number(spec.num_agents), np.nan)[..., None]
        aux = {"value": value.astype(np.float32)}
    return Experience(**fields, aux=aux)


def same(a, b):
    """Whether two of them agree wherever an agent was there, to the bit."""
    for name in Experience._fields:
        x, y = getattr(a, name), getattr(b, name)
        if name == "aux":
            if set(x) != set(y) or not all(np.array_equal(x[k], y[k], equal_nan=True) for k in x):
                return name
            continue
        if (x is None) != (y is None):
            return name
        if x is None:
            continue
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{name}: {x.dtype}{x.shape}, {y.dtype}{y.shape}"
        if name in ("next_obs", "next_avail"):  # what follows the end of a life for good is no one's business
            x, y = x[a.alive], y[a.alive]
        if not (np.array_equal(x, y, equal_nan=True) if x.dtype.kind == "f" else np.array_equal(x, y)):
            return name
    return ""
