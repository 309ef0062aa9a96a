"""DDPG, TD3 and SAC with memory: stretches of a replay against a loop over time that carries memories by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_off_policy import learner, unsettled, world

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.sac import SAC
from flockrl.algos.views import both_views
from flockrl.core.errors import UsageError
from flockrl.core.types import Observation, Trajectory, choose
from flockrl.envs import make
from flockrl.replay.ring import add, along, make_replay, stretch

B, ROWS, GAMMA = 5, 12, 0.9
SMALL = {"hidden": (6,), "memory": "gru", "memory_size": 5, "gamma": GAMMA, "burn_in": 2, "sequence": 4}
CASES = [
    ("ddpg", False, {"critic": "own", "n_step": 3}),
    ("ddpg", True, {"critic": "central", "n_step": 1, "agent_ids": False}),
    ("sac", False, {"critic": "central", "n_step": 3}),
    ("sac", True, {"critic": "own", "n_step": 1}),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("ddpg", False, {"critic": "central", "n_step": 1}),
            ("ddpg", True, {"critic": "own", "n_step": 3, "share": "none"}),
            ("td3", False, {"critic": "central", "n_step": 3, "share": "all", "target_noise": 0.0}),
            ("sac", False, {"critic": "own", "n_step": 1, "burn_in": 0}),
            ("sac", True, {"critic": "central", "n_step": 3, "agent_ids": False}),
        )
    ),
]


def made(family, discrete, **settings):
    fixed = {"temperature": 0.1} if family == "sac" else {"sample_targets": False}
    return learner(family, world(discrete), **{**SMALL, **fixed, **settings})


def experience(spec, seed=0):
    """Rows of a ring: episodes that are cut, that end, that lose an agent, that begin or are cut unannounced."""
    rng = np.random.default_rng(seed)
    n, a = spec.num_agents, spec.action_size
    mask = np.arange(spec.obs_size) < np.array([s.size for s in spec.observations])[:, None]
    obs, following = (rng.normal(size=(2, ROWS, B, n, spec.obs_size)) * mask).astype(np.float32)
    first, alive = np.zeros((ROWS, B), bool), np.ones((ROWS, B, n), bool)
    terminated, truncated = np.zeros((2, ROWS, B, n), bool)
    truncated[5, 0], first[6, 0] = True, True
    terminated[4, 1], first[5, 1] = True, True
    terminated[3, 2, 1], alive[4:7, 2, 1], truncated[6, 2, [0, 2]], first[7, 2] = True, False, True, True
    first[6, 3], truncated[5, 4] = True, True
    sizes = np.array([s.size for s in spec.actions])
    avail = after = None
    if spec.discrete:
        action = (rng.random((ROWS, B, n)) * sizes).astype(np.int32)
        avail, after = rng.random((2, ROWS, B, n, a)) < 0.6
        avail[..., 0] = after[..., 0] = True
        np.put_along_axis(avail, action[..., None], True, -1)
    else:
        box = np.arange(a) < sizes[:, None]
        action = (rng.uniform((-1.0, 0.0), (2.0, 0.5), size=(ROWS, B, n, a)) * box).astype(np.float32)
    arrays = Trajectory(
        obs=obs, next_obs=following, action=action, reward=rng.normal(size=(ROWS, B, n)).astype(np.float32),
        terminated=terminated, truncated=truncated, first=first, alive=alive, avail=avail, next_avail=after,
        next_alive=alive & ~terminated,
    )  # fmt: skip
    return jax.tree.map(jnp.asarray, arrays)


def batch_of(agent, rows, begin=1):
    """The stretches that begin in this row, one of each environment, and the batch that a ring makes of them."""
    memory = agent.actor.memory(B)
    replay = add(make_replay(agent.spec, ROWS, B, False, memory, ROWS), rows._replace(memory=memory))
    place = jnp.full(B, begin), jnp.arange(B), jnp.linspace(0.5, 1.0, B)
    raw = jax.tree.map(lambda x: x[begin : begin + agent.window], rows)
    return raw, along(stretch(replay, *place[:2], agent.window), *place, agent.config.burn_in, agent.steps)


def dense(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def remember(params, x, memory):
    """Memory [b, n, H] after a look at x [b, n, F]."""
    for i in range(len(params["torso"])):
        x = np.maximum(dense(params["torso"][f"dense_{i}"], x), 0)
    gru = params["gru"]
    inputs, recalled = np.split(dense(gru["input"], x), 3, -1), np.split(memory @ gru["kernel"], 3, -1)
    reset, update = (sigmoid(inputs[k] + recalled[k]) for k in (0, 1))
    new = np.tanh(inputs[2] + reset * (recalled[2] + gru["bias"]))
    return (1 - update) * new + update * memory


def speak(params, memory, beside=None):
    """Output [b, n, K] from a memory, and for a critic from actions beside it."""
    if beside is not None:
        rows = max(memory.shape[1], beside.shape[1])
        parts = [np.broadcast_to(x, (len(x), rows, x.shape[2])) for x in (memory, beside)]
        memory = np.maximum(dense(params["joined"], np.concatenate(parts, -1)), 0)
    return dense(params["head"], memory)


class Walk:
    """A network's memories before and after each step, and its outputs from there, one step at a time.

    The burn-in is walked with parameters that are `held`: those which no gradient reaches.
    """

    def __init__(self, params, held, memory, x, first, burn_in):
        self.params, self.burn_in, self.before, self.after = params, burn_in, [], []
        for t in range(len(x)):
            memory = np.where(first[t][:, None, None], 0.0, memory)
            self.before.append(memory)
            memory = remember(held if t < burn_in else params, x[t], memory)
            self.after.append(memory)

    def now(self, x, beside=None):
        """Outputs [T, b, n, K] for what was seen after the burn-in."""
        return self._outputs(self.before, x, beside)

    def later(self, x, beside=None):
        """Outputs for what followed."""
        return self._outputs(self.after, x, beside)

    def _outputs(self, memories, x, beside):
        rows = zip(x, memories[self.burn_in :], [None] * len(x) if beside is None else beside, strict=False)
        return np.stack([speak(self.params, remember(self.params, a, h), b) for a, h, b in rows])


class Reference:
    """What a learner should compute on stretches [W, b], in NumPy, float64; random numbers as the learner draws them.

    actor, critic, target_actor, target_critic: one tree of parameters for each network.
    """

    def __init__(self, agent, raw, weight, key):
        self.config, self.spec, self.groups, self.twins = agent.config, agent.spec, agent.groups, agent.twins
        self.soft, self.alpha = isinstance(agent, SAC), agent.config.temperature if isinstance(agent, SAC) else 0.0
        self.weight, self.raw = np.asarray(weight, float), jax.tree.map(np.asarray, raw)
        burn, steps = agent.config.burn_in, agent.steps
        self.now, self.live = (
            jax.tree.map(lambda x, end=end: x[burn:end], self.raw) for end in (burn + steps, None)
        )  # fmt: skip
        self.alive, self.left = self.now.alive.astype(float), (self.live.alive & ~self.live.terminated).astype(float)
        self.taken = np.asarray(agent.code.encode(self.now.action), float)
        self.action = self.taken * self.alive[..., None]
        self.keys = jax.random.split(key, len(agent.groups))

    def own(self, x, group, size):
        return x[..., np.array(group.agents), :size]

    def observed(self, group, obs):
        """What a critic observes."""
        if self.config.critic == "own":
            return self.own(obs, group, group.obs_size)
        parts = [obs[..., i, : box.size] for i, box in enumerate(self.spec.observations)]
        return np.concatenate(parts, -1)[..., None, :]

    def done(self, group, code, own=None):
        """What a critic reads of the team's codes, where each agent of the group does its `own` instead."""
        if self.config.critic == "own":
            return self.own(code, group, group.action_size) if own is None else own
        if own is None:
            return code.reshape(*code.shape[:2], 1, -1)
        rows = np.repeat(code[:, :, None], group.size, 2)
        for k, i in enumerate(group.agents):
            rows[:, :, k, i] = 0
            rows[:, :, k, i, : own.shape[-1]] = own[:, :, k]
        return rows.reshape(*code.shape[:2], group.size, -1)

    def read(self, group, code):
        """The same for SAC's critics of choices, which have an output for each of their agent's."""
        if group.continuous or not self.soft:
            return self.done(group, code)
        return self.done(group, code, np.zeros((*code.shape[:2], group.size, group.action_size)))

    def actor(self, g, params, held):
        group = self.groups[g]
        memory = np.zeros((B, group.size, self.config.memory_size))
        x = self.own(self.raw.obs, group, group.obs_size)
        return Walk(params[g], held[g], memory, x, self.raw.first, self.config.burn_in)

    def critics(self, g, params, held):
        """The walks of a group's critics."""
        group = self.groups[g]
        apart = self.config.critic == "own" or (self.config.agent_ids and group.size > 1)
        memory = np.zeros((B, group.size if apart else 1, self.config.memory_size))
        x, burn = self.observed(group, self.raw.obs), self.config.burn_in
        both = range(self.twins * g, self.twins * (g + 1))
        return [Walk(params[c], held[c], memory, x, self.raw.first, burn) for c in both]

    def legal(self, group, avail, steps):
        mask = np.broadcast_to(group.legal, (steps, B, *group.legal.shape))
        return mask if avail is None else mask & self.own(avail, group, group.action_size)

    def choose(self, g, out, legal):
        """A group's codes, and for SAC log-densities or all log-probabilities."""
        group, key = self.groups[g], self.keys[g]
        if not self.soft:
            return (np.tanh(out) * legal if group.continuous else best(np.where(legal, out, -np.inf))), None
        if not group.continuous:
            p = softmax(out, legal)
            logp = np.log(np.where(legal, p, 1.0))
            noise = np.asarray(jax.random.gumbel(key, out.shape))
            return best(np.where(legal, logp + noise, -np.inf)), (p, logp)
        middle, log_std = np.split(out, 2, -1)
        std = np.exp(np.clip(log_std, -5, 2))
        noise = np.asarray(jax.random.normal(key, middle.shape), float)
        u = np.tanh(middle + std * noise)
        density = -0.5 * noise**2 - np.log(std * np.sqrt(2 * np.pi)) - np.log(1 - u**2)
        return u * legal, np.where(legal, density, 0.0).sum(-1)

    def expected(self, group, q, logp, there=1.0):
        """Soft values of outputs q [.., b, n, K]; there: [.., b, n] 1 for those who draw, 0 for the dead."""
        if logp is None:
            return q[..., 0]
        alpha = self.alpha * np.broadcast_to(there, q.shape[:-1])
        if group.continuous:
            return q[..., 0] - alpha * logp
        return (logp[0] * (q - alpha[..., None] * logp[1])).sum(-1)

    def next_values(self, nets):
        """[.., b, N] by target critics, for what target actors (SAC: actors) would do after each step."""
        actors, live, chosen = nets["actor" if self.soft else "target_actor"], self.live, []
        code, values = np.zeros((*self.left.shape, self.spec.action_size)), np.zeros(self.left.shape)
        for g, group in enumerate(self.groups):
            out = self.actor(g, actors, actors).later(self.own(live.next_obs, group, group.obs_size))
            part, logp = self.choose(g, out, self.legal(group, live.next_avail, len(out)))
            code[..., np.array(group.agents), : part.shape[-1]] = part
            chosen.append(logp)
        code *= self.left[..., None]
        for g, group in enumerate(self.groups):
            x = self.observed(group, live.next_obs), self.read(group, code)
            q = np.min([walk.later(*x) for walk in self.critics(g, nets["target_critic"], nets["target_critic"])], 0)
            there = self.left[..., np.array(group.agents)]
            values[..., np.array(group.agents)] = self.expected(group, q, chosen[g], there)
        return values

    def targets(self, nets):
        """Returns of n steps, by recursion over one step, one team and one agent at a time."""
        live, follows = self.live, self.next_values(nets)

        def ahead(t, b, i, n):
            if live.terminated[t, b, i]:
                return live.reward[t, b, i]
            over = n == 1 or live.truncated[t, b, i] or live.first[t + 1, b]
            return live.reward[t, b, i] + GAMMA * (follows[t, b, i] if over else ahead(t + 1, b, i, n - 1))

        found = np.zeros(self.alive.shape)
        for place in np.ndindex(found.shape):
            found[place] = ahead(*place, self.config.n_step)
        return found

    def mean(self, x, group):
        alive = self.alive[..., np.array(group.agents)]
        return (x * alive).sum() / alive.sum()

    def values(self, critics, held):
        """Of what was done: [T, b, n] by each critic."""
        found = []
        for g, group in enumerate(self.groups):
            x = self.observed(group, self.now.obs), self.read(group, self.action)
            for walk in self.critics(g, critics, held):
                q = walk.now(*x)
                picked = q * self.own(self.taken, group, group.action_size) if self.soft and q.shape[-1] > 1 else q
                found.append(np.broadcast_to(picked.sum(-1), (*q.shape[:2], group.size)))
        return found

    def critic_loss(self, critics, held, target):
        total = 0.0
        for c, q in enumerate(self.values(critics, held)):
            group = self.groups[c // self.twins]
            total += self.mean(self.weight[:, None] * (q - target[..., np.array(group.agents)]) ** 2, group)
        return total

    def policy_loss(self, actors, held, critics):
        """Choices pass on the gradient of their softmax: what they are comes from the policy that is `held`."""
        total, now = 0.0, self.now
        for g, group in enumerate(self.groups):
            out, there = (self.actor(g, p, held).now(self.own(now.obs, group, group.obs_size)) for p in (actors, held))
            legal, x = self.legal(group, now.avail, len(out)), self.observed(group, now.obs)
            own, logp = self.choose(g, out, legal)
            walks = self.critics(g, critics, critics)
            if self.soft:
                beside = self.done(group, self.action, own) if group.continuous else self.read(group, self.action)
                q = np.min([walk.now(x, beside) for walk in walks], 0)
                total -= self.mean(self.expected(group, q, logp), group)
                continue
            if not group.continuous:
                own = self.choose(g, there, legal)[0] + softmax(out, legal) - softmax(there, legal)
            q = walks[0].now(x, self.done(group, self.action, own))[..., 0]
            penalty = np.where(legal, out**2, 0.0).mean(-1)
            total += self.mean(self.config.output_penalty * penalty - q, group)
        return total


def best(logits):
    return np.eye(logits.shape[-1])[logits.argmax(-1)]


def softmax(out, legal):
    p = np.where(legal, np.exp(out), 0.0)
    return p / p.sum(-1, keepdims=True)


def along_direction(f, params, direction, step=1e-5):
    """The slope of f by differences."""
    ahead, behind = (f(jax.tree.map(lambda p, d, s=s: p + s * step * d, params, direction)) for s in (1, -1))
    return (ahead - behind) / (2 * step)


def compare_slopes(loss, params, grads, burn_in):
    """Given gradients against differences of loss(params, held), which is not learned through the burn-in."""
    rng = np.random.default_rng(0)
    through = 0.0
    for _ in range(3):
        direction = jax.tree.map(lambda p: rng.normal(size=p.shape), params)
        exact = sum(
            jax.tree.leaves(jax.tree.map(lambda g, d: float((np.asarray(g, float) * d).sum()), grads, direction))
        )
        assert exact == pytest.approx(along_direction(lambda p: loss(p, params), params, direction), rel=1e-3, abs=1e-4)
        through = max(through, abs(along_direction(lambda held: loss(params, held), params, direction)))
    assert (through > 1e-2) == (burn_in > 0)


@pytest.mark.parametrize(("family", "discrete", "settings"), CASES)
def test_learning_along_a_stretch_equals_a_loop_over_time(family, discrete, settings):
    """Values, targets, both losses and their slopes, over ends of episodes, with deaths."""
    agent = made(family, discrete, **settings)
    learned, rows, key = unsettled(agent), experience(agent.spec), jax.random.key(5)
    raw, batch = batch_of(agent, rows)

    def found(learned, batch):
        now, following = both_views(batch)
        target = agent._target(batch, agent._next_values(learned, following, key))
        action = agent.code.encode(batch.action) * batch.alive[..., None]
        critics, actors = learned.params["critic"], learned.params["actor"]
        own = agent.code.encode(batch.action)
        values = [agent._predict(p, c, now, action, own) for c, p in enumerate(critics)]
        critic = jax.value_and_grad(lambda p: agent._critic_loss(p, now, batch, action, target)[0])(critics)
        if family == "sac":
            policy = jax.value_and_grad(lambda p: agent._policy_loss(p, learned, now, action, key)[0])(actors)
        else:
            still = [0.0] * len(agent.groups)
            policy = jax.value_and_grad(lambda p: agent._policy_loss(p, critics, now, action, still))(actors)
        return values, target, critic, policy

    values, target, critic, policy = jax.jit(found)(learned, batch)
    reference = Reference(agent, raw, batch.weight, key)
    nets = jax.tree.map(
        lambda x: np.asarray(x, float),
        {**learned.params, **{f"target_{name}": nets for name, nets in learned.targets.items()}},
    )
    wanted = reference.targets(nets)
    np.testing.assert_allclose(target, wanted, atol=1e-5, rtol=1e-5)
    for got, want in zip(values, reference.values(nets["critic"], nets["critic"]), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)
    losses = {
        "critic": lambda p, held: reference.critic_loss(p, held, wanted),
        "actor": lambda p, held: reference.policy_loss(p, held, nets["critic"]),
    }
    for name, (loss, grads) in (("critic", critic), ("actor", policy)):
        assert float(loss) == pytest.approx(losses[name](nets[name], nets[name]), abs=1e-5, rel=1e-5)
        compare_slopes(losses[name], nets[name], grads, agent.config.burn_in)


def test_learning_sees_what_acting_remembered():
    """Greedy actions, one step after the other, are those of the outputs along the stretch; noise is kept apart."""
    agent = made("ddpg", False, explore="ou", burn_in=0, sequence=ROWS)
    learned, rows = unsettled(agent), experience(agent.spec)
    now = both_views(batch_of(agent, rows, begin=0)[1])[0]
    codes = jax.jit(lambda actors: agent._codes(agent._outputs(actors, now), None))(learned.params["actor"])
    params = {"actor": learned.params["actor"], "progress": jnp.float32(0), "warm": jnp.bool_(True)}
    act, memory = jax.jit(agent.act, static_argnums=4), agent.memory(B)
    for t in range(ROWS):
        memory = choose(rows.first[t], agent.memory(B), memory)
        seen = Observation(rows.obs[t], alive=rows.alive[t])
        action, after, _ = act(params, seen, memory, jax.random.key(t), False)
        np.testing.assert_allclose(action, agent.code.decode(codes[t]), atol=1e-5)
        explored, memory, _ = act(params, seen, memory, jax.random.key(t), True)
        assert np.abs(np.asarray(explored - action)).max() > 0.05
        jax.tree.map(np.testing.assert_array_equal, agent._apart(memory)[0], agent._apart(after)[0])
        assert (agent._apart(memory)[1] != agent._apart(after)[1]).any()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"memory": "gru", "burn_in": 10**10}, "rollout_steps, sequence or burn_in"),
        ({"rollout_steps": 10**11}, "rollout_steps, sequence or burn_in"),
        ({"buffer_size": 10**11}, "buffer_size"),
    ],
)
def test_a_replay_that_is_too_large_names_what_makes_it_so(given, word):
    with pytest.raises(UsageError, match=f"A replay of .* choose a smaller {word}"):
        make_algorithm("qmix", make("games/climbing").spec, make_config("qmix", given), envs=4, updates=4)
