"""Q-learning's losses in NumPy, float64, one sample and one agent at a time. Nothing here calls the learner's maths."""

import jax
import numpy as np


def dense(layer, x, agent=None):
    bias = layer["bias"]
    return x @ layer["kernel"] + (bias[agent] if bias.ndim == 2 else bias)


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def network(params, x, agent=None):
    torso = params["torso"]
    for i in range(len(torso)):
        x = relu(dense(torso[f"dense_{i}"], x, agent if i == 0 else None))
    return dense(params["head"], x)


def hyper(params, x, start=0.0, squash=np.tanh):
    return dense(params["weights"], squash(dense(params["dense"], x))) + start


def monotonic(params, q, state):
    n, size = len(q), len(params["bias"]["bias"])
    first = np.abs(hyper(params["first"], state, 1 / n)).reshape(n, size)
    hidden = q @ first + dense(params["bias"], state)
    hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    return hidden @ np.abs(hyper(params["second"], state, 1 / size)) + hyper(params["value"], state)[0]


def advantages(params, q, best, state):
    return (np.abs(hyper(params["scale"], state, 1.0)) + 1e-6) * (q - best)


def qplex(params, q, best, code, state, held=None):
    """held: the advantages that the weights multiply, where gradients do not pass through them."""
    n, heads = len(q), 10
    own = advantages(params, q, best, state)
    value = own + (np.abs(hyper(params["scale"], state, 1.0)) + 1e-6) * best + hyper(params["offset"], state)
    key = np.exp(hyper(params["key"], state, np.log(4 / heads)))
    agent = sigmoid(hyper(params["agent"], state)).reshape(n, heads)
    action = sigmoid(hyper(params["action"], np.concatenate([state, code.ravel()]), squash=relu)).reshape(n, heads)
    weight = (agent * action * key).sum(-1)
    return value.sum() + ((weight - 1) * (own if held is None else held)).sum()


def central(params, code, state):
    return network(params["network"], np.concatenate([state, code.ravel()]))[0]


class Problem:
    """A learner's settings and the stretches it is given, as plain arrays."""

    def __init__(self, agent, seen, weight):
        self.config, self.spec, self.groups = agent.config, agent.spec, agent.groups
        self.steps = agent.steps
        self.seen = jax.tree.map(np.asarray, seen)
        self.weight = weight
        sides = list(dict.fromkeys(self.spec.sides))
        mixed = self.config.mixer != "none"
        self.units = [[i for i, s in enumerate(self.spec.sides) if s == side] for side in sides] if mixed else None

    def q(self, nets, obs, i):
        """All values of agent i."""
        for g, group in enumerate(self.groups):
            if i in group.agents:
                place = group.agents.index(i)
                out = network(nets[g], obs[i, : group.obs_size].astype(float), place)
                own = self.spec.actions[i].n
                if self.config.dueling:
                    out = out[0] + out[1:] - out[1 : 1 + own].mean()
                return out[:own]
        raise AssertionError

    def best(self, q, avail):
        legal = np.where(avail[: len(q)], q, -np.inf)
        return int(legal.argmax())

    def state_of(self, obs, state):
        if state is not None:
            return state.astype(float)
        return np.concatenate([obs[i, : box.size] for i, box in enumerate(self.spec.observations)]).astype(float)

    def joint(self, nets, side, obs, actions, avail, alive, state):
        q, best, code = np.zeros(len(side)), np.zeros(len(side)), np.zeros((len(side), self.spec.action_size))
        for j, i in enumerate(side):
            if alive[i]:
                values = self.q(nets, obs, i)
                q[j], best[j] = values[actions[i]], values[self.best(values, avail[i])]
                code[j, actions[i]] = 1
        return q, best, code, state

    def value(self, params, k, joint):
        """The joint value that targets are made of."""
        q, best, code, state = joint
        mixer = params["mixer"][k]
        return {
            "sum": lambda: q.sum(),
            "monotonic": lambda: monotonic(mixer, q, state),
            "qplex": lambda: qplex(mixer, q, best, code, state),
            "weighted": lambda: central(mixer["central"], code, state),
            "qtran": lambda: q.sum() + central(mixer["central"], code, state),
        }[self.config.mixer]()

    def follow(self, params, targets, t, b, unit):
        """Value of what followed step t, by the target networks."""
        s = self.seen
        obs, avail = s.next_obs[t, b], s.next_avail[t, b]
        chooser = params if self.config.double_q else targets
        actions = [self.best(self.q(chooser["q"], obs, i), avail[i]) for i in range(self.spec.num_agents)]
        if self.units is None:
            return self.q(targets["q"], obs, unit)[actions[unit]]
        left = s.alive[t, b] & ~s.terminated[t, b]
        state = self.state_of(obs, None if s.next_state is None else s.next_state[t, b])
        side = self.units[unit]
        return self.value(targets, unit, self.joint(targets["q"], side, obs, actions, avail, left, state))

    def ends(self, t, b, unit):
        """(reward, terminated, over) of an agent or a side."""
        s = self.seen
        over = s.terminated[t, b] | s.truncated[t, b]
        own = self.units is None
        if own and not self.config.team_reward:
            return s.reward[t, b, unit], s.terminated[t, b, unit], over[unit]
        side = [i for i, of in enumerate(self.spec.sides) if of == self.spec.sides[unit]] if own else self.units[unit]
        reward = s.reward[t, b, side].astype(float).sum()
        if self.config.team_reward != "sum":
            reward /= len(side)
        if own:
            return reward, s.terminated[t, b, unit], over[unit]
        alive = s.alive[t, b, side]
        return reward, not (alive & ~s.terminated[t, b, side]).any(), not (alive & ~over[side]).any()

    def target(self, params, targets, t, b, unit):
        """By recursion: n steps ahead, or a lambda-weighted mixture until the stretch's end."""
        config, last = self.config, len(self.seen.reward) - 1

        def ahead(t, n):
            reward, terminated, over = self.ends(t, b, unit)
            if terminated:
                return reward
            value = self.follow(params, targets, t, b, unit)
            over = over or (t < last and self.seen.first[t + 1, b])
            if config.td_lambda:
                later = value if over or t == last else ahead(t + 1, 1)
                return reward + config.gamma * ((1 - config.td_lambda) * value + config.td_lambda * later)
            return reward + config.gamma * (value if over or n == 1 else ahead(t + 1, n - 1))

        return ahead(t, config.n_step)

    def loss(self, params, targets, frozen=None):
        """The loss at `params`, where everything that gradients do not pass through is taken at `frozen`."""
        frozen = params if frozen is None else frozen
        s, n = self.seen, self.spec.num_agents
        units = range(n) if self.units is None else range(len(self.units))
        errors = np.zeros((self.steps, s.reward.shape[1], len(units)))
        costs, known = np.zeros_like(errors), np.zeros_like(errors)
        for t, b, u in np.ndindex(errors.shape):
            alive = s.alive[t, b, u] if self.units is None else s.alive[t, b, self.units[u]].any()
            if not alive:
                continue
            y = self.target(frozen, targets, t, b, u)
            known[t, b, u] = 1
            costs[t, b, u], errors[t, b, u] = self.cost(params, frozen, t, b, u, y)
        costs = costs * self.weight[:, None]
        kinds = [list(g.agents) for g in self.groups] if self.units is None else [[u] for u in units]
        total = sum(costs[..., kind].sum() / max(known[..., kind].sum(), 1) for kind in kinds)
        sizes = (np.abs(errors) * known).sum((0, 2)) / np.maximum(known.sum((0, 2)), 1)
        if self.steps > 1:
            each = (np.abs(errors) * known).sum(2) / np.maximum(known.sum(2), 1)
            sizes = 0.9 * each.max(0) + 0.1 * sizes
        return total, sizes

    def cost(self, params, frozen, t, b, u, y):
        s, config = self.seen, self.config
        obs, avail, taken = s.obs[t, b], s.avail[t, b], s.action[t, b]
        if self.units is None:
            error = self.q(params["q"], obs, u)[taken[u]] - y
            return error**2, error
        side, alive = self.units[u], s.alive[t, b]
        state = self.state_of(obs, None if s.state is None else s.state[t, b])
        greedy = [self.best(self.q(frozen["q"], obs, i), avail[i]) for i in range(self.spec.num_agents)]
        at = lambda p, actions: self.joint(p["q"], side, obs, actions, avail, alive, state)  # noqa: E731
        value = self.value(params, u, at(params, taken))
        if config.mixer == "qplex":
            held = advantages(frozen["mixer"][u], *at(frozen, taken)[:2], state)
            value = qplex(params["mixer"][u], *at(params, taken), held)
        if config.mixer == "weighted":
            mixed = monotonic(params["mixer"][u]["mixer"], at(params, taken)[0], state)
            full = monotonic(frozen["mixer"][u]["mixer"], at(frozen, taken)[0], state) <= y
            if config.weighting == "central":
                same = all(taken[i] == greedy[i] for i in side if alive[i])
                full = same or y > self.value(frozen, u, at(frozen, greedy))
            low = 0.1 if config.low_weight is None else config.low_weight
            return (1.0 if full else low) * (mixed - y) ** 2 + (value - y) ** 2, value - y
        if config.mixer == "qtran":
            rest = network(params["mixer"][u]["rest"], state)[0]
            top = at(params, greedy)[0].sum() - self.value(frozen, u, at(frozen, greedy)) + rest
            other = min(at(params, taken)[0].sum() - self.value(frozen, u, at(frozen, taken)) + rest, 0.0)
            return (value - y) ** 2 + config.opt_weight * top**2 + config.nopt_weight * other**2, value - y
        return (value - y) ** 2, value - y


def compare_slopes(problem, params, targets, grads, entries=3, step=1e-5):
    """Central differences of the loss at a few entries of every array against the given gradients."""
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten(params)
    for k, (leaf, grad) in enumerate(zip(leaves, jax.tree.leaves(grads), strict=True)):
        for place in rng.choice(leaf.size, min(entries, leaf.size), replace=False):
            moved = []
            for sign in (1, -1):
                new = leaf.copy()
                new.ravel()[place] += sign * step
                changed = jax.tree.unflatten(tree, [new if j == k else x for j, x in enumerate(leaves)])
                moved.append(problem.loss(changed, targets, frozen=params)[0])
            slope = (moved[0] - moved[1]) / (2 * step)
            found = float(np.asarray(grad).ravel()[place])
            assert abs(found - slope) < 2e-3 * max(1.0, abs(slope)), (k, place, found, slope)
