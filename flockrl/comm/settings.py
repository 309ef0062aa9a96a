"""Settings of communication, which every learner of networks has."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from flockrl.comm.attention import KEY, GraphAttention, TarMAC
from flockrl.comm.averaging import CommNet, IC3Net
from flockrl.comm.channel import Channel, parse_channel
from flockrl.comm.dial import Dial
from flockrl.comm.exchange import Exchange
from flockrl.comm.sharing import ShareIntent, ShareObs
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_numbers
from flockrl.nets.settings import NetConfig

Comm = Literal["none", "commnet", "ic3net", "tarmac", "gat", "dgn", "dial", "share_obs", "share_intent", "rial"]
EXCHANGES: dict[str, type[Exchange]] = {
    "commnet": CommNet,
    "ic3net": IC3Net,
    "tarmac": TarMAC,
    "gat": GraphAttention,
    "dial": Dial,
    "share_obs": ShareObs,
    "share_intent": ShareIntent,
}
ALIASES = {"dgn": "gat"}
OWNERS: dict[str, tuple[str, ...]] = {
    "comm_rounds": ("commnet", "ic3net", "tarmac", "gat", "share_intent"),
    "comm_size": ("commnet", "ic3net", "tarmac", "gat", "dial", "rial"),
    "comm_heads": ("tarmac", "gat"),
    "comm_early": tuple(EXCHANGES),
    "channel": (*EXCHANGES, "rial"),
}
"""Setting -> the exchanges that have it."""
HEADS = {"gat": 4}
"""Heads where the user says nothing; else one."""
LARGEST, MOST_ROUNDS = 4096, 64


@dataclass(frozen=True)
class CommConfig(NetConfig):
    """Settings of what agents tell each other."""

    comm: Comm = "none"
    """How agents talk before they act: commnet (mean of the others), ic3net (with a gate), tarmac (attention by the
    listener), gat or dgn (attention over neighbours), dial (bits, a step late), share_obs, share_intent; rial (a symbol
    that is an action of its own, a step late); none for not at all."""
    comm_rounds: int | None = None
    """Rounds of messages in each step; by default 1."""
    comm_size: int | None = None
    """Numbers in a learned message; by default 32, or 1 in dial; in rial the number of symbols, by default 2. TarMAC
    adds 16 for each head."""
    comm_heads: int | None = None
    """Heads of attention; by default 1 in tarmac, 4 in gat."""
    comm_early: bool = False
    """Hear before memory what was said a step ago, so that it can be remembered, instead of after it what is said now;
    dial always does."""
    channel: str = ""
    """What happens to messages on their way, as name=value,...: loss, broadcast_loss, delay, noise, bits, top, access,
    topology, hub, range, nearest. By default nothing does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.comm in ALIASES:
            object.__setattr__(self, "comm", ALIASES[self.comm])
        object.__setattr__(self, "channel", str(parse_channel(self.channel)))
        for name, owners in OWNERS.items():
            if getattr(self, name) and self.comm not in owners:
                raise UsageError(f"{name} has no meaning with comm={self.comm}: it belongs to {', '.join(owners)}.")
        check_numbers(self, "comm_rounds", least=1, most=MOST_ROUNDS)
        check_numbers(self, "comm_size", "comm_heads", least=1, most=LARGEST)
        if self.comm == "dial" and channel_of(self).bits not in (None, 0, 1):
            raise UsageError("dial sends one bit for each number: bits may be 0 or 1.")
        if self.early and self.rounds > 1:
            raise UsageError(
                "What is heard before memory is heard once in a step: leave out comm_rounds, or comm_early."
            )
        if self.comm == "rial":
            _check_symbols(self)
        if self.heads > 1 and self.message_size % self.heads:
            raise UsageError(f"comm_size ({self.message_size}) must be a multiple of comm_heads ({self.heads}).")

    @property
    def rounds(self) -> int:
        return self.comm_rounds or 1

    @property
    def early(self) -> bool:
        """Whether messages are heard before memory."""
        return self.comm_early or self.comm == "dial"

    @property
    def heads(self) -> int:
        return self.comm_heads or HEADS.get(self.comm, 1)

    @property
    def message_size(self) -> int:
        """Numbers in a learned message, without TarMAC's keys."""
        return self.comm_size or {"dial": 1, "rial": 2}.get(self.comm, 32)

    @property
    def recurrent(self) -> bool:
        """Whether agents carry something from step to step that learning has to follow."""
        return getattr(self, "memory", "none") == "gru" or channel_of(self).delay > 0


def _check_symbols(config: Any) -> None:
    """Refuse what a channel of symbols does not have."""
    if config.comm_size == 1:
        raise UsageError("One symbol says nothing: rial needs a comm_size of at least 2.")
    given = channel_of(config)
    plain = dataclasses.replace(given, loss=0.0, topology="all", hub=0, bits=None)
    if plain != Channel() or given.bits or given.near:
        raise UsageError("Symbols of rial can be lost (loss), cut (bits=0) and bound to links (topology): no more.")


def numbers(config: Any, spoken: dict[str, int]) -> int:
    """C: the numbers in a message. spoken: sizes of the largest observation and of the largest output."""
    if config.comm == "tarmac":
        return config.message_size + config.heads * KEY
    return spoken.get(EXCHANGES[config.comm].speaks, config.message_size)


def channel_of(config: Any) -> Channel:
    """The channel of a config. Where messages are heard before memory, that is at least a step after they were said."""
    channel = parse_channel(config.channel)
    return dataclasses.replace(channel, delay=max(channel.delay, 1)) if config.early else channel


def draws_lots(config: Any) -> bool:
    """Whether acting has to record what decided the fate of messages; rial records what was heard."""
    if config.comm == "rial":
        return False
    channel = channel_of(config)
    return channel.random or channel.turns or config.comm == "dial"
