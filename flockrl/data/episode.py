"""One team's episode while it is played, as experience once it is over. NumPy alone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.experience import Experience, blank, join
from flockrl.data.form import Form

Choose = Callable[[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None], tuple[Any, Any, Any]]
"""From observations [N, O], who is there [N], the legal actions [N, A] and the state [G] to the actions within their
bounds, the same before they were brought there, and the log-probabilities [N] of these, or None."""


class Steps:
    """Steps of the episode under way, as arrays of the team.

    Rewards come one step late: with the next observation, or at the end.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self._steps: list[tuple[Any, ...]] = []
        self._rewards: list[np.ndarray] = []
        self._first = 0

    def __len__(self) -> int:
        """Steps that are not finished yet."""
        return len(self._steps)

    def earn(self, reward: np.ndarray) -> None:
        """What the last action earned, [N]. Told again, because no action followed, the later word counts."""
        if self._steps:
            self._rewards[len(self._steps) - 1 :] = [reward]

    def add(
        self, obs: np.ndarray, there: np.ndarray, mask: np.ndarray | None, state: np.ndarray | None,
        action: np.ndarray, logp: np.ndarray | None,
    ) -> None:  # fmt: skip
        """A step: what was seen [N, O] by whom [N], what was legal [N, A], the state [G], what was done, how likely."""
        self._steps.append((obs, there, mask, state, action, logp, time.time_ns() // 1000))

    def finish(
        self, id: str, env: str, number: int, version: int, end: str,
        obs: tuple[np.ndarray, np.ndarray] | None, mask: np.ndarray | None, state: np.ndarray | None,
    ) -> Experience:  # fmt: skip
        """What was recorded, after the last reward was told; the episode may go on from there.

        end: "terminated", "truncated", or "open" when the episode goes on. obs, mask, state: what was seen afterwards.
        """
        spec, t = self.spec, len(self._steps)
        seen, present, masks, states, actions, logps, times = zip(*self._steps, strict=True)
        masked = mask is not None or any(x is not None for x in masks)
        fields = blank(spec, t, 1, masked, spec.state_size > 0)
        fields["id"][0], fields["env"][0], fields["episode"][0] = id, env, number
        fields["version"][0], fields["length"][0] = version, t
        fields["step"], fields["time"] = self._first + np.arange(t), np.array(times, np.int64)
        alive = fields["alive"] = np.stack(present)
        fields["obs"], fields["reward"] = np.stack(seen), np.stack(self._rewards) * alive
        fields["action"][alive] = np.stack(actions)[alive]
        for row, there, logp in zip(fields["logp"], alive, logps, strict=True):
            if logp is not None:
                row[there] = logp[there]
        gone = np.zeros_like(alive[0]) if obs is None else ~obs[1]
        over = {"terminated": np.ones_like(gone), "truncated": np.zeros_like(gone), "open": gone}[end]
        after = np.concatenate([alive[1:], ~over[None]])
        fields["terminated"] = alive & ~after  # who is not seen again died
        fields["truncated"][-1] = alive[-1] & (end == "truncated")
        unseen = obs is None or bool((alive[-1] & gone & ~over).any()) or bool(spec.state_size and state is None)
        fields["blind"][-1] = unseen and bool((alive[-1] & ~over).any())
        own, nothing = spec.own_actions, np.zeros_like(seen[0])
        fields["next_obs"] = np.concatenate([fields["obs"][1:], (nothing if obs is None else obs[0])[None]])
        if masked:
            fields["avail"] = np.stack([own if x is None else x for x in masks]) & alive[..., None]
            final = (own if mask is None else mask) & alive[-1][:, None]
            fields["next_avail"] = np.concatenate([fields["avail"][1:], final[None]])
        if spec.state_size:
            fields["state"] = np.stack(states)
            final = np.zeros(spec.state_size, np.float32) if state is None else state
            fields["next_state"] = np.concatenate([fields["state"][1:], final[None]])
        self._first += t
        self._steps, self._rewards = [], []
        return Experience(**fields)


class Episode:
    """An episode that your own loop plays: it notes what is seen, done and earned.

    episode = trainer.episode()  # the trainer's policy acts; or Episode(spec), for actions that somebody else chooses
    while playing:
        action = episode.act(obs)
        episode.reward(earned)
    trainer.receive_trajectory(episode.end())

    choose: what acts, see `Choose`. version: of the policy that acts, -1 when unknown. env: a name for where this is
    played, by default the environment's. number: of the episode there.
    """

    def __init__(
        self, spec: EnvSpec, choose: Choose | None = None, version: int = -1, env: str = "", number: int = 0
    ) -> None:
        self.spec, self.version, self.env, self.number = spec, version, env or spec.name, number
        self._choose, self._form, self._steps = choose, Form(spec), Steps(spec)
        self._id, self._pieces, self._over = uuid.uuid4().hex, list[Experience](), False
        self._earned = np.zeros(spec.num_agents, np.float32)

    def act(self, obs: Any, mask: Any = None, state: Any = None, action: Any = None) -> Any:
        """The team's actions, in the form of `obs`.

        obs: [N, O], or a list of N vectors (None for an agent that is not there), or a dict by agent, from which agents
        that died are absent; for a team of one also its vector alone. mask: the legal actions in the same forms.
        state: the global state, where the environment has one. action: what somebody else chose, in the same forms; it
        is recorded in place of the policy's, and without a log-probability.
        """
        self._require_open()
        seen, there = self._form.observe(obs)
        legal = None if mask is None else self._form.mask(mask)
        whole = self._form.state(state)
        if action is None and self._choose is None:
            raise UsageError("This episode has no policy: give the action that was chosen.")
        given = None if action is None else self._form.action(action, there, legal)
        self._settle()
        if len(self._steps) >= self.spec.max_steps:
            self._cut("open", (seen, there), legal, whole)
        if given is None:
            assert self._choose is not None
            chosen, raw, logp = self._choose(seen, there, legal, whole)
            self._steps.add(seen, there, legal, whole, raw, logp)
            return self._form.answer(chosen, obs)
        self._steps.add(seen, there, legal, whole, given, None)
        return action

    def reward(self, reward: Any) -> None:
        """What the last actions earned: one number for all, one for each agent, or a dict. Several calls add up."""
        self._require_open()
        if not len(self._steps):
            raise UsageError("A reward follows an action: call act first.")
        self._earned = self._form.reward(self._earned + self._form.reward(reward))

    def end(self, truncated: bool = False, obs: Any = None, mask: Any = None, state: Any = None) -> Experience:
        """The episode is over: everything that happened, for a trainer or a file.

        truncated: it was cut and might have gone on; obs, mask and state are then what was seen at its end. Without
        them a learner cannot use the last step. An episode longer than `max_steps` comes in pieces of that length.
        """
        self._require_open()
        if not len(self._steps):
            raise UsageError("An episode needs at least one step: call act first.")
        final = None if obs is None else self._form.observe(obs)
        legal = None if mask is None else self._form.mask(mask)
        whole = None if state is None else self._form.state(state)
        self._settle()
        self._cut("truncated" if truncated else "terminated", final, legal, whole)
        self._over = True
        return join(self._pieces)

    def _require_open(self) -> None:
        if self._over:
            raise UsageError("This episode is over: begin another.")

    def _settle(self) -> None:
        """What was earned belongs to the last step."""
        self._steps.earn(self._earned)
        self._earned = np.zeros_like(self._earned)

    def _cut(self, end: str, obs: Any, mask: Any, state: Any) -> None:
        name = f"{self._id}-{len(self._pieces)}" if self._pieces or end == "open" else self._id
        piece = self._steps.finish(name, self.env, self.number, self.version, end, obs, mask, state)
        self._pieces.append(piece)
