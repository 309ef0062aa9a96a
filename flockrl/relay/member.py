"""One agent of a team in a process of its own, which talks to the others while it acts.

member = Member("model/member_0", listen="tcp://*:5555", peers={"agent_1": "tcp://10.0.0.2:5555"}, token=token)
member.meet(10)
while playing:
    action = member.act(observation)

Needs numpy, onnxruntime and pyzmq alone.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.portable.member import MemberModel
from flockrl.portable.model import Act, Memory
from flockrl.relay.post import (
    ALIVE,
    ANSWERS,
    ASKS,
    HEADER,
    MAGIC,
    SAYS,
    SENT,
    TOPIC,
    WAITING,
    Frame,
    Wires,
    pack,
    team_id,
    unpack,
)

AHEAD = 16
"""How many steps another may be ahead, so that what it says is kept."""
HELD = 4096
"""Frames that a rehearsed latency may hold."""
EVERY = 0.02
"""Seconds between questions who is there."""


class Member:
    """Acts for one agent.

    model_dir: its directory in an export with one model per agent. listen: where it speaks, for peers to connect to;
    port 0 takes a free one, which `address` tells. peers: names of the other agents -> where they speak; more with
    `join`. hub: instead of these, the `addresses` of a `Hub`. token: a secret of the team, which it needs beyond one
    machine. timeout: seconds to wait for messages in each round; what has not come by then is lost.
    explore: sample actions. seed: of that, and of what is rehearsed.
    loss, latency: to rehearse a bad network: the chance that a message which came is thrown away, and seconds that each
    takes longer.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        listen: str = "tcp://127.0.0.1:0",
        peers: Mapping[str, str] | None = None,
        hub: tuple[str, str] | None = None,
        token: str | None = None,
        timeout: float = 0.05,
        explore: bool = False,
        seed: int | None = None,
        loss: float = 0.0,
        latency: float = 0.0,
    ):
        if not 0 <= loss <= 1 or latency < 0 or timeout < 0:
            raise UsageError("loss is a chance from 0 to 1, and times are not negative.")
        if hub is not None and peers:
            raise UsageError("Members meet at a hub or connect to each other: give hub or peers.")
        self.model = MemberModel(model_dir)
        self.timeout, self.explore, self.loss, self.latency = timeout, explore, loss, latency
        self.name, self.address = self.model.team[self.model.index], ""
        self.counts: Counter[str] = Counter()
        """Messages sent, received, lost (they did not come in time), late (they came after that), refused."""
        self.choice: Act | None = None
        """What `act` chose last, with the log-probability: what an episode records."""
        self._rng = np.random.default_rng(seed)
        self._team = team_id(str(self.model.metadata["member"].get("id", "")))
        self._partners = set(self.model.hears) | set(self.model.heard_by)
        self._life = 1 + secrets.randbelow((1 << 32) - 1)
        """Tells this member from one that was in its place before."""
        self._met: dict[int, int] = {}
        self._confirmed: dict[int, int] = {}
        """Who hears this member, by its life."""
        self._held: deque[tuple[float, Frame]] = deque()
        self._episode = 0
        self._wires: Wires | None = None
        self._fresh()
        if self.model.rounds:
            self._plug(listen, hub, token)
            self.join(peers or {})

    def _plug(self, listen: str, hub: tuple[str, str] | None, token: str | None) -> None:
        model = self.model
        self._wires = wires = Wires(token, HEADER.size + 4 * max(model.size, len(model.team)))
        zmq = wires.zmq
        self._mouth, self._ear = wires.socket(zmq.PUB), wires.socket(zmq.SUB)
        topics = [(SAYS, set(model.hears)), (ASKS, self._partners), (ANSWERS, self._partners)]
        for kind, agents in topics:
            for agent in agents:
                self._ear.subscribe(TOPIC.pack(MAGIC, self._team, kind, agent))
        if hub is None:
            self.address = wires.bind(self._mouth, listen)
        else:
            wires.connect(self._mouth, [hub[0]])
            wires.connect(self._ear, [hub[1]])

    def join(self, peers: Mapping[str, str]) -> None:
        """Connect to peers, by name; those whom this agent has nothing to do with are left out."""
        for name, address in peers.items():
            if name not in self.model.team:
                raise UsageError(f"There is no {name!r} in the team of {', '.join(self.model.team)}.")
            if self._wires is not None and self.model.team.index(name) in self._partners:
                self._wires.connect(self._ear, [address])

    def meet(self, timeout: float) -> bool:
        """Wait until this agent hears all that it should hear, and they hear it: whether that is so."""
        if self._wires is None:
            return True
        until = time.monotonic() + timeout
        while not (self._met.keys() >= self._partners and self._confirmed.keys() >= set(self.model.heard_by)):
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._hello(ASKS)
            self._listen(time.monotonic() + min(left, EVERY), lambda: False)
        self._hello(ANSWERS)
        return True

    def begin(self, episode: int | None = None) -> None:
        """An episode begins, and nothing is remembered. All members count episodes alike."""
        self._episode = _counted("episode", self._episode + 1 if episode is None else episode)
        self._fresh()

    def _fresh(self) -> None:
        self._memory: Memory | None = None
        self._step = 0
        self._there = np.ones(len(self.model.team), bool)
        self._spoken: deque[Frame] = deque(maxlen=(AHEAD + 1) * max(self.model.rounds, 1))
        old = getattr(self, "_said", {})
        self._said: dict[tuple[int, int, int], dict[int, Frame]] = {
            k: v for k, v in old.items() if k[0] == self._episode
        }

    def act(
        self, obs: Any, mask: Any = None, *, step: int | None = None, alive: bool = True, neighbours: Any = None
    ) -> Any:
        """The agent's action: a number of its choice, or [w] numbers. It comes after at most `timeout` per round.

        obs: [O]. mask: [A] bool. step: the number of the step in its episode, by default one more than the last; all
        members count alike. alive: whether the agent lives; the dead neither speak nor hear. neighbours: [N] bool,
        whom the agent perceives, where the team's channel goes by that.
        """
        self._step = _counted("step", self._step if step is None else step)
        if self.model.spec.respawn and not alive:  # who lives in this place next remembers nothing of this life
            self._memory = None
        model, seen = self.model, np.asarray(obs).reshape(1, -1)
        legal = None if mask is None else np.asarray(mask, bool).reshape(1, -1)
        around = np.zeros(len(model.team), bool)
        around[list(model.hears)] = alive
        if neighbours is None and model.nearest:
            raise UsageError("This agent hears the nearest alone: give neighbours, whom it may hear in this step.")
        if neighbours is not None:
            near = np.asarray(neighbours, bool)
            if near.shape != around.shape:
                raise UsageError(
                    f"neighbours has a flag for each of {len(around)} agents, not shape {list(near.shape)}."
                )
            around &= near
        inbox = np.zeros((model.rounds, len(model.team), model.size + 1), np.float32)
        for number in range(model.rounds):
            if not model.delay:
                said = model.speak(seen, self._memory, inbox, around & self._there, number)
                self._say(number, said, alive)
            self._gather(number, around, inbox)
        peers = around & self._there
        done, said = model.decide(seen, legal, self._memory, self._rng, self.explore, inbox, peers)
        if model.delay:
            for number in range(model.rounds):
                self._say(number, said[number], alive)
        self._memory, self.choice = done.memory, done
        self._step += 1
        self._forget()
        return done.action[0].item() if done.action.ndim == 1 else done.action[0]

    def _gather(self, number: int, around: np.ndarray, inbox: np.ndarray) -> None:
        """Wait for what the agents `around` say in a round, and put it into the inbox."""
        spoken = self._step - self.model.delay
        if spoken < 0 or self._wires is None:
            return
        came = self._said.setdefault((self._episode, spoken, number), {})
        wanted = set(np.flatnonzero(around).tolist())
        self._listen(time.monotonic() + self.timeout, lambda: wanted <= came.keys())
        for agent in wanted:
            frame = came.get(agent)
            if frame is None:
                self.counts["lost"] += 1
                continue
            if frame.flags >= 0:
                self._there[agent] = bool(frame.flags & ALIVE)
            if frame.body is not None:
                inbox[number, agent, :-1], inbox[number, agent, -1] = frame.body, 1.0

    def _say(self, number: int, said: np.ndarray, alive: bool) -> None:
        """Send what this agent says in a round; where it says nothing, send that, so that nobody waits."""
        sends = alive and said[-1] > 0.5
        flags = SENT * sends | ALIVE * alive
        body = said[:-1] if sends else None
        frame = Frame(SAYS, self.model.index, flags, self._episode, self._step, number, body)
        self._spoken.append(frame)
        self._send(frame)
        self.counts["sent"] += 1

    def _hello(self, kind: int) -> None:
        lives = [(self._met | {self.model.index: self._life}).get(i, 0) for i in range(len(self.model.team))]
        self._send(Frame(kind, self.model.index, body=np.array(lives)))

    def _send(self, frame: Frame) -> None:
        self._mouth.send(pack(self._team, frame))

    # Listening

    def _listen(self, until: float, enough: Any) -> None:
        """Read what comes until there is enough or it is too late; what is there already is read in any case."""
        assert self._wires is not None
        zmq, most = self._wires.zmq, WAITING * (1 + len(self._partners))
        while True:
            for _ in range(most):  # whoever sends without end holds nobody up
                if not self._ear.poll(0):
                    break
                self._read(self._ear.recv(zmq.NOBLOCK))
            now = time.monotonic()
            while self._held and self._held[0][0] <= now:
                self._keep(self._held.popleft()[1])
            if enough() or now >= until:
                return
            next_one = min(until, self._held[0][0]) if self._held else until
            self._ear.poll(max(1, int(1000 * (next_one - now))))

    def _read(self, data: bytes) -> None:
        model = self.model
        frame = unpack(data, self._team, len(model.team), model.rounds, model.size)
        if frame is None or frame.sender not in self._partners:
            self.counts["refused"] += 1
        elif frame.kind == SAYS:
            if self.loss and self._rng.random() < self.loss:
                frame = frame._replace(flags=-1, body=None)  # as if it had not come, without the wait for it
            if self.latency:
                if len(self._held) < HELD:
                    self._held.append((time.monotonic() + self.latency, frame))
            else:
                self._keep(frame)
        else:
            assert frame.body is not None
            life = self._met[frame.sender] = int(frame.body[frame.sender])
            if frame.kind == ASKS:
                self._hello(ANSWERS)
            if frame.body[model.index] == self._life and self._confirmed.get(frame.sender) != life:
                self._confirmed[frame.sender] = life
                for said in self._spoken:  # it missed what was said before it could hear
                    self._send(said)

    def _keep(self, frame: Frame) -> None:
        """Keep what was said for the step that needs it; what comes too late, twice, or from far ahead is dropped."""
        oldest = self._step - self.model.delay
        now = frame.episode == self._episode and oldest <= frame.step <= self._step + AHEAD
        soon = frame.episode == self._episode + 1 and frame.step <= AHEAD
        if frame.sender not in self.model.hears or not (now or soon):
            self.counts["late"] += 1
            return
        came = self._said.setdefault((frame.episode, frame.step, frame.round), {})
        if frame.sender not in came:
            came[frame.sender] = frame
            self.counts["lost" if frame.flags < 0 else "received"] += 1

    def _forget(self) -> None:
        oldest = self._step - self.model.delay
        self._said = {key: said for key, said in self._said.items() if key[0] > self._episode or key[1] >= oldest}

    def close(self) -> None:
        if self._wires is not None:
            self._wires.close()
            self._wires = None

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _counted(what: str, number: int) -> int:
    """A number of an episode or step, as a frame can carry it."""
    if not 0 <= number < 1 << 32:
        raise UsageError(f"The number of the {what} must be from 0 to {(1 << 32) - 1}, not {number}.")
    return int(number)
