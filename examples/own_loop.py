"""A loop of your own: your game steps, flockrl's trainer acts and learns. One part for each family of algorithms.

Two boats on a canal look for their docks. Each sees where its dock lies, and both are paid for coming closer.

    pip install -e '.[relay]'
    python examples/own_loop.py
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flockrl
from flockrl.data.episode import Episode
from flockrl.data.experience import Experience
from flockrl.data.files import Files, Writer

BOATS, LENGTH, SIZE = ("red", "blue"), 10, 4
SMALL = {"hidden": (32,), "lr": 0.003}
REPLAY = {**SMALL, "gamma": 0.9, "rollout_steps": 10, "batch_size": 64, "steps_per_update": 4, "learning_starts": 500}


class Canal:
    """The game, in plain Python."""

    def __init__(self) -> None:
        self.place = {boat: float(random.randint(-SIZE, SIZE)) for boat in BOATS}
        self.dock = {boat: float(random.randint(-SIZE, SIZE)) for boat in BOATS}

    def views(self) -> dict[str, list[float]]:
        """What each boat sees: where it is, and how far away its dock is."""
        return {boat: [self.place[boat] / SIZE, (self.dock[boat] - self.place[boat]) / SIZE] for boat in BOATS}

    def moves(self) -> dict[str, list[bool]]:
        """Which of the moves left, stay and right lead nowhere but through water."""
        return {boat: [x > -SIZE, True, x < SIZE] for boat, x in self.place.items()}

    def sail(self, by: dict[str, float]) -> float:
        """Both boats move. Returns how much closer they came, in all."""
        before = self.distance()
        for boat, way in by.items():
            self.place[boat] = min(max(self.place[boat] + way, -SIZE), SIZE)
        return before - self.distance()

    def distance(self) -> float:
        return sum(abs(self.dock[boat] - self.place[boat]) for boat in BOATS)


def play(trainer: flockrl.Trainer, continuous: bool = False) -> Experience:
    """One episode with the trainer's policy: act, reward, act, reward, ..., end."""
    canal, episode = Canal(), trainer.episode()
    for _ in range(LENGTH):
        if continuous:
            action = episode.act(canal.views())  # {"red": array([0.3]), "blue": array([-1.0])}
            by = {boat: float(push[0]) for boat, push in action.items()}
        else:
            action = episode.act(canal.views(), mask=canal.moves())  # {"red": 2, "blue": 0}
            by = {boat: float(move - 1) for boat, move in action.items()}
        episode.reward(canal.sail(by))
        if canal.distance() == 0:
            return episode.end()
    # Time is up, which is not the end of the world: what is seen now tells the learner what it was worth.
    return episode.end(truncated=True, obs=canal.views(), mask=None if continuous else canal.moves())


def on_policy(steps: int) -> flockrl.Trainer:
    """MAPPO: an update for every 16 x 25 steps, then they are thrown away."""
    hyperparams = {**SMALL, "gamma": 0.9, "rollout_steps": 25, "epochs": 4, "minibatches": 2}
    trainer = flockrl.Trainer.mappo(obs_dim=2, act_dim=3, agents=BOATS, max_steps=LENGTH, hyperparams=hyperparams)
    while trainer.stats["steps"] < steps:
        trainer.receive_trajectory(play(trainer))
    return trainer


def continuous(steps: int) -> flockrl.Trainer:
    """MADDPG: actions are real numbers from -1 to 1, and a replay keeps all episodes."""
    trainer = flockrl.Trainer.maddpg(
        obs_dim=2, act_dim=1, continuous=1.0, agents=BOATS, max_steps=LENGTH, hyperparams=REPLAY, buffer_size=20_000
    )
    while trainer.stats["steps"] < steps:
        trainer.receive_trajectory(play(trainer, continuous=True))
    return trainer


def q_learning(steps: int) -> flockrl.Trainer:
    """VDN: a value for each move, of which the best is taken, and now and then another."""
    hyperparams = {**REPLAY, "explore_part": 0.5}  # it tries out less and less, over half of the steps
    trainer = flockrl.Trainer.vdn(
        obs_dim=2, act_dim=3, agents=BOATS, max_steps=LENGTH, hyperparams=hyperparams, buffer_size=20_000, steps=steps
    )
    while trainer.stats["steps"] < steps:
        trainer.receive_trajectory(play(trainer))
    return trainer


def recorded(steps: int) -> flockrl.Trainer:
    """Behaviour cloning: your own pilot steers, its episodes go to a file, and a trainer imitates them."""
    hyperparams = {**SMALL, "rollout_steps": 5}
    trainer = flockrl.Trainer.bc(obs_dim=2, act_dim=3, agents=BOATS, max_steps=LENGTH, hyperparams=hyperparams)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pilot.arrow"
        with Writer(file, trainer.spec) as writer:
            for number in range(steps // LENGTH):
                canal, episode = Canal(), Episode(trainer.spec, number=number)
                for _ in range(LENGTH):
                    views = canal.views()
                    steered = {boat: 1 + (view[1] > 0) - (view[1] < 0) for boat, view in views.items()}
                    episode.act(views, mask=canal.moves(), action=steered)
                    episode.reward(canal.sail({boat: float(move - 1) for boat, move in steered.items()}))
                writer.add(episode.end(truncated=True, obs=canal.views(), mask=canal.moves()))
        for _ in range(5):  # times through the file
            for piece in Files([file]):
                trainer.receive_trajectory(piece)
    return trainer


FAMILIES: dict[str, tuple[Callable[[int], flockrl.Trainer], int]] = {
    "on-policy": (on_policy, 15_000),
    "continuous": (continuous, 10_000),
    "q-learning": (q_learning, 10_000),
    "recorded": (recorded, 5_000),
}


def score(policy: Any, continuous: bool, episodes: int = 50) -> float:
    """How far from their docks the boats end up, on average, when the policy acts without trying things out."""
    total = 0.0
    for _ in range(episodes):
        canal = Canal()
        for _ in range(LENGTH):
            action = policy.act(canal.views(), None if continuous else canal.moves())
            canal.sail({boat: float(x[0] if continuous else x - 1) for boat, x in action.items()})
            if canal.distance() == 0:
                break
        total += canal.distance() / len(BOATS)
    return total / episodes


def main(family: str, steps: int | None) -> None:
    random.seed(0)
    for name, (learn, enough) in FAMILIES.items():
        if family in (name, "all"):
            trainer = learn(steps or enough)
            left = score(trainer.acquire_model(), continuous=name == "continuous")
            print(f"{name:10} {trainer.algorithm:6} {trainer.version:5} updates: {left:.2f} away from the dock")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=[*FAMILIES, "all"], default="all")
    parser.add_argument("--steps", type=int, help="to play for each family")
    given = parser.parse_args()
    main(given.family, given.steps)
