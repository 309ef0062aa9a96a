"""The network of a team: torso -> memory -> talk between agents -> head, over the agent axis.

Every group of agents that share parameters has a `nets.network.Network`; a `TeamNetwork` holds them all, so that what
lets agents perceive each other's features stands in one place for every family of learners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.few import Who
from flockrl.comm.luck import Inbox
from flockrl.comm.talk import Heard, Spoken, Talk
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, begins, merge, take
from flockrl.core.random import Source, fold_in
from flockrl.core.types import Array, EnvSpec, Observation, PyTree
from flockrl.nets.entities import EntityTorso
from flockrl.nets.network import Network
from flockrl.nets.settings import HEADS, SIZE
from flockrl.policies.early import early_talk

LOG_STD = -0.5
"""Log standard deviation of real actions at first where the user says nothing, in units of half their range."""


class TeamNetwork:
    """One network per group. Holds what is static; its methods are pure.

    config: has hidden, activation, kernel, agent_ids, memory and memory_size and, where agents may talk, what
    `comm.settings.CommConfig` has. widths: outputs of each group's network; foreseen: those that predict what others
    do. Parameters are a tuple with an entry per group, memories too; where messages are on their way between steps,
    memory is a pair of that tuple and the mail.

    recurrent: whether outputs depend on earlier steps, so that learning has to follow them in order. stateful: whether
    acting carries anything from step to step, a count of steps included.
    """

    def __init__(
        self,
        spec: EnvSpec,
        groups: Sequence[Group],
        config: Any,
        widths: Sequence[int],
        *,
        log_std: Sequence[bool] | None = None,
        out_scale: float = 0.01,
        foreseen: int = 0,
    ):
        self.spec, self.groups = spec, groups
        self.memory_size = config.memory_size if config.memory == "gru" else 0
        self.talk = None if getattr(config, "comm", "none") == "none" else Talk(spec, config, widths)
        self.stateful = self.memory_size > 0 or (self.talk is not None and self.talk.stateful)
        self.recurrent = self.memory_size > 0 or (self.talk is not None and self.talk.delay > 0)
        beside: dict[str, Any] = {"out_scale": out_scale, "foreseen": foreseen}
        told = getattr(config, "log_std", None)
        at_first = LOG_STD if told is None else told
        spreads = [at_first if spread else None for spread in log_std or [False] * len(groups)]
        self.nets = [
            make_network(spec, config, width, group, acts=True, ids=ids(spec, group, config), log_std=spread, **beside)
            for group, width, spread in zip(groups, widths, spreads, strict=True)
        ]
        if self.talk is not None:
            sizes = [self._feature_size(net, group) for net, group in zip(self.nets, groups, strict=True)]
            self.nets = [
                net.clone(exchange=self.talk.modules(size)) for net, size in zip(self.nets, sizes, strict=True)
            ]

    def init(self, keys: Any) -> tuple[PyTree, ...]:
        """Fresh parameters; keys: one for each group. Those of talk leave the others as they are without it."""
        seen, first = self._moment()
        return tuple(
            net.init(k, self._own(group, seen), h, first, self.spec.num_agents, method=_whole)["params"]
            for net, k, group, h in zip(self.nets, keys, self.groups, self._quiet(1), strict=True)
        )

    def _moment(self) -> tuple[Observation, Array | None]:
        """What one team sees at one moment: nothing."""
        lead = (1, 1) if self.memory_size else (1,)
        seen = Observation(jnp.zeros((*lead, self.spec.num_agents, self.spec.obs_size)))
        return seen, jnp.zeros((1, 1), bool) if self.memory_size else None

    def _feature_size(self, net: Network, group: Group) -> int:
        """F of a group's network, where it hears messages."""
        assert self.talk is not None
        seen, first = self._moment()
        memory = jnp.zeros((1, group.size, self.memory_size)) if self.memory_size else ()
        shapes = jax.eval_shape(
            lambda k: net.init_with_output(k, self._own(group, seen), memory, first, method=_spoken_features)[0],
            jax.random.key(0),
        )
        return shapes[int(not self.talk.early)].shape[-1]

    def _own(self, group: Group, seen: Observation) -> Array:
        return take(seen.obs, group, seen.obs.ndim - 2, group.obs_size)

    def _quiet(self, batch: int) -> tuple[Any, ...]:
        """Each group's memory at the start of an episode, [batch, n, H], or () where there is none."""
        size = self.memory_size
        return tuple(jnp.zeros((batch, group.size, size)) if size else () for group in self.groups)

    def blank(self, batch: int) -> PyTree:
        """Each group's memory at the start of an episode and, where there is such a thing, mail: none is on its way."""
        own = self._quiet(batch)
        return (own, self.talk.blank(batch)) if self.talk is not None and self.talk.stateful else own

    def memory(self, batch: int) -> PyTree:
        """`blank`, or () for a team that carries nothing: what an `Algorithm` carries from step to step."""
        return self.blank(batch) if self.stateful else ()

    def _apart(self, memory: PyTree) -> tuple[PyTree, Any]:
        """(each group's memory, mail) of a `memory`."""
        if not self.stateful:
            return ((),) * len(self.groups), ()
        return memory if self.talk is not None and self.talk.stateful else (memory, ())

    def __call__(
        self, params: Sequence[PyTree], seen: Observation, memory: PyTree, first: Array | None
    ) -> tuple[list[Array], PyTree]:
        """Output [..., n, width] of each group, and memory. Where `recurrent`, seen has axes [T, B] and memory comes
        out after each step, [T, B, ...]; elsewhere `memory` and `first` are not read."""
        outs, memory, _ = self._run(params, seen, memory, first if self.recurrent else None)
        return outs, memory

    def foresee(
        self, params: Sequence[PyTree], seen: Observation, memory: PyTree, first: Array | None
    ) -> tuple[list[Array], list[Array]]:
        """Outputs as of `__call__`, and what each group predicts of others [..., n, foreseen]."""
        features, _, _ = self._features(params, seen, memory, first if self.recurrent else None)
        return self._heads(params, features), self._heads(params, features, "foresee")

    def alone(self, index: int, params: PyTree, seen: Observation, memory: PyTree, first: Array | None) -> Array:
        """Output [..., n, width] of one group's network, for teams that do not talk; else as `__call__`."""
        group, own = self.groups[index], self._apart(memory)[0][index]
        reads = self._own(group, seen), own, begins(self.spec, group, first if self.recurrent else None, seen.alive)
        outs: Any = self.nets[index].apply({"params": params}, *reads)
        return outs[0]

    def _run(
        self, params: Sequence[PyTree], seen: Observation, memory: PyTree, first: Array | None
    ) -> tuple[list[Array], PyTree, Array | None]:
        """The same, and the counts of messages [..., N, 4], where agents talk."""
        features, after, tally = self._features(params, seen, memory, first)
        return self._heads(params, features), after, tally

    def _features(
        self, params: Sequence[PyTree], seen: Observation, memory: PyTree, first: Array | None
    ) -> tuple[list[Array], PyTree, Array | None]:
        """The same with what the heads read [..., n, F] instead of outputs."""
        if self.talk is not None and self.talk.early:
            assert first is not None
            speak, hear = self._mouths_and_ears(params, seen)
            hs, mails, counts = early_talk(self, params, seen, self._apart(memory), first, speak, hear)
            return list(hs), mails, counts
        own, mail = self._apart(memory)
        found = self._before_talk(params, seen, own, first)
        features, after, tally = [f for f, _ in found], tuple(h for _, h in found), None
        if self.talk is not None:
            speak, hear = self._mouths_and_ears(params, seen)
            features, mail, tally = self.talk(speak, hear, features, seen, mail, first)
            after = (after, mail) if self.talk.stateful else after
        return features, after, tally

    def _before_talk(self, params: Sequence[PyTree], seen: Observation, own: Any, first: Array | None) -> list[Any]:
        """Each group's features [..., n, F] before it talks, and its memory after each step."""
        return [
            net.apply({"params": p}, self._own(g, seen), h, begins(self.spec, g, first, seen.alive), method="features")
            for net, p, g, h in zip(self.nets, params, self.groups, own, strict=True)
        ]

    def _heads(self, params: Sequence[PyTree], features: Sequence[Array], which: str = "output") -> list[Array]:
        outs: list[Any] = [
            net.apply({"params": p}, f, method=which) for net, p, f in zip(self.nets, params, features, strict=True)
        ]
        return outs

    def _mouths_and_ears(self, params: Sequence[PyTree], seen: Observation) -> tuple[Any, Any]:
        """How the groups speak and hear, see `Talk`."""

        def speak(number: int, features: list[Array]) -> Spoken:
            axis = features[0].ndim - 2
            said: list[Any] = [
                net.apply({"params": p}, f, self._own(group, seen), number, method="speak")
                for net, p, group, f in zip(self.nets, params, self.groups, features, strict=True)
            ]
            message, *rest = (
                None if parts[0] is None else merge(parts, self.groups, axis if i == 0 else parts[0].ndim - 1)
                for i, parts in enumerate(zip(*said, strict=True))
            )
            assert message is not None
            return Spoken(message, *rest)

        def hear(number: int, features: list[Array], heard: Heard, method: str = "hear") -> list[Array]:
            assert self.talk is not None
            axis, who = features[0].ndim - 2, heard.who
            found: list[Any] = [
                net.apply(
                    {"params": p},
                    f,
                    heard.said,
                    *(take(x, group, axis) for x in heard[1:4]),
                    number,
                    _of_group(who, group, axis),
                    method=method,
                )
                for net, p, group, f in zip(self.nets, params, self.groups, features, strict=True)
            ]
            return found

        return speak, hear

    def says(self, params: Sequence[PyTree], seen: Observation, memory: PyTree) -> Array:
        """[B, N, C] what agents that see this [B, N, ...] would say in their first round, before any channel."""
        if self.talk is not None and self.talk.early:
            return self._apart(self.step(params, seen, memory)[1])[1].past[0][:, -1, :, :-1]
        own, first = self._apart(memory)[0], None
        if self.memory_size:
            seen, first = jax.tree.map(lambda x: x[None], seen), jnp.zeros((1, len(seen.obs)), bool)
        found = self._before_talk(params, seen, own, first)
        said = self._mouths_and_ears(params, seen)[0](0, [features for features, _ in found]).message
        return said[0] if self.memory_size else said

    def with_luck(self, seen: Observation, memory: PyTree, source: Source, explore: bool) -> Observation:
        """What agents see, with what decides the fate of their messages, where anything does."""
        if self.talk is None:
            return seen
        own = source if self.spec.whole is None else fold_in(source, self.spec.places[0])  # others draw others
        return self.talk.with_luck(seen, self._apart(memory)[1], own, explore)

    def step(
        self, params: Sequence[PyTree], seen: Observation, memory: PyTree
    ) -> tuple[list[Array], PyTree, dict[str, Array]]:
        """One moment: outputs [B, n, width] of observations [B, N, O], what the team remembers after it, and what
        acting records of messages: "channel", the seeds, and "messages" [B, N, 4], see `Talk`; of an agent that runs
        apart, "outbox" [B, R, N, C + 1]."""
        if self.recurrent:
            rows = jax.tree.map(lambda x: x[None], seen)
            result = self._run(params, rows, memory, jnp.zeros((1, len(seen.obs)), bool))
            outs, after, tally = jax.tree.map(lambda x: x[0], result)
        else:
            outs, after, tally = self._run(params, seen, memory, None)
        noted = {} if tally is None else {"outbox" if isinstance(seen.seeds, Inbox) else "messages": tally}
        if isinstance(seen.seeds, jax.Array):
            noted["channel"] = seen.seeds
        return outs, after if self.stateful else (), noted


def _of_group(who: Who, group: Group, axis: int) -> Who:
    """Whom a group's agents can hear, where that is few."""
    return who[list(group.agents)] if isinstance(who, np.ndarray) else None if who is None else take(who, group, axis)


def _whole(net: Network, x: Array, memory: Any, first: Array | None, agents: int) -> Array:
    """Calls everything once, to create all parameters."""
    before, features = _spoken_features(net, x, memory, first)
    for number in range(len(net.exchange)):
        own, _, _ = net.speak(features, x, number)
        said = jnp.zeros((*own.shape[:-2], agents, own.shape[-1]))
        links = jnp.zeros((*own.shape[:-1], agents))
        if net.exchange[number].early:
            net.hear(before, said, own, links, links, number)
        else:
            features = net.hear(features, said, own, links, links, number)
    if net.foreseen:
        net.foresee(features)
    return net.output(features)


def _spoken_features(net: Network, x: Array, memory: Any, first: Array | None) -> tuple[Array, Array]:
    """Features before and after memory."""
    before = net.encode(x)
    return before, net.remember(before, memory, first)[0]


def make_network(
    spec: EnvSpec, config: Any, outputs: int, sees: Group | None = None, team: bool = False, acts: bool = False,
    **options: Any,
) -> Network:  # fmt: skip
    """A network with the sizes that a config asks for, for a policy or for a critic.

    sees: the agents whose own observations it reads, None where it reads something else; team: whether each also reads
    what all of them perceive, see `EntityTorso`; acts: whether outputs are those of actions, which may be entities.
    """
    size = config.memory_size if config.memory == "gru" else 0
    if sees is not None and getattr(config, "net", "flat") != "flat":
        torso = _entity_torso(spec, config, sees, team)
        remembers = size or getattr(config, "comm", "none") != "none"  # features of one size go through both
        options |= {"entities": torso.clone(points=acts and torso.entities.choices > 0 and not remembers), "ids": 0}
    return Network(
        config.hidden, outputs, config.activation, memory=size, sight=spec.sight, kernel=config.kernel, **options
    )


def _entity_torso(spec: EnvSpec, config: Any, group: Group, team: bool) -> EntityTorso:
    """What reads the observations of a group as sets of entities."""
    if not spec.entities:
        raise UsageError(
            f"{spec.name} does not say which numbers of an observation tell of which entity: use --net flat, or say it "
            "in EnvSpec(entities=...)."
        )
    if config.kernel is not None:
        raise UsageError("A kernel of your own reads observations by itself: leave out --kernel, or --net.")
    found = {spec.entities[i] for i in group.agents}
    if len(found) > 1 or spec.sight.pictures:
        raise UsageError(
            f"Agents of {spec.name} that share a network must see the same kinds of entities: use --share groups."
        )
    (kinds,) = found
    if kinds.choices and not group.legal.all():
        raise UsageError(
            f"Agents of {spec.name} that share a network and choose from entities must have as many actions: use "
            "--share groups."
        )
    heads = (config.entity_heads or HEADS) if config.net == "entities" else 0
    return EntityTorso(kinds, group.obs_size, config.entity_size or SIZE, heads, config.hidden, config.activation, team)


def ids(spec: EnvSpec, group: Group, config: Any, whose: bool = False) -> int:
    """How many agents a group's network has to tell apart: all of them, or 0 when there is no need. whose: whether it
    reads what everybody does and is asked for the value of one, who is told apart even where agents are anonymous."""
    wanted = config.agent_ids and (whose or not spec.anonymous)
    return group.size if wanted and group.size > 1 else 0


Apply = Callable[[PyTree, PyTree, Any], tuple[Any, PyTree]]
"""(inputs [T, b, ...], memory [b, ...], first [T, b]) -> (outputs, memory after each step)."""


def unroll(apply: Apply, blank: PyTree, x: PyTree, first: Array, burn_in: int) -> tuple[Any, PyTree]:
    """Outputs along a stretch of experience and memories after each step, both after its first `burn_in` steps, which
    only fill the memory and pass no gradients."""
    memory = blank
    if burn_in:
        _, past = apply(jax.tree.map(lambda v: v[:burn_in], x), memory, first[:burn_in])
        memory = jax.tree.map(lambda h: jax.lax.stop_gradient(h[-1]), past)
    return apply(jax.tree.map(lambda v: v[burn_in:], x), memory, first[burn_in:])


def one_step(apply: Apply, x: PyTree, memories: PyTree) -> Any:
    """Outputs [T, b, ...] of one step from each of the memories [T, b, ...], all at once."""
    lead = jax.tree.leaves(x)[0].shape[:2]
    rows = jax.tree.map(lambda v: v.reshape(1, -1, *v.shape[2:]), x)
    flat = jax.tree.map(lambda h: h.reshape(-1, *h.shape[2:]), memories)
    outs, _ = apply(rows, flat, jnp.zeros((1, lead[0] * lead[1]), bool))
    return jax.tree.map(lambda out: out.reshape(*lead, *out.shape[2:]), outs)
