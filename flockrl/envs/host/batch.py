"""B teams of a host environment that step together, with automatic resets, through crashes and resumes.

A team whose process died is rebuilt by playing its episode again: the seed names the episode, its actions are
remembered, and the observation must come out as it was. Then the step that failed is taken once more, and nothing
of the crash is to be seen in the data. Where that does not work (the environment raises again at the same place, or
is not repeatable), the episode is cut: its last observation closes it as truncated, and a new one begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.lives import return_ends, survivors
from flockrl.core.types import Array, Observation, PyTree
from flockrl.envs.api import StepResult
from flockrl.envs.host.env import REPLAY, RESET, STEP, Form
from flockrl.envs.host.workers import DIED, LOST, Executor

PATIENCE, ATTEMPTS, DEATHS, LOSSES = 300, 3, 10, 100
"""A step is tried again, each time from a rebuilt team, until patience is used up and the episode is cut: after so many
attempts that raise or hang, or deaths of the worker in that step, which may be somebody else's doing, or losses of a
worker that was killed while this step was not under way."""
RUNNING = ("episode", "actions", "draws")
"""What is kept of running episodes in a checkpoint: their seeds and what was done in them so far."""
STRIKES = 3
"""Cut episodes of one team in a row, without a whole one between, after which the run stops."""


class HostFault(UsageError):
    """An environment that fails again and again. The text ends with its last traceback."""


def words(key: Array) -> Array:
    """Keys [...] as two words each, [..., 2] uint32: what host environments are seeded with."""
    return jax.random.key_data(key)[..., :2]


Teams = slice | np.ndarray
"""Some teams of a batch, by their positions. With a slice nothing is copied that need not be."""


class Pending(NamedTuple):
    """A command under way: teams, the executor's ticket, and teams that could not even be asked, with the reason."""

    which: Teams
    ticket: int
    given_up: dict[int, str]


class HostBatch:
    """Rows `start` to `start + count` of an executor's slots. All arrays have a leading axis B = `count`."""

    def __init__(self, executor: Executor, start: int, count: int):
        self.executor, self.slots, self.form = executor, executor.slots.part(start, count), executor.slots.form
        self.spec, self.count = self.form.spec, count
        self.rows, self._all = np.arange(start, start + count), np.arange(count)
        self.numbers: Sequence[int] | np.ndarray = self._all
        """[B] what the teams are called in errors."""
        self.cuts = 0
        """Episodes that were cut by faults so far."""
        self.was_cut = np.zeros(count, bool)
        """[B] whose episode was cut in the last step."""
        self._strikes = np.zeros(count, int)
        self.seen = self.form.blank(count)
        """What the teams see now."""

    # Stepping

    def reset(self, seeds: np.ndarray, where: np.ndarray | None = None) -> Observation:
        """Begin the episodes `seeds` [B, 2]; of all teams, or `where` [B] says so."""
        which = self._all if where is None else np.flatnonzero(where)
        self._begin(which, seeds)
        self._look(which)
        return jax.tree.map(np.copy, self.seen)

    def step(self, action: np.ndarray, draws: np.ndarray, seeds: np.ndarray, where: Any = None) -> StepResult:
        """One step of all teams, or of those in `where` [B]; the others' part of the result is old.

        action: [B, N] or [B, N, W]. draws: [B, 2] chance of the step. seeds: [B, 2] episodes that begin where one ends.
        """
        which = self._all if where is None else np.flatnonzero(where)
        self.finish(self.begin(which, action[which], draws[which], seeds[which]))
        return self.result(self._all)

    def begin(self, which: Teams, action: np.ndarray, draws: np.ndarray, seeds: np.ndarray) -> Pending:
        """Have the teams `which` step, and do not wait. The other arguments are about these teams."""
        slots = self.slots
        slots.action[which], slots.draw[which], slots.seed[which] = action, draws, seeds
        return self._send(STEP, which)

    def finish(self, pending: Pending) -> None:
        """Wait for a step that was begun; see `result`."""
        failed = self._complete(STEP, pending)
        which = pending.which
        self.was_cut[which] = False
        if failed:
            self._remember(np.setdiff1d(self._all[which], list(failed)))
            self._cut(np.array(sorted(failed)))
        else:
            self._remember(which)
        self._look(which)

    def result(self, which: Teams) -> StepResult:
        """What the last step of the teams `which` led to; of a slice as views, good until their next step."""
        slots, seen = self.slots, {name: getattr(self.seen, name)[which] for name in self.slots.fields}
        final, terminated, truncated = slots.observation(which, True), slots.terminated[which], slots.truncated[which]
        left = survivors(final.alive, truncated, slots.done[which])
        ends = return_ends(self.spec, terminated, truncated, left, np)
        return StepResult((), Observation(**seen), final, slots.reward[which], *ends, slots.done[which], left)  # type: ignore[arg-type]

    def _look(self, which: Teams) -> None:
        """What these teams see now is copied out of the slots, which the next step will write to."""
        for name in self.slots.fields:
            getattr(self.seen, name)[which] = getattr(self.slots, name)[which]

    def _remember(self, which: Teams) -> None:
        slots, done = self.slots, self.slots.done[which]
        if self.form.history:
            place = self._all[which], slots.length[which]
            slots.actions[place], slots.draws[place] = slots.action[which], slots.draw[which]
        slots.length[which] += 1
        if done.any():
            over = self._all[which][done]
            slots.length[over], slots.episode[over] = 0, slots.seed[over]
            self._strikes[over] = 0

    def _begin(self, which: np.ndarray, seeds: np.ndarray) -> None:
        slots = self.slots
        slots.seed[which] = slots.episode[which] = seeds[which]
        slots.length[which] = 0
        for i, why in self._complete(RESET, self._send(RESET, which)).items():
            raise self._fault(i, why)

    def _send(self, command: int, which: Teams) -> Pending:
        given_up: dict[int, str] = {}
        asked = which
        if command == STEP and self.executor.lost:
            given_up = self._recover(self._all[which].tolist())
            asked = np.setdiff1d(self._all[which], list(given_up))
        self.slots.command[asked] = command
        return Pending(which, self.executor.send(self.rows[asked]), given_up)

    def _complete(self, command: int, pending: Pending) -> dict[int, str]:
        """Wait for a command, try again what failed, from rebuilt teams. Returns what cannot be done: team -> why."""
        given_up, failed = pending.given_up, self._failures(pending.ticket)
        if command == RESET and self.executor.lost:
            self.executor.lost -= {int(self.rows[i]) for i in self._all[pending.which] if i not in failed}
        raised: dict[int, str] = {}
        spent = 0
        while failed:
            raised |= {i: why for i, why in failed.items() if not why.startswith((DIED, LOST))}
            spent += _cost(failed)
            if spent >= PATIENCE:
                break
            again = self._send(command, np.array(list(failed)))
            given_up |= again.given_up
            failed = self._failures(again.ticket)
            if command == RESET:
                self.executor.lost -= {int(self.rows[i]) for i in self._all[again.which] if i not in failed}
        for i in failed.keys() | (raised.keys() & given_up.keys()):
            self._strikes[i] += 1
            if self._strikes[i] >= STRIKES:
                raise self._fault(i, raised.get(i) or failed[i])
        return given_up | failed

    def _failures(self, ticket: int) -> dict[int, str]:
        return {row - int(self.rows[0]): why for row, why in self.executor.receive(ticket).items()}

    def _recover(self, pending: list[int]) -> dict[int, str]:
        """Bring lost teams back to where they stood. Returns those that did not come out as they were."""
        lost = [i for i in pending if int(self.rows[i]) in self.executor.lost]
        if not lost:
            return {}
        rows = [int(self.rows[i]) for i in lost]
        found = dict.fromkeys(rows, "Its episode is too long to be played again.")
        spent = 0
        while self.form.history and spent < PATIENCE:
            self.slots.command[lost] = REPLAY
            found = self.executor.receive(self.executor.send(rows))
            if not any(why.startswith((DIED, LOST)) for why in found.values()):
                break
            spent += _cost(found)
        for i, row in zip(lost, rows, strict=True):
            if row not in found and not self._same(i, self.seen):
                found[row] = "Its episode came out differently when it was played again."
        self.executor.lost -= set(rows)
        return {row - int(self.rows[0]): why for row, why in found.items()}

    def _same(self, i: int, seen: Observation) -> bool:
        return all(np.array_equal(getattr(self.slots, name)[i], getattr(seen, name)[i]) for name in self.slots.fields)

    def _cut(self, which: np.ndarray) -> None:
        """Close the episodes that cannot go on, on what was last seen, and begin those that were to come next."""
        slots = self.slots
        self.was_cut[which] = True
        self.cuts += len(which)
        seeds = np.zeros((self.count, 2), np.uint32)
        seeds[which] = slots.seed[which]
        for name in slots.fields:
            getattr(slots, f"final_{name}")[which] = getattr(self.seen, name)[which]
        slots.reward[which], slots.terminated[which], slots.done[which] = 0.0, False, True
        slots.truncated[which] = True if self.seen.alive is None else self.seen.alive[which]
        self._begin(which, seeds)

    def _fault(self, i: int, why: str) -> HostFault:
        return HostFault(f"{self.spec.name}: environment {self.numbers[i]} fails again and again: {why.rstrip()}")

    def follow(self, action: np.ndarray, draws: np.ndarray, seeds: np.ndarray, done: np.ndarray) -> None:
        """Remember steps [T, B, ...] that somebody else had these teams take, with what `step` takes of each."""
        slots = self.slots
        for t in range(len(action)):
            slots.action[:], slots.draw[:], slots.seed[:], slots.done[:] = action[t], draws[t], seeds[t], done[t]
            self._remember(slice(None))

    # Between runs

    def state(self) -> PyTree:
        """The running episodes, as arrays for a checkpoint: which they are, and their actions so far."""
        return {name: getattr(self.slots, name).copy() for name in RUNNING}

    def stands_at(self, state: PyTree, lengths: np.ndarray) -> bool:
        """Whether the teams are where `state` was taken."""
        slots = self.slots
        return np.array_equal(slots.episode, state["episode"]) and np.array_equal(slots.length, lengths)

    def restore(self, state: PyTree, lengths: np.ndarray, seen: Observation, seeds: np.ndarray) -> np.ndarray:
        """Go to where `state` was taken. Teams that cannot begin the episodes `seeds` instead; returns which, [B]."""
        for name in RUNNING:
            getattr(self.slots, name)[:] = state[name]
        self.slots.length[:] = lengths
        self.seen = jax.tree.map(np.array, seen)
        self.executor.lost |= set(self.rows.tolist())
        failed = self._recover(self._all.tolist())
        fresh = np.isin(self._all, list(failed))
        self._begin(np.flatnonzero(fresh), seeds)
        self._look(self._all)
        return fresh


def _cost(failed: dict[int, str]) -> int:
    """What these failures, row or team -> why, take of one's patience."""
    tries = (LOSSES if why == LOST else DEATHS if why.startswith(DIED) else ATTEMPTS for why in failed.values())
    return PATIENCE // min(tries)


def blank_state(form: Form, count: int) -> PyTree:
    """What `HostBatch.state` looks like, without a batch."""
    shapes = form.slots()
    return {name: np.zeros((count, *shapes[name][0]), shapes[name][1]) for name in RUNNING}
