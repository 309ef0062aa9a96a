"""Rounds of messages between the agents of a team: who speaks, what the channel does, who hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.dial import SIGMA, regularised
from flockrl.comm.exchange import Exchange, straight_through
from flockrl.comm.few import Who, are_few, few_links, first_links, of_heard
from flockrl.comm.luck import Cut, Inbox, Luck, draw_seeds, from_seeds, from_tape
from flockrl.comm.settings import EXCHANGES, channel_of, draws_lots, numbers
from flockrl.core.errors import UsageError
from flockrl.core.random import Source, Tape
from flockrl.core.types import Array, EnvSpec, Observation, PyTree


class Spoken(NamedTuple):
    """What all agents have to say in a round: messages [..., N, C], whether they speak [..., N], and how much they want
    to [..., N]; the last two None where that is not theirs to say."""

    message: Array
    gate: Array | None
    urge: Array | None


class Heard(NamedTuple):
    """What agents hear in a round: messages [..., N, C] as they arrive; there, possible: [..., N, N] 1 where one
    arrived, and where one could have, [..., N, D] where links are few; own: [..., N, C] what each said itself; who:
    whom each can hear then, see `comm.few`."""

    said: Array
    own: Array
    there: Array
    possible: Array
    who: Who = None


class Mail(NamedTuple):
    """What is on its way between steps. past: for each round the last messages [B, delay, N, C + 1], oldest first,
    whose last number says whether they were sent; clock: [B] int32 steps so far. () where there is no such thing."""

    past: tuple[Array, ...] | tuple[()]
    clock: Array | tuple[()]


class Conditions(NamedTuple):
    """Under which agents talk: alive [..., N]; possible: [..., N, N] whether a message from the agent of the column
    could reach that of the row, [..., N, D] where links are few (`comm.few`); luck; inbox: [..., R, N, C + 1] what
    comes from outside to an agent that runs apart; who: [..., N, D] whom each can hear where that is few and changes.
    """

    alive: Array
    possible: Array
    luck: Luck
    inbox: Array | None = None
    who: Array | None = None


Speak = Callable[[int, list[Array]], Spoken]
Hear = Callable[[int, list[Array], Heard], list[Array]]


class Talk:
    """How a team talks. Holds what is static; its methods are pure.

    size: C numbers in a message. stateful: whether there is mail between steps. weighs: whether listeners attend to
    some more than to others. who: [N, D] whom agents can hear where that is few and always the same, else None.
    degree: D, how many they can hear at most where that is few and changes, else None.
    """

    def __init__(self, spec: EnvSpec, config: Any, widths: Sequence[int]):
        self.agents, self.rounds, self.heads = spec.num_agents, config.rounds, config.heads
        self.kind, self.activation = EXCHANGES[config.comm], config.activation
        self.channel = channel_of(config)
        self.size = numbers(config, {"obs": spec.obs_size, "intent": max(widths)})
        self._set_links(spec)
        if self.kind.speaks == "obs" and spec.sight.pictures:
            raise UsageError(f"share_obs sends observations, and those of {spec.name} hold pictures: use another comm.")
        self.random, self.early, self.blurs = draws_lots(config), config.early, config.comm == "dial"
        self.delay, self.weighs = self.channel.delay, self.kind.weighs
        self.stateful = self.delay > 0 or self.channel.turns

    def _set_links(self, spec: EnvSpec) -> None:
        """Who can hear whom, as far as that never changes; and whether the moment has a say."""
        channel, nearest = self.channel, self.channel.nearest
        self.links, self.near = channel.links(spec.num_agents), channel.near
        limits = {"range": channel.range, "nearest": nearest}
        told = next((name for name, value in limits.items() if value is not None), "topology=neighbours")
        if spec.graph and self.near and told == "topology=neighbours":  # always the same ones
            self.links, self.near = self.links & _matrix(spec.graph), False
        if self.near and not spec.neighbours:
            raise UsageError(f"{told} needs an environment that says who perceives whom, unlike {spec.name}.")
        self.who, self._linked = (None, self.links) if self.near else few_links(self.links)
        self.degree = nearest if nearest is not None and are_few(nearest, self.agents) else None

    def modules(self, features: int) -> tuple[Exchange, ...]:
        """A group's part in each round."""
        one = self.kind(features, self.size, self.heads, self.activation, self.channel.ranked, self.early)
        return tuple(one.clone() for _ in range(self.rounds))

    def blank(self, batch: int) -> Mail:
        """No mail."""
        empty = jnp.zeros((batch, self.delay, self.agents, self.size + 1))
        clock = jnp.zeros(batch, jnp.int32) if self.channel.turns else ()
        return Mail((empty,) * self.rounds if self.delay else (), clock)

    def with_luck(self, seen: Observation, mail: PyTree, source: Source, explore: bool) -> Observation:
        """What agents see [B, N, ...] with what decides the fate of their messages, drawn if it is not there."""
        if isinstance(seen.seeds, Cut):
            own = self.with_luck(seen._replace(seeds=seen.seeds.seeds), mail, source, explore).seeds
            return seen._replace(seeds=seen.seeds._replace(seeds=own))
        if isinstance(seen.seeds, Inbox):
            return seen._replace(seeds=seen.seeds._replace(luck=self._apart(len(seen.obs), mail)))
        if not self.random and self.degree is not None and isinstance(source, Tape):
            return seen._replace(seeds=Luck())  # type: ignore[arg-type]
        if not self.random or seen.seeds is not None:
            return seen
        turn = mail.clock if self.channel.turns else None
        if isinstance(source, Tape):
            hard = not explore if self.blurs else None
            luck = from_tape(self.channel, source, self.agents, self.rounds, self.size, turn, hard)
            return seen._replace(seeds=luck)  # type: ignore[arg-type]
        hard = self.blurs and not explore
        return seen._replace(seeds=draw_seeds(source, len(seen.obs), self.agents, turn, hard))

    def _apart(self, batch: int, mail: PyTree) -> Luck:
        """What chance does where an agent runs apart: nothing, since the real channel loses what it loses. Bits are
        bits, and whose turn it is follows from the clock."""
        turn = mail.clock if self.channel.turns else None
        if not self.blurs:
            return Luck(turn=turn)
        return Luck(None, jnp.zeros((batch, self.rounds, self.agents, self.size)), turn, jnp.ones(batch, bool))

    def _luck(self, seeds: Any) -> Luck:
        if isinstance(seeds, Inbox):
            return seeds.luck
        if isinstance(seeds, Cut):
            luck, cut = self._luck(seeds.seeds), seeds.links[..., None, :, :]
            cut = jnp.broadcast_to(cut, (*cut.shape[:-3], self.rounds, *cut.shape[-2:]))
            return luck._replace(lost=cut if luck.lost is None else luck.lost | cut)
        if not self.random:
            return Luck()
        assert seeds is not None
        if isinstance(seeds, Luck):
            return seeds
        return from_seeds(self.channel, seeds, self.rounds, self.size, self.blurs)

    def conditions(self, seen: Observation) -> Conditions:
        """What there is to know before anybody speaks."""
        alive = jnp.ones(seen.obs.shape[:-1], bool) if seen.alive is None else seen.alive.astype(bool)
        inbox = seen.seeds.said if isinstance(seen.seeds, Inbox) else None
        luck, possible, changing = self._luck(seen.seeds), self._possible(seen, alive), None
        if self._gathers(seen):
            assert self.degree is not None
            changing, possible = first_links(possible, self.degree)
        now = Conditions(alive, possible, luck, inbox, changing)
        who = self.whom(now)
        if who is not None and luck.lost is not None:
            index = jnp.asarray(who)[..., None, :, :]
            index = index.reshape(*(1,) * (luck.lost.ndim - index.ndim), *index.shape)
            now = now._replace(luck=luck._replace(lost=jnp.take_along_axis(luck.lost, index, -1)))
        return now

    def _gathers(self, seen: Observation) -> bool:
        """Whether links of the moment are gathered. Exported models and agents apart, with whom `seeds` are other
        things than numbers, mask all pairs."""
        return self.degree is not None and not isinstance(seen.seeds, Inbox | Luck)

    def whom(self, now: Conditions) -> Who:
        """Whom agents can hear where that is few: always the same, or others in each moment."""
        return self.who if now.who is None else now.who

    def heard(self, said: Array, own: Array, there: Array, now: Conditions) -> Heard:
        """What agents hear in a round, see `arrive`."""
        return Heard(said, own, there, now.possible.astype(jnp.float32), self.whom(now))

    def sends(self, spoken: Spoken, now: Conditions, access: Array | None) -> tuple[Array, Array | None]:
        """[..., N] 1 for agents that send, 0 for others; and who may in this step, decided in its first round."""
        sends = now.alive.astype(jnp.float32)
        if spoken.gate is not None:
            sends = sends * spoken.gate
        if access is None and self.channel.top is not None:
            access = self._access(spoken.urge, sends, now.luck.turn)
        if access is not None:
            sends = sends * access
        return jnp.zeros_like(sends) if self.channel.bits == 0 else sends, access

    def packet(self, message: Array, sends: Array, now: Conditions, number: int) -> Array:
        """[..., N, C + 1] messages as they leave in a round, and whether they do."""
        luck = now.luck
        noise = None if luck.noise is None else luck.noise[..., number, :, :]
        if luck.hard is not None:
            assert noise is not None
            message = regularised(message, noise, luck.hard, self.channel.noise or SIGMA, bool(self.channel.bits))
        else:
            message = self._coded(message, noise)
        return jnp.concatenate([message * sends[..., None], jax.lax.stop_gradient(sends)[..., None]], -1)

    def arrive(self, packet: Array, now: Conditions, number: int) -> tuple[Array, Array, Array]:
        """Messages [..., N, C]; whether each arrives [..., N, N], [..., N, D] where links are few; and [..., N, 2] how
        many did, and how many were lost on the way."""
        if now.inbox is not None:
            packet = now.inbox[..., number, :, :]
        would = now.possible & of_heard(packet[..., -1] > 0.5, self.whom(now))
        there = would if now.luck.lost is None else would & ~now.luck.lost[..., number, :, :]
        counts = jnp.stack([there.sum(-1), (would & ~there).sum(-1)], -1)
        return packet[..., :-1], there.astype(jnp.float32), counts.astype(jnp.float32)

    def tally(self, sends: Array, counts: Array) -> Array:
        """[..., N, 4] how many messages each agent sent, heard, and lost, and the bits sent."""
        sent = jax.lax.stop_gradient(sends)[..., None]
        width = 1 if self.blurs else self.channel.width
        return jnp.concatenate([sent, counts, sent * (self.size * width)], -1)

    def __call__(
        self, speak: Speak, hear: Hear, hs: list[Array], seen: Observation, mail: Any, first: Array | None
    ) -> tuple[list[Array], Any, Array]:
        """All rounds of a step. hs: features [..., n, F] of each group.

        With delay, leading axes are [T, B], `first` tells where episodes begin, and mail comes out after each step.
        Returns features, mail, and [..., N, 4] how many messages each agent sent, heard, and lost, and the bits sent;
        for an agent that runs apart, instead of these counts, what leaves in each round [..., R, N, C + 1].
        """
        now, access = self.conditions(seen), None
        past, packets, tally = [], [], jnp.zeros((*now.alive.shape, 4))
        for r in range(self.rounds):
            spoken = speak(r, hs)
            sends, access = self.sends(spoken, now, access)
            packet = self.packet(spoken.message, sends, now, r)
            packets.append(packet)
            if self.delay:
                assert first is not None
                packet, after = delayed(packet, mail.past[r], first)
                past.append(after)
            said, there, counts = self.arrive(packet, now, r)
            hs = hear(r, hs, self.heard(said, spoken.message, there, now))
            tally = tally + self.tally(sends, counts)
        mail = Mail(tuple(past), self.clock(now))
        return hs, mail, tally if now.inbox is None else jnp.stack(packets, -3)

    def clock(self, now: Conditions) -> Any:
        """The number of the next step, where that matters."""
        return () if now.luck.turn is None else now.luck.turn + 1

    def _possible(self, seen: Observation, alive: Array) -> Array:
        """[..., N, N] whether a message from the agent of the column could reach that of the row, both alive."""
        if isinstance(seen.seeds, Inbox):
            peers = of_heard(self._nearest(seen.seeds.peers), self.who)
            return jnp.broadcast_to(peers, (*peers.shape[:-2], *self._linked.shape))
        found = jnp.asarray(self._linked) & of_heard(alive, self.who) & alive[..., :, None]
        if not self.near:
            return found
        if seen.neighbours is None:
            raise UsageError("This channel needs to be told who perceives whom, which is not known here: neighbours.")
        found = found & seen.neighbours
        return found if self._gathers(seen) else self._nearest(found)

    def _nearest(self, near: Array) -> Array:
        """[..., N] flags of which at most `nearest` are left, the first: who tells neighbours may name more."""
        most = self.channel.nearest
        if most is None or most >= self.agents - 1:
            return near
        who, there = first_links(near, most)
        last = jnp.where(there[..., -1:], who[..., -1:], self.agents)
        return near & (np.arange(self.agents) <= last)

    def _access(self, urge: Array | None, sends: Array, turn: Array | None) -> Array:
        """[..., N] 1 for those who may speak in this step, at most `top`, 0 for others."""
        top = self.channel.top
        assert top is not None
        if turn is not None:
            place = (jnp.arange(self.agents) - turn[..., None] * top) % self.agents
            return (place < top).astype(jnp.float32)
        assert urge is not None
        wish = jnp.where(sends > 0.5, urge, -jnp.inf)
        ahead = wish[..., None, :] > wish[..., :, None]
        earlier: Any = np.tri(self.agents, k=-1, dtype=bool)
        ahead |= (wish[..., None, :] == wish[..., :, None]) & earlier
        return straight_through((ahead.sum(-1) < top).astype(jnp.float32), jax.nn.sigmoid(urge))

    def _coded(self, message: Array, noise: Array | None) -> Array:
        """Messages as they leave: quantised, and with noise."""
        if self.channel.bits:
            message = quantised(message, self.channel.bits)
        return message if noise is None else message + self.channel.noise * noise


def _matrix(graph: Sequence[Sequence[int]]) -> np.ndarray:
    """[N, N] bool: whether the agent of the row perceives that of the column."""
    return np.array([np.isin(np.arange(len(graph)), near) for near in graph])


def quantised(x: Array, bits: int) -> Array:
    """tanh(x) rounded to one of 2^bits numbers from -1 to 1, with the gradient of tanh."""
    soft, steps = jnp.tanh(x), 2**bits - 1
    hard = jnp.floor((soft + 1) * (0.5 * steps) + 0.5) * (2 / steps) - 1
    return straight_through(hard, soft)


def delayed(packet: Array, past: Array, first: Array) -> tuple[Array, Array]:
    """What arrives in each step of packets [T, B, ...] sent, `delay` steps later; nothing crosses into another episode.

    past: [B, delay, ...] what was sent before. Returns [T, B, ...] and what is on its way after each step,
    [T, B, delay, ...].
    """
    steps, delay = len(packet), past.shape[1]
    sent = jnp.concatenate([jnp.moveaxis(past, 1, 0), packet])
    episode = jnp.cumsum(first.astype(jnp.int32), axis=0)
    of = jnp.concatenate([jnp.zeros((delay, episode.shape[1]), jnp.int32), episode])

    def since(k: int) -> Array:
        same = (of[k : k + steps] == episode).reshape(*episode.shape, *(1,) * (packet.ndim - 2))
        return jnp.where(same, sent[k : k + steps], 0.0)

    return since(0), jnp.stack([since(k) for k in range(1, delay + 1)], 2)
