"""Settings of networks that every learner of networks has: how they read observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flockrl.core.errors import UsageError
from flockrl.core.settings import Part, check_numbers

Net = Literal["flat", "entities", "deep_set"]
SIZE, HEADS = 32, 4
"""Numbers of an entity's features, and heads of attention over them, where the user says nothing."""


@dataclass(frozen=True)
class NetConfig(Part):
    """Settings of how networks read observations."""

    net: Net = "flat"
    """How networks read an observation: flat (as a row of numbers), entities (as a set, by attention) or deep_set (as a
    set, by means over it). Sets know no numbers of agents, and agent_ids are off."""
    entity_size: int | None = None
    """Numbers of the features of each entity; by default 32."""
    entity_heads: int | None = None
    """Heads of attention over entities, which must divide entity_size; by default 4."""

    mean_field: bool = False
    """Let agents see the mean of what their neighbours did last, as further numbers of their observations."""
    freeze: str = ""
    """Layers that keep the parameters they begin with, in all networks, by name: torso, torso.dense_0,head. Mostly
    with --init-from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, owners in {"entity_size": ("entities", "deep_set"), "entity_heads": ("entities",)}.items():
            if getattr(self, name) is not None and self.net not in owners:
                raise UsageError(f"{name} has no meaning with net={self.net}: it belongs to {' and '.join(owners)}.")
        check_numbers(self, "entity_size", "entity_heads", least=1)
        if self.net == "entities" and (self.entity_size or SIZE) % (self.entity_heads or HEADS):
            raise UsageError("entity_heads must divide entity_size.")
