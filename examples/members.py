"""A team whose agents are processes of their own: they talk over real sockets while they play.

Trains a team that needs messages, exports each agent, starts a process per agent, and prints the return against loss
and latency, with a member that is killed and started again while the others play on.

    pip install -e '.[export,members]'
    python examples/members.py
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT = 0.1
"""Seconds that an agent waits for messages."""


def be_member(model: str) -> None:
    """One agent: takes lines of JSON, answers each with a line. Imports neither JAX nor the environment."""
    from flockrl.relay import Member

    first = json.loads(sys.stdin.readline())
    member = Member(model, listen=first["listen"], token=first["token"], timeout=TIMEOUT, seed=member_seed(model))
    print(json.dumps(member.address), flush=True)
    answer: Any
    episode = 0
    for line in sys.stdin:
        told = json.loads(line)
        if "peers" in told:
            member.join(told["peers"])
            answer = True
        elif "meet" in told:
            answer = member.meet(told["meet"])
        elif "loss" in told:
            member.loss, member.latency, answer = told["loss"], told["latency"], True
        else:
            if told["episode"] != episode:
                episode = told["episode"]
                member.begin(episode)
            answer = member.act(told["obs"], step=told["step"])
        print(json.dumps(answer), flush=True)


def member_seed(model: str) -> int:
    return int(model.rpartition("_")[2])


class Process:
    """A member as the world sees it."""

    def __init__(self, model: Path, token: str, listen: str = "tcp://127.0.0.1:0"):
        words = [sys.executable, __file__, "--member", str(model)]
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell({"listen": listen, "token": token})
        self.address: str = self.answer()

    def tell(self, words: dict[str, Any]) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(words) + "\n")
        self.child.stdin.flush()

    def answer(self) -> Any:
        assert self.child.stdout is not None
        return json.loads(self.child.stdout.readline())

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()


class World:
    """The environment, and the processes that act in it. An agent whose process is gone chooses 0."""

    def __init__(self, env: Any, model: Path):
        import jax

        self.env, self.model, self.token = env, model, secrets.token_urlsafe(24)
        self.reset, self.advance = jax.jit(env.reset), jax.jit(env.step)
        self.episodes, names = 0, env.spec.agents
        self.team: list[Process | None] = [Process(model / f"member_{i}", self.token) for i in range(len(names))]
        self.where = {name: p.address for name, p in zip(names, self.team, strict=True) if p is not None}
        for i in range(len(names)):
            self.introduce(i)
        self.ask([{"meet": 30}] * len(names))

    def introduce(self, i: int) -> None:
        others = {name: address for name, address in self.where.items() if name != self.env.spec.agents[i]}
        self.ask([{"peers": others} if j == i else None for j in range(len(self.team))])

    def ask(self, words: list[Any]) -> list[Any]:
        """Tell each member something, and then hear all answers; 0 of those that are not there."""
        asked = [p if told is not None else None for p, told in zip(self.team, words, strict=True)]
        for process, told in zip(asked, words, strict=True):
            if process is not None:
                process.tell(told)
        return [0 if process is None else process.answer() for process in asked]

    def rehearse(self, loss: float, latency: float) -> None:
        self.ask([{"loss": loss, "latency": latency}] * len(self.team))

    def kill(self, i: int) -> None:
        process = self.team[i]
        assert process is not None
        process.kill()
        self.team[i] = None

    def restart(self, i: int) -> None:
        self.team[i] = Process(self.model / f"member_{i}", self.token, self.where[self.env.spec.agents[i]])
        self.introduce(i)
        # All of them: the others know each other already, and answer the newcomer when they act next.
        self.ask([{"meet": 1}] * len(self.team))

    def play(self, episodes: int) -> tuple[float, float]:
        """Mean return over agents and episodes, and its standard error."""
        import jax
        import numpy as np

        returns = []
        for _ in range(episodes):
            self.episodes += 1
            key = jax.random.key(self.episodes)
            state, seen = self.reset(key)
            total, step, over = 0.0, 0, False
            while not over:
                obs = np.asarray(seen.obs)
                rows = [row[: space.size].tolist() for row, space in zip(obs, self.env.spec.observations, strict=True)]
                words: list[Any] = [{"obs": row, "step": step, "episode": self.episodes} for row in rows]
                action = self.ask(words)
                state, seen, reward, ended, cut = self.advance(jax.random.fold_in(key, step), state, np.array(action))
                total, step, over = total + float(reward.mean()), step + 1, bool((ended | cut).all())
            returns.append(total)
        return float(np.mean(returns)), float(np.std(returns) / np.sqrt(episodes))

    def close(self) -> None:
        for process in self.team:
            if process is not None:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--member", help="be this member of an exported team")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--episodes", type=int, default=200)
    given = parser.parse_args()
    if given.member:
        be_member(given.member)
        return
    import flockrl

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run = flockrl.train(
            "ippo", "comm/signalling", comm="tarmac", steps=given.steps, envs=64, rollout_steps=10, seed=0,
            out=place / "run", quiet=True,
        )  # fmt: skip
        world = World(run.env, flockrl.export(run, place / "model", per_agent=True))
        try:
            tell(run, world, given.episodes)
        finally:
            world.close()


def tell(run: Any, world: World, episodes: int) -> None:
    print("loss   apart            joint policy, eval --channel loss=...")
    for loss in (0.0, 0.2, 0.5, 1.0):
        world.rehearse(loss, 0.0)
        mean, error = world.play(episodes)
        print(
            f"{loss:.1f}    {mean:.3f} ± {error:.3f}    {run.evaluate(episodes=1000, channel=f'loss={loss}').mean:.3f}"
        )
    print(f"latency (messages count as lost after {1000 * TIMEOUT:.0f} ms)")
    for latency in (0.0, 0.02, 2 * TIMEOUT):
        world.rehearse(0.0, latency)
        mean, error = world.play(max(episodes // 4, 1))
        print(f"{1000 * latency:3.0f} ms {mean:.3f} ± {error:.3f}")
    world.rehearse(0.0, 0.0)
    last = len(world.team) - 1
    world.kill(last)
    print(f"{world.env.spec.agents[last]} was killed: {world.play(max(episodes // 4, 1))[0]:.3f}")
    world.restart(last)
    print(f"and started again:   {world.play(max(episodes // 4, 1))[0]:.3f}")


if __name__ == "__main__":
    main()
