"""Off-policy updates derived by hand in NumPy, float64: networks, backpropagation, Adam, and the three families.

Written from the papers' equations, with loops over agents; nothing here calls the learners.
"""

from collections import namedtuple

import numpy as np

Layer = namedtuple("Layer", "kernel bias")


def layers(params):
    """A network's layers in float64; the first bias may have one row per agent of the group."""
    torso = params["torso"]
    found = [torso[f"dense_{i}"] for i in range(len(torso))] + [params["head"]]
    return [Layer(np.asarray(x["kernel"], float), np.asarray(x["bias"], float)) for x in found]


def forward(net, x, agent):
    """Output [b, K] for rows [b, F] as the group's `agent`-th member sees them; inputs of all layers."""
    inputs = []
    for i, layer in enumerate(net):
        inputs.append(x)
        bias = layer.bias[agent] if layer.bias.ndim == 2 else layer.bias
        x = x @ layer.kernel + bias
        if i < len(net) - 1:
            x = np.maximum(x, 0)
    return x, inputs


def backward(net, inputs, upstream, agent):
    """Gradients of all layers and of the input."""
    grads = []
    for i in reversed(range(len(net))):
        layer = net[i]
        bias = np.zeros_like(layer.bias)
        bias[agent if layer.bias.ndim == 2 else ...] = upstream.sum(0)
        grads.append(Layer(inputs[i].T @ upstream, bias))
        upstream = upstream @ layer.kernel.T
        if i:
            upstream = upstream * (inputs[i] > 0)
    return grads[::-1], upstream


def plus(total, grads):
    if total is None:
        return grads
    return [Layer(a.kernel + b.kernel, a.bias + b.bias) for a, b in zip(total, grads, strict=True)]


def adam(net, grads, moments, lr, max_norm):
    """One step of Adam from given (mu, nu, count) behind a clip of the norm: the new layers."""
    norm = np.sqrt(sum((g.kernel**2).sum() + (g.bias**2).sum() for g in grads))
    scale = min(1.0, max_norm / norm)
    mu, nu, count = moments
    moved = []
    for layer, grad, m, v in zip(net, grads, mu, nu, strict=True):
        new = []
        for p, g, m1, v1 in zip(layer, grad, m, v, strict=True):
            g = scale * g
            m1, v1 = 0.9 * m1 + 0.1 * g, 0.999 * v1 + 0.001 * g**2
            m_hat, v_hat = m1 / (1 - 0.9 ** (count + 1)), v1 / (1 - 0.999 ** (count + 1))
            new.append(p - lr * m_hat / (np.sqrt(v_hat) + 1e-8))
        moved.append(Layer(*new))
    return moved


class Team:
    """A batch and who shares what: groups as lists of agents, sizes of each agent's observation and action."""

    def __init__(self, groups, obs_sizes, action_sizes, batch, code, central):
        self.groups, self.obs_sizes, self.action_sizes = groups, obs_sizes, action_sizes
        self.batch, self.central = batch, central
        self.alive, self.next_alive = np.asarray(batch.alive, float), np.asarray(batch.next_alive, float)
        self.action = np.asarray(code, float) * self.alive[..., None]

    def place(self, i):
        """Group of agent i and its position there."""
        g = next(g for g, members in enumerate(self.groups) if i in members)
        return g, self.groups[g].index(i)

    def width(self, i, sizes):
        return max(sizes[j] for j in self.groups[self.place(i)[0]])

    def own_obs(self, obs, i):
        return np.asarray(obs, float)[:, i, : self.width(i, self.obs_sizes)]

    def critic_input(self, obs, action, i):
        if self.central:
            seen = [np.asarray(obs, float)[:, j, :s] for j, s in enumerate(self.obs_sizes)]
            return np.concatenate([*seen, action.reshape(len(action), -1)], axis=1)
        return np.concatenate([self.own_obs(obs, i), action[:, i, : self.width(i, self.action_sizes)]], axis=1)

    def action_place(self, i):
        """Where agent i's own action stands in its critic's input."""
        width = self.width(i, self.action_sizes)
        start = sum(self.obs_sizes) + i * self.action.shape[2] if self.central else self.width(i, self.obs_sizes)
        return slice(start, start + width)

    def count(self, g):
        return max(self.alive[:, self.groups[g]].sum(), 1.0)

    def critic_losses(self, critics, twins, target):
        """Loss and gradients of every critic for targets [b, N]."""
        total, grads = 0.0, [None] * len(critics)
        for c, net in enumerate(critics):
            g = c // twins
            for k, i in enumerate(self.groups[g]):
                q, inputs = forward(net, self.critic_input(self.batch.obs, self.action, i), k)
                error = q[:, 0] - target[:, i]
                weight = np.asarray(self.batch.weight, float) * self.alive[:, i] / self.count(g)
                total += (weight * error**2).sum()
                grads[c] = plus(grads[c], backward(net, inputs, (2 * weight * error)[:, None], k)[0])
        return total, grads

    def with_own(self, i, own):
        """Replayed actions of the others, `own` [b, width] for agent i."""
        action = self.action.copy()
        action[:, i] = 0
        action[:, i, : own.shape[1]] = own
        return action


def ddpg_target(team, actors, critics, twins, gamma_discount, reward, noise=0.0, clip=np.inf):
    """y = r + discount min_k Q'(s', clip(mu'(o') + clipped noise))."""
    n, size = team.alive.shape[1], team.action.shape[2]
    following = np.zeros((len(team.alive), n, size))
    for i in range(n):
        g, k = team.place(i)
        out = np.tanh(forward(actors[g], team.own_obs(team.batch.next_obs, i), k)[0])
        following[:, i, : out.shape[1]] = out
        following[:, i, team.action_sizes[i] :] = 0
    own = np.arange(size) < np.array(team.action_sizes)[:, None]
    following = np.clip(following + np.clip(noise, -clip, clip), -1, 1) * own * team.next_alive[..., None]
    values = np.zeros((len(team.alive), n))
    for i in range(n):
        g, k = team.place(i)
        x = team.critic_input(team.batch.next_obs, following, i)
        values[:, i] = np.min([forward(critics[g * twins + t], x, k)[0][:, 0] for t in range(twins)], axis=0)
    return np.asarray(reward, float) + np.asarray(gamma_discount, float) * values


def ddpg_policy(team, actors, critics, twins, penalty):
    """-Q1(s, mu_i(o_i), a_-i) + penalty, its gradients for every actor."""
    total, grads = 0.0, [None] * len(actors)
    for g, members in enumerate(team.groups):
        for k, i in enumerate(members):
            out, inputs = forward(actors[g], team.own_obs(team.batch.obs, i), k)
            mine = np.arange(out.shape[1]) < team.action_sizes[i]
            x = team.critic_input(team.batch.obs, team.with_own(i, np.tanh(out) * mine), i)
            q, critic_inputs = forward(critics[g * twins], x, k)
            weight = team.alive[:, i] / team.count(g)
            total += (weight * (penalty * (out**2 * mine).mean(1) - q[:, 0])).sum()
            d_own = backward(critics[g * twins], critic_inputs, -weight[:, None], k)[1][:, team.action_place(i)]
            d_out = d_own * (1 - np.tanh(out) ** 2) * mine
            d_out = d_out + weight[:, None] * penalty * 2 * out * mine / out.shape[1]
            grads[g] = plus(grads[g], backward(actors[g], inputs, d_out, k)[0])
    return total, grads


def squashed(out, noise, mine):
    """A tanh-Gaussian sample: u, log pi(u) by the change of variables, z and the standard deviation."""
    middle, log_std = np.split(out, 2, axis=1)
    std = np.exp(np.clip(log_std, -5, 2))
    z = middle + std * noise
    u = np.tanh(z)
    normal = np.exp(-0.5 * noise**2) / (std * np.sqrt(2 * np.pi))
    logp = (np.log(normal / (1 - u**2)) * mine).sum(1)
    return u * mine, logp, z, std


def sac_target(team, actors, critics, alpha, discount, reward, noise):
    """y = r + discount (min_k Q'(s', a') - alpha log pi(a'))."""
    n, size = team.alive.shape[1], team.action.shape[2]
    following, logps = np.zeros((len(team.alive), n, size)), np.zeros((len(team.alive), n))
    for i in range(n):
        g, k = team.place(i)
        out = forward(actors[g], team.own_obs(team.batch.next_obs, i), k)[0]
        mine = np.arange(out.shape[1] // 2) < team.action_sizes[i]
        u, logps[:, i], _, _ = squashed(out, noise[g][:, k], mine)
        following[:, i, : u.shape[1]] = u
    following = following * team.next_alive[..., None]
    values = np.zeros_like(logps)
    for i in range(n):
        g, k = team.place(i)
        x = team.critic_input(team.batch.next_obs, following, i)
        values[:, i] = np.min([forward(critics[2 * g + t], x, k)[0][:, 0] for t in (0, 1)], axis=0)
    return np.asarray(reward, float) + np.asarray(discount, float) * (values - alpha * logps)


def sac_policy(team, actors, critics, alpha, noise):
    """alpha log pi - min_k Q with its gradients, and the mean of log pi over living agents, [N]."""
    total, grads, logs = 0.0, [None] * len(actors), np.zeros(team.alive.shape[1])
    for g, members in enumerate(team.groups):
        for k, i in enumerate(members):
            out, inputs = forward(actors[g], team.own_obs(team.batch.obs, i), k)
            eps = noise[g][:, k]
            mine = np.arange(eps.shape[1]) < team.action_sizes[i]
            u, logp, z, std = squashed(out, eps, mine)
            x = team.critic_input(team.batch.obs, team.with_own(i, u), i)
            both = [forward(critics[2 * g + t], x, k) for t in (0, 1)]
            smaller = np.argmin([q[:, 0] for q, _ in both], axis=0)
            weight = team.alive[:, i] / team.count(g)
            total += (weight * (alpha[i] * logp - np.min([q[:, 0] for q, _ in both], axis=0))).sum()
            d_u = sum(
                backward(critics[2 * g + t], both[t][1], (-weight * (smaller == t))[:, None], k)[1]
                for t in (0, 1)
            )[:, team.action_place(i)]  # fmt: skip
            # log pi = const - log std - log(1 - tanh(z)^2), z = m + std eps: d/dz of the last term is 2 tanh(z).
            d_z = (d_u * (1 - np.tanh(z) ** 2) + (weight * alpha[i])[:, None] * 2 * np.tanh(z)) * mine
            d_log_std = d_z * eps * std - (weight * alpha[i])[:, None] * mine
            inside = np.abs(np.split(out, 2, axis=1)[1] + 1.5) < 3.5
            grads[g] = plus(grads[g], backward(actors[g], inputs, np.hstack([d_z, d_log_std * inside]), k)[0])
            logs[i] = (logp * team.alive[:, i]).sum() / max(team.alive[:, i].sum(), 1.0)
    return total, grads, logs
