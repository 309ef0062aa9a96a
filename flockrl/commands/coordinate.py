"""The command coordinate: agents that agree by rules, without learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.coordination import auction as auctions
from flockrl.coordination import consensus as averaging
from flockrl.coordination import leader as elections
from flockrl.coordination.graphs import links
from flockrl.core.errors import UsageError


@dataclass(frozen=True)
class CoordinateFlags:
    """What `flockrl coordinate` takes."""

    what: Annotated[Literal["consensus", "auction", "leader"], Positional, tyro.conf.arg(metavar="WHAT")]
    """consensus: agents find the mean of their values; leader: they agree on one of them; auction: they share out
    roles."""
    agents: int = 20
    """How many agents there are."""
    topology: str = "ring"
    """Who hears whom: all, ring, star, or a file with rows of 0 and 1; auctions need none."""
    loss: float = 0.0
    """Chance that a link fails in a step, or that a bid is lost."""
    weights: Literal["metropolis", "constant"] = "metropolis"
    """Of consensus: from the degrees at both ends of a link, or the best constant one."""
    gossip: bool = False
    """Consensus without a common clock: in each step one agent averages with one neighbour."""
    steps: int | None = None
    """Steps of consensus (by default until the error is a millionth, at most 100,000) or rounds of an election."""
    tolerance: float = 1e-3
    """Part of the best sum of benefits that an auction may miss."""
    seed: int = 0
    """Seed of values, benefits and losses."""
    out: Path | None = None
    """Write a picture of the convergence to this file (.png, .pdf or .svg)."""


class Curve:
    """What is plotted: a name, numbers by step, a known course beside it, and whether the axis is logarithmic."""

    def __init__(self, title: str, y: str, found: np.ndarray, known: np.ndarray | None = None, log: bool = False):
        self.title, self.y, self.found, self.known, self.log = title, y, found, known, log


def coordinate(words: list[str]) -> int:
    about = "Let agents agree by rules, without learning, and print how they converge."
    given = parse(CoordinateFlags, words, "flockrl coordinate", about)
    if not 0 <= given.loss < 1:
        raise UsageError(f"loss is a chance from 0 to below 1, not {given.loss}.")
    if given.steps is not None and not 1 <= given.steps <= 1_000_000:
        raise UsageError(f"steps must be from 1 to 1,000,000, not {given.steps}.")
    if given.out is not None and given.out.suffix not in (".png", ".pdf", ".svg"):
        raise UsageError(f"A picture ends in .png, .pdf or .svg, unlike {given.out}.")
    kinds: dict[str, Callable[..., Curve]] = {"consensus": _consensus, "auction": _auction, "leader": _leader}
    curve = kinds[given.what](given, np.random.default_rng(given.seed))
    if given.out is not None:
        from flockrl.view.coordination import plot

        plot(given.out, curve.title, curve.y, curve.found, curve.known, curve.log)
        print(f"wrote {given.out}")
    return 0


def _consensus(given: CoordinateFlags, rng: np.random.Generator) -> Curve:
    graph = links(given.topology, given.agents)
    team = averaging.Consensus(rng.normal(size=given.agents), graph, given.weights, given.loss, rng)
    errors = [team.error]
    for _ in range(given.steps or 100_000):
        (team.gossip if given.gossip else team.step)()
        errors.append(team.error)
        if given.steps is None and errors[-1] < 1e-6 * errors[0]:
            break
    found = np.array(errors)
    good = np.flatnonzero(found > 1e-12 * found[0])  # below that, rounding
    span = good[-1] // 2, good[-1]
    rate = (found[span[1]] / found[span[0]]) ** (1 / max(span[1] - span[0], 1))
    exact = _exact(given, graph)
    how = "gossip" if given.gossip else f"{given.weights} weights"
    told = "" if exact is None else f", exactly {exact[0]}{exact[1]:.4f}"
    print(
        f"consensus of {given.agents} agents, {given.topology}, {how}, loss {given.loss:g}: error {found[0]:.4g} -> "
        f"{found[-1]:.2e} in {len(found) - 1} steps\n  error factor per step {rate:.4f} (second half){told}"
    )
    known = None if exact is None else found[0] * exact[1] ** np.arange(len(found))
    return Curve(f"Consensus of {given.agents} agents ({given.topology})", "error", found, known, True)


def _exact(given: CoordinateFlags, graph: np.ndarray) -> tuple[str, float] | None:
    """What is known about the error's factor per step: words before it, and the factor."""
    weights = averaging.WEIGHTS[given.weights](graph)
    if given.gossip:
        kept = given.loss + (1 - given.loss) * averaging.gossip_factor(graph)
        return ("" if given.topology == "all" else "at most ") + "in the mean square ", kept**0.5
    if not given.loss:
        return "", averaging.error_factor(weights)
    return ("in the mean square ", averaging.lossy_factor(weights, given.loss) ** 0.5) if len(graph) <= 24 else None


def _auction(given: CoordinateFlags, rng: np.random.Generator) -> Curve:
    if not 1 <= given.agents <= 1000:
        raise UsageError(f"An auction is for 1 to 1000 agents, not {given.agents}.")
    benefit = rng.random((given.agents, given.agents))
    found, most = auctions.auction(benefit, given.tolerance, given.loss, rng), auctions.best(benefit)
    print(
        f"auction of {given.agents} roles, loss {given.loss:g}: benefit {found.benefit:.4f}, the best (Hungarian) "
        f"{most:.4f}, short by {100 * (1 - found.benefit / most):.3f}% with {found.bids} bids"
    )
    known = np.full(len(found.history), most)
    return Curve(f"Auction of {given.agents} roles, last phase", "sum of benefits", found.history, known)


def _leader(given: CoordinateFlags, rng: np.random.Generator) -> Curve:
    graph, numbers = links(given.topology, given.agents), rng.permutation(given.agents).tolist()
    rounds = given.steps or 4 * given.agents
    found = elections.flood(graph, numbers, rounds, given.loss, rng)
    when = np.flatnonzero(found.agreed == 1.0)
    told = f"all agree after {when[0]} rounds" if len(when) else f"{100 * found.agreed[-1]:.0f}% agree at the end"
    print(f"leader of {given.agents} agents, {given.topology}, loss {given.loss:g}: {told} ({rounds} rounds)")
    if given.topology == "ring" and not given.loss:
        around = elections.ring(numbers)
        average = given.agents * (1 + sum(1 / k for k in range(1, given.agents + 1)))
        print(f"  Chang and Roberts around the ring: {around.messages} messages, {average:.0f} on average")
    return Curve(f"Leader of {given.agents} agents ({given.topology})", "part that knows", found.agreed)
