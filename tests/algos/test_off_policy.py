"""DDPG, TD3 and SAC: updates against NumPy, and identities between their variants."""

import jax
import jax.numpy as jnp
import numpy as np
import off_policy_reference as ref
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.cql import ConservativeSAC, CQLConfig
from flockrl.algos.ddpg import DDPG, DDPGConfig
from flockrl.algos.implicit_q import ImplicitQ, ImplicitQConfig
from flockrl.algos.presets import make_config
from flockrl.algos.sac import SAC, SACConfig
from flockrl.algos.td3 import TD3, TD3Config
from flockrl.algos.td3_bc import TD3BC, TD3BCConfig
from flockrl.algos.views import both_views
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.replay.ring import Batch

FAMILIES = {
    "ddpg": (DDPG, DDPGConfig), "td3": (TD3, TD3Config), "sac": (SAC, SACConfig), "cql": (ConservativeSAC, CQLConfig),
    "td3_bc": (TD3BC, TD3BCConfig), "implicit_q": (ImplicitQ, ImplicitQConfig),
}  # fmt: skip
QUICK = {*((name, kind) for name in ("ddpg", "td3", "sac") for kind in (False, True)), ("cql", False), ("td3_bc", True)}
EVERY = [
    pytest.param(name, kind, marks=() if (name, kind) in {*QUICK, ("implicit_q", False)} else pytest.mark.slow)
    for name in FAMILIES
    for kind in (False, True)
]
"""Families with real actions and with choices."""
SMALL = {"hidden": (7, 6), "rollout_steps": 4, "steps_per_update": 4, "batch_size": 16, "buffer_size": 64}
SIZES = (4, 4, 3)
ACTIONS = (2, 2, 1)


def world(discrete=False, n=3, actions=ACTIONS, sizes=SIZES):
    """Two agents of one kind and a third with smaller spaces, bounds unlike in every dimension."""
    boxes = [Box((a,), (-1.0, 0.0)[:a], (2.0, 0.5)[:a]) for a in actions]
    spaces = tuple(Discrete(a + 2) for a in actions) if discrete else tuple(boxes)
    names = ("a_0", "a_1", "b")
    return EnvSpec("test", names[:n], tuple(Box((s,)) for s in sizes[:n]), spaces[:n], 9, reward_after_death=False)


def learner(family, spec=None, **settings):
    cls, config = FAMILIES[family]
    return cls(spec or world(), config(**{**SMALL, **settings}), 4, 10)


def sample(spec, seed=0, b=16, deaths=True):
    rng = np.random.default_rng(seed)
    n = spec.num_agents
    width = np.array([s.size for s in spec.observations])
    mask = np.arange(spec.obs_size) < width[:, None]
    obs, following = (rng.normal(size=(2, b, n, spec.obs_size)) * mask).astype(np.float32)
    alive = rng.random((b, n)) < 0.7 if deaths else np.ones((b, n), bool)
    over = rng.random((b, n)) < 0.2
    count = np.array([s.size for s in spec.actions])
    if spec.discrete:
        action = (rng.random((b, n)) * count).astype(np.int32)
        avail, after = rng.random((2, b, n, spec.action_size)) < 0.6
        avail[..., 0] = after[..., 0] = True
        np.put_along_axis(avail, action[..., None], True, -1)
    else:
        box = np.arange(spec.action_size) < count[:, None]
        low, high = np.array([-1.0, 0.0]), np.array([2.0, 0.5])
        action = (rng.uniform(low, high, size=(b, n, 2))[..., : spec.action_size] * box).astype(np.float32)
        avail = after = None
    arrays = Batch(
        obs=obs, avail=avail, state=None, action=action, alive=alive.astype(np.float32),
        reward=rng.normal(size=(b, n)).astype(np.float32), discount=(0.9 * ~over).astype(np.float32),
        next_obs=following, next_avail=after, next_state=None, next_alive=(alive & ~over).astype(np.float32),
        weight=rng.uniform(0.5, 1, b).astype(np.float32), row=np.zeros(b, np.int32), env=np.zeros(b, np.int32),
    )  # fmt: skip
    return jax.tree.map(jnp.asarray, arrays)


def unsettled(agent, seed=3):
    """A state whose targets differ from the online networks and whose optimiser has a past."""
    learned = jax.jit(agent.init)(jax.random.key(seed)).learned
    rng = np.random.default_rng(seed)

    def shake(tree, scale):
        return jax.tree.map(lambda x: x + scale * rng.normal(size=x.shape).astype(np.float32), tree)

    def past(adam):
        return adam._replace(
            count=jnp.int32(5), mu=shake(adam.mu, 0.05),
            nu=jax.tree.map(lambda x: jnp.asarray(rng.uniform(0.5, 1.0, x.shape), jnp.float32), adam.nu),
        )  # fmt: skip

    optimiser = {name: tuple((s[0], past(s[1])) for s in states) for name, states in learned.optimiser.items()}
    return learned._replace(
        params=shake(learned.params, 0.3), targets=shake(learned.targets, 0.3), optimiser=optimiser
    )  # fmt: skip


def close(network, expected):
    for got, want in zip(ref.layers(network), expected, strict=True):
        np.testing.assert_allclose(got.kernel, want.kernel, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(got.bias, want.bias, atol=1e-5, rtol=1e-5)


def team_of(agent, batch):
    spec, config = agent.spec, agent.config
    code = (np.asarray(batch.action, float) - agent.code.middle) / agent.code.half * agent.code.own
    groups = {"all": [[0, 1, 2]], "groups": [[0, 1], [2]], "none": [[0], [1], [2]]}[config.share]
    sizes = [s.size for s in spec.observations], [s.size for s in spec.actions]
    return ref.Team(groups, *sizes, batch, code, config.critic == "central")


def moments_of(states):
    return [(ref.layers(s[1].mu), ref.layers(s[1].nu), int(s[1].count)) for s in states]


def stepped(networks, grads, moments, lr):
    return [ref.adam(net, g, m, lr, 0.5) for net, g, m in zip(networks, grads, moments, strict=True)]


@pytest.mark.parametrize(
    ("family", "critic", "share"),
    [
        ("ddpg", "central", "none"),
        ("td3", "own", "groups"),
        ("td3", "central", "all"),
        ("sac", "central", "none"),
        ("sac", "own", "groups"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("ddpg", "central", "all"), ("ddpg", "own", "groups"), ("td3", "central", "none"),
                ("sac", "central", "all"),
            )
        ),
    ],
)  # fmt: skip
def test_one_gradient_step_matches_numpy(family, critic, share):
    agent = learner(family, critic=critic, share=share)
    batch, before = sample(agent.spec), unsettled(agent)
    before = before._replace(updates=jnp.int32(1))  # TD3's policies move in every second step
    key = jax.random.key(11)
    after, _, metrics = jax.jit(agent.step)(before, batch, jnp.float32(1), key)

    team, twins = team_of(agent, batch), agent.twins
    nets = {name: [ref.layers(p) for p in before.params[name]] for name in before.params}
    old = {name: [ref.layers(p) for p in before.targets[name]] for name in before.targets}
    target_key, policy_key = jax.random.split(key)
    group_keys = [jax.random.split(k, len(team.groups)) for k in (target_key, policy_key)]
    noise = [
        [
            np.asarray(jax.random.normal(k, (16, group.size, group.action_size)), float)
            for k, group in zip(keys, agent.groups, strict=True)
        ]
        for keys in group_keys
    ]
    if family == "sac":
        alpha = np.exp(np.asarray(before.extra[0], float))
        target = ref.sac_target(team, nets["actor"], old["critic"], alpha, batch.discount, batch.reward, noise[0])
    elif family == "td3":
        smooth = 0.2 * np.asarray(jax.random.normal(target_key, (16, 3, 2)), float)
        target = ref.ddpg_target(team, old["actor"], old["critic"], 2, batch.discount, batch.reward, smooth, 0.5)
    else:
        target = ref.ddpg_target(team, old["actor"], old["critic"], 1, batch.discount, batch.reward)
    loss, grads = team.critic_losses(nets["critic"], twins, target)
    assert float(metrics["critic_loss"]) == pytest.approx(loss, rel=1e-5)
    critics = stepped(nets["critic"], grads, moments_of(before.optimiser["critic"]), 1e-3)
    for got, want in zip(after.params["critic"], critics, strict=True):
        close(got, want)

    if family == "sac":
        value, grads, logs = ref.sac_policy(team, nets["actor"], critics, alpha, noise[1])
        # The first step of Adam moves by its learning rate in the direction of E[log pi] + H.
        direction = np.sign(logs - np.array(ACTIONS))
        np.testing.assert_allclose(after.extra[0] - before.extra[0], 1e-3 * direction, rtol=1e-3)
    else:
        value, grads = ref.ddpg_policy(team, nets["actor"], critics, twins, 1e-3)
    scale = 2 if family == "td3" else 1  # reported as a sum over the delay
    assert float(metrics["policy_loss"]) / scale == pytest.approx(value, rel=1e-4, abs=1e-5)
    actors = stepped(nets["actor"], grads, moments_of(before.optimiser["actor"]), 1e-3)
    for got, want in zip(after.params["actor"], actors, strict=True):
        close(got, want)
    for name, new in (("actor", actors), ("critic", critics))[family == "sac" :]:  # SAC has no target actors
        for got, was, now in zip(after.targets[name], old[name], new, strict=True):
            mixed = [
                ref.Layer(*(0.98 * a + 0.02 * b for a, b in zip(p, q, strict=True)))
                for p, q in zip(was, now, strict=True)
            ]
            close(got, mixed)


@pytest.mark.parametrize(("family", "discrete"), EVERY)
def test_dead_agents_teach_nothing(family, discrete):
    """What a dead agent saw, did and earned does not change an update; nor what follows a termination."""
    agent = learner(family, world(discrete), critic="own")
    batch = sample(agent.spec, deaths=True)
    dead = batch.alive == 0

    def garble(x, where):
        return jnp.where(where.reshape(where.shape + (1,) * (x.ndim - 2)), (x + 1).astype(x.dtype), x)

    ended = batch.discount == 0
    other = batch._replace(
        reward=garble(batch.reward, dead), obs=garble(batch.obs, dead),
        next_obs=garble(batch.next_obs, dead | ended),
    )  # fmt: skip
    before = unsettled(agent)
    step = jax.jit(agent.step)
    one, two = (step(before, x, jnp.float32(1), jax.random.key(0))[0] for x in (batch, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one.params, two.params)


@pytest.mark.parametrize("family", ["ddpg", "td3", "sac"])
def test_targets_start_equal(family):
    learned = jax.jit(learner(family).init)(jax.random.key(0)).learned
    followed = {name: learned.params[name] for name in learned.targets}
    jax.tree.map(np.testing.assert_array_equal, followed, learned.targets)
    if family != "ddpg":  # but the twins are two different networks
        first, second = learned.params["critic"][:2]
        assert not np.allclose(first["torso"]["dense_0"]["kernel"], second["torso"]["dense_0"]["kernel"])


@pytest.mark.parametrize(("family", "discrete"), EVERY)
def test_one_agent_is_the_same_whatever_is_shared_or_seen(family, discrete):
    """With N=1, own and central critics and all ways of sharing are one algorithm, to the bit."""
    spec = world(discrete, n=1)
    batch = sample(spec)
    results = []
    for critic, share in (("own", "all"), ("central", "none")):
        agent = learner(family, spec, critic=critic, share=share)
        results.append(jax.jit(agent.step)(unsettled(agent), batch, jnp.float32(1), jax.random.key(1))[0].params)
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_central_critics_see_everyone():
    """Changing another agent's replayed action changes a central critic's value and not an own one's."""
    batch = sample(world())
    moved = batch._replace(action=batch.action.at[:, 1].add(0.1))
    for critic, differs in (("own", False), ("central", True)):
        agent = learner("ddpg", critic=critic)
        params = unsettled(agent).params["critic"]
        values = [
            agent._predict(params[0], 0, both_views(x)[0], *[agent.code.encode(x.action)] * 2)[:, 0]
            for x in (batch, moved)
        ]
        assert (not np.allclose(*values)) == differs


def test_discrete_policy_gradient_is_the_softmax_jacobian():
    """Straight-through: the value is one-hot, the gradient that of the softmax with the same noise."""
    agent = learner("ddpg", world(discrete=True))
    out = jnp.array([[[0.3, -0.2, 0.5, 0.1]]])
    mask = jnp.array([[[True, True, False, True]]])
    weight = jnp.array([1.0, 2.0, 3.0, 4.0])
    relaxed = lambda x: agent._relaxed(agent.groups[0], x, mask, 0.0)  # noqa: E731
    assert relaxed(out).tolist() == [[[1.0, 0.0, 0.0, 0.0]]]
    got = jax.grad(lambda x: (relaxed(x) * weight).sum())(out)[0, 0]
    p = np.exp([0.3, -0.2, -np.inf, 0.1])
    p /= p.sum()
    w = np.array([1, 2, 0, 4])
    np.testing.assert_allclose(got, p * (w - (p * w).sum()), rtol=1e-5)


def test_target_entropies_follow_what_is_legal():
    agent = learner("sac", world(discrete=True))
    avail = jnp.array([[[True] * 4, [True, False, False, False], [True, True, True, True]]])
    want = 0.3 * np.log([[4, 1, 3]])  # the third agent has three actions, the fourth is padding
    np.testing.assert_allclose(agent._target_entropy(avail), want, atol=1e-6)
    assert learner("sac")._target_entropy(None).tolist() == [-2, -2, -1]


def test_discrete_soft_value_is_the_exact_expectation():
    agent = learner("sac", world(discrete=True), critic="own", temperature=0.3)
    batch, learned = sample(agent.spec), unsettled(agent)
    following = both_views(batch)[1]
    got = agent._next_values(learned, following, jax.random.key(0))
    outs, masks = agent._outputs(learned.params["actor"], following), agent._legal(batch.next_avail)
    for g, group in enumerate(agent.groups):
        logits = np.where(masks[g], outs[g], -np.inf)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        nothing = jnp.zeros((len(batch.obs), group.size, group.action_size))
        q = np.minimum(*(agent._q(i, learned.targets["critic"][i], following, nothing) for i in (2 * g, 2 * g + 1)))
        with np.errstate(divide="ignore", invalid="ignore"):
            soft = 0.3 * np.asarray(batch.next_alive)[:, list(group.agents), None]  # the dead draw nothing
            want = np.where(p > 0, p * (q - soft * np.log(p)), 0).sum(-1)
        np.testing.assert_allclose(got[:, list(group.agents)], want, rtol=1e-4, atol=1e-5)


def test_a_central_critic_reads_the_global_state_where_there_is_one():
    spec = EnvSpec("test", ("a_0", "a_1"), (Box((3,)),) * 2, (Box((1,), -1.0, 1.0),) * 2, max_steps=9, state_size=5)
    agent = learner("ddpg", spec)
    obs, state, action = jnp.ones((4, 2, 3)), 2 * jnp.ones((4, 5)), 3 * jnp.ones((4, 2, 1))
    (group,) = agent.groups
    assert agent._observed(group, obs, state)[0].tolist() == [[2] * 5]
    assert agent._actions(group, action)[0].tolist() == [[3] * 2]
    own = 7 * jnp.ones((4, 2, 1))
    assert agent._actions_with(group, action, own)[0].tolist() == [[7, 3], [3, 7]]


@pytest.mark.parametrize("family", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("warm", [False, True])
def test_illegal_actions_are_never_taken(family, warm):
    agent = learner(family, world(discrete=True), learning_starts=0)
    state = jax.jit(agent.init)(jax.random.key(0))
    params = {**agent.policy(state), "warm": jnp.bool_(warm)}
    rng = np.random.default_rng(0)
    legal = rng.random((20_000, 3, 4)) < 0.4
    legal &= np.arange(4) < np.array([4, 4, 3])[:, None]
    legal[..., 0] |= ~legal.any(-1)
    seen = Observation(jnp.asarray(rng.normal(size=(20_000, 3, 4)), jnp.float32), jnp.asarray(legal))
    for explore in (True, False):
        action, _, _ = agent.act(params, seen, (), jax.random.key(1), explore)
        assert np.take_along_axis(legal, np.asarray(action)[..., None], -1).all()


def test_actions_fill_their_bounds():
    """Random warm-up covers every dimension's own range and nothing outside it."""
    agent = learner("ddpg", learning_starts=1000)
    state = jax.jit(agent.init)(jax.random.key(0))
    seen = Observation(jnp.zeros((5000, 3, 4)))
    action, _, _ = agent.act(agent.policy(state), seen, (), jax.random.key(1), True)
    low, high = np.asarray(action).min(0), np.asarray(action).max(0)
    np.testing.assert_allclose(low, [[-1, 0], [-1, 0], [-1, 0]], atol=0.02)
    np.testing.assert_allclose(high, [[2, 0.5], [2, 0.5], [2, 0]], atol=0.02)


def test_gaussian_noise_has_the_scheduled_deviation():
    agent = learner("ddpg", learning_starts=0, explore_start=0.2, explore_end=0.1, explore_part=0.5)
    state = jax.jit(agent.init)(jax.random.key(0))
    seen = Observation(jnp.zeros((20_000, 1, 3, 4))[:, 0])
    for progress, deviation in ((0, 0.2), (0.25, 0.15), (0.9, 0.1)):
        params = {**agent.policy(state), "progress": jnp.float32(progress)}
        action, _, _ = agent.act(params, seen, (), jax.random.key(1), True)
        assert np.asarray(action)[:, 0].std(0) == pytest.approx(deviation * np.array([1.5, 0.25]), rel=0.03)


def test_ou_noise_is_correlated_in_time_and_has_the_same_deviation():
    agent = learner("ddpg", learning_starts=0, explore="ou", explore_start=0.1, explore_end=0.1)
    params = agent.policy(jax.jit(agent.init)(jax.random.key(0)))
    seen, memory, rows = Observation(jnp.zeros((4000, 3, 4))), agent.memory(4000), []
    act = jax.jit(agent.act, static_argnums=4)
    for t in range(40):
        action, memory, _ = act(params, seen, memory, jax.random.key(t), True)
        rows.append(np.asarray(action)[:, 0, 0])
    last, before = rows[-1], rows[-2]
    assert last.std() == pytest.approx(0.1 * 1.5, rel=0.05)
    assert np.corrcoef(last, before)[0, 1] == pytest.approx(0.85, abs=0.03)


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("maddpg", {"steps_per_update": 7}, "steps_per_update"),
        ("maddpg", {"explore": "gumbel"}, "explore=gumbel does not fit continuous"),
        ("matd3", {"policy_delay": 0}, "policy_delay must be at least 1, not 0"),
        ("masac", {"buffer_size": 10**12}, "smaller buffer_size"),
        ("masac", {"tau": 0.0}, "tau must be above 0 and at most 1, not 0.0"),
        ("maddpg", {"sequence": 4}, "memory=gru"),
        ("matd3", {"burn_in": 4}, "memory=gru"),
        ("masac", {"memory": "gru", "sequence": 17}, "batch_size"),
    ],
)
def test_impossible_settings_are_refused(name, settings, complaint):
    with pytest.raises(UsageError, match=complaint):
        make_algorithm(name, world(), make_config(name, {**SMALL, **settings}), envs=4, updates=10)


def test_actions_without_bounds_are_refused():
    spec = EnvSpec("test", ("a",), (Box((2,)),), (Box((1,)),), max_steps=3)
    with pytest.raises(UsageError, match="without bounds"):
        make_algorithm("ddpg", spec, make_config("ddpg", SMALL), envs=4, updates=10)


def test_only_networks_whose_targets_are_read_have_some():
    def targets(family):
        return set(jax.eval_shape(learner(family).init, jax.random.key(0)).learned.targets)

    assert targets("sac") == {"critic"}
    assert targets("ddpg") == targets("td3") == {"actor", "critic"}
