"""A trained team inside an application: it acts, records what happens, sends it home and receives better policies.

actor = Actor(server="localhost:8815", queue="queue")
while playing:
    actions = actor.request_action(observations, reward=earned_by_the_last_actions)
actor.flag_last_action(reward)

Needs numpy, pyarrow and onnxruntime alone.
"""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.data.episode import Steps
from flockrl.data.form import Form
from flockrl.relay.client import Client
from flockrl.relay.models import first_model
from flockrl.relay.outbox import Outbox, QueueFull

logger = logging.getLogger("flockrl.relay")


class Actor:
    """Acts for one team.

    model_dir: an exported model; without it the server's newest one, or the one it gave last when it is not there.
    server: HOST:PORT or tls://HOST:PORT. token: what it asks for. tls_root: a file with the certificate to trust.
    queue: a directory of this actor's own for episodes on their way; without it nothing is recorded.
    env: a name for where the episodes were made, by default the environment's.
    explore: sample actions instead of taking the most likely ones.
    queue_limit: bytes that may wait on disk. when_full: what to do beyond it, or when the disk takes no more: "warn"
    plays on without recording and counts what was not recorded in `stats`; "error" raises `QueueFull`.
    send_every, poll_every: seconds between messages, and between questions for a newer model.
    timeout: seconds to wait for the server's first model.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
        server: str | None = None,
        token: str | None = None,
        env: str = "",
        queue: str | Path | None = None,
        explore: bool = True,
        seed: int | None = None,
        *,
        tls_root: str | Path | None = None,
        queue_limit: int = 256 << 20,
        when_full: Literal["warn", "error"] = "warn",
        send_every: float = 0.2,
        poll_every: float = 1.0,
        timeout: float = 30.0,
    ):
        if server is not None and queue is None:
            raise UsageError("An actor keeps its episodes on disk until they have arrived: give queue=DIRECTORY.")
        if when_full not in ("warn", "error"):
            raise UsageError(f"when_full must be 'warn' or 'error', not {when_full!r}.")
        client = None if server is None else Client(server, token, None if tls_root is None else Path(tls_root))
        folder = None if queue is None else Path(queue)
        self._model = first_model(model_dir, client, folder, timeout)
        self.spec, self._env, self._explore = self._model.spec, env or self._model.spec.name, explore
        self._rng, self._form = np.random.default_rng(seed), Form(self.spec)
        self._name, self._number, self._pieces = uuid.uuid4().hex[:16], 0, 0
        self._steps, self._memory = Steps(self.spec), self._model.memory()
        self._playing = False
        self._unrecorded, self._when_full, self._warned = 0, when_full, 0.0
        self._outbox: Outbox | None = None
        if folder is not None:
            self._outbox = Outbox(
                folder, self.spec, client, (self._model.identity, self._model.version), queue_limit, send_every,
                poll_every,
            )  # fmt: skip

    @property
    def version(self) -> int:
        """Version of the policy that acts."""
        return self._model.version

    @property
    def stats(self) -> dict[str, int]:
        """Trajectories recorded, acknowledged by the server, refused by it, not recorded because the queue was full;
        models of the server that were not usable; failed attempts to reach it; bytes that wait."""
        if self._outbox is None:
            return {"unrecorded": self._unrecorded}
        return {**self._outbox.stats, "unrecorded": self._unrecorded, "waiting_bytes": self._outbox.waiting}

    def request_action(self, obs: Any, mask: Any = None, reward: Any = None, state: Any = None) -> Any:
        """The team's actions, in the form of `obs`.

        obs: [N, O], or a list of N vectors (None for an agent that is not there), or a dict by agent, from which agents
        that died are absent; for a team of one also its vector alone. mask: the legal actions in the same forms.
        reward: what the previous actions earned, one number or one for each agent, or a dict; 0 when left out.
        state: the global state, where the environment has one.
        """
        form, outbox = self._form, self._outbox
        seen, there = form.observe(obs)
        legal = None if mask is None else form.mask(mask)
        whole = form.state(state)
        if self._playing:
            self._earn(0.0 if reward is None else reward)
            if len(self._steps) >= self.spec.max_steps:
                self._record("open", (seen, there), legal, whole)
        else:
            self._begin()
        action, raw, logp, self._memory = self._model.act(seen, legal, self._memory, self._rng, self._explore, there)
        if outbox is not None:
            self._steps.add(seen, there, legal, whole, raw, logp)
        return form.answer(action, obs)

    def flag_last_action(
        self, reward: Any = 0.0, truncated: bool = False, obs: Any = None, mask: Any = None, state: Any = None
    ) -> None:
        """The episode is over. reward: what the last actions earned.

        truncated: it was cut and might have gone on; obs, mask and state are then what was seen at its end. Without
        them a learner cannot use the last step.
        """
        if not self._playing:
            raise UsageError("There is no episode under way: call request_action first.")
        final = None if obs is None else self._form.observe(obs)
        legal = None if mask is None else self._form.mask(mask)
        whole = None if state is None else self._form.state(state)
        self._earn(reward)
        self._playing = False  # also if it cannot be recorded
        self._record("truncated" if truncated else "terminated", final, legal, whole)

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until the server has acknowledged everything: whether it has."""
        return self._outbox is None or self._outbox.flush(timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Send what can be sent in this time and end: whether everything arrived. The rest stays on disk."""
        return self._outbox is None or self._outbox.close(timeout)

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _begin(self) -> None:
        """A new episode; the only place where the policy may change."""
        newer = None if self._outbox is None else self._outbox.take_model()
        if newer is not None:
            self._model = newer
        self._memory, self._playing = self._model.memory(), True
        self._steps, self._pieces = Steps(self.spec), 0
        self._number += 1

    def _earn(self, reward: Any) -> None:
        if self._outbox is not None:
            self._steps.earn(self._form.reward(reward))

    def _record(self, end: str, obs: Any, mask: Any, state: Any) -> None:
        if self._outbox is None or not len(self._steps):
            return
        name = f"{self._name}-{self._number}" + (f"-{self._pieces}" if self._pieces or end == "open" else "")
        self._pieces += 1
        data = self._steps.finish(name, self._env, self._number, self._model.version, end, obs, mask, state)
        try:
            self._outbox.add(data, self._model.identity)
        except QueueFull as error:
            self._unrecorded += 1
            if self._when_full == "error":
                raise
            if time.monotonic() - self._warned > 30:
                self._warned = time.monotonic()
                logger.warning("%s %d trajectories were not recorded so far.", error, self._unrecorded)
