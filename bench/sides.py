"""What a frozen side costs: a run with one learning side against its rollouts and that side's update alone.

python bench/sides.py

On simple_tag with 16 environments, ippo hunters learn against a frozen ippo prey. Prints steps per second of the whole
run, of rollouts in which both sides act, of the updates of the hunters alone, and the ratio of
the time that the two parts take to the time of the run; and the speed of the same run with both sides learning.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import flockrl
from flockrl.algos.assembly import make_players
from flockrl.algos.sides import side_trajectory
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program
from flockrl.training.setup import configure
from flockrl.training.warm import begin

ENV, ENVS, COUNT, ROUNDS = "mpe/simple_tag", 16, 40, 5


def main() -> None:
    env = flockrl.make_env(ENV)
    with tempfile.TemporaryDirectory() as home:
        prey = flockrl.train("ippo", ENV, steps=1600, envs=ENVS, eval_episodes=2, out=f"{home}/prey")
        frozen = _program(env, {"adversary": "ippo", "agent": prey})
        both = _program(env, {"adversary": "ippo", "agent": "ippo"})
        parts = _parts(env, frozen)
        times: dict[str, list[float]] = {name: [] for name in ("frozen", "both", *parts)}
        for _ in range(ROUNDS):
            for name, program in (("frozen", frozen), ("both", both)):
                times[name].append(_time(lambda program=program: program["run"](program["state"]())))
            for name, part in parts.items():
                times[name].append(_time(part))
    median = {name: float(np.median(x)) for name, x in times.items()}
    steps = COUNT * frozen["steps"]
    for name, seconds in median.items():
        print(f"{name:10} {steps / seconds:10,.0f} steps/s")
    print(f"ratio of rollouts and updates to the run with a frozen side: {_ratio(median):.2f}")


def _ratio(seconds: dict[str, float]) -> float:
    return (seconds["rollouts"] + seconds["updates"]) / seconds["frozen"]


def _program(env: Any, players: dict[str, Any]) -> dict[str, Any]:
    title, config = configure(players, {}, env.spec)
    run = RunConfig(title, ENV, TrainOptions(envs=ENVS, steps=10**9), config)
    program: Any = make_program(run, env)
    program.compile(0)

    def state() -> Any:
        fresh = program.start_state(0)
        return fresh._replace(learner=begin(run, fresh.learner, partly=False)[0])

    return {
        "program": program, "config": config, "state": state, "steps": program.setting.iteration_steps,
        "run": lambda state: program.run(state, 0, COUNT),
    }  # fmt: skip


def _parts(env: Any, frozen: dict[str, Any]) -> dict[str, Any]:
    """Rollouts alone and the hunters' updates alone, each `COUNT` times in one compiled loop."""
    program, state, key = frozen["program"], frozen["state"](), jax.random.key(1)
    algorithm = program.setting.algorithm
    actors = start(algorithm, env, key, ENVS)
    params = algorithm.params(state.learner)
    player = make_players(env.spec, frozen["config"], algorithm.rollout_steps, ENVS, 10**6)["adversary"]
    _, trajectory, _ = jax.jit(partial(scan_rollout, algorithm, params, env))(actors, key)
    own = side_trajectory(env.spec, player, trajectory, None)._replace(memory=())

    @jax.jit
    def rollouts(actors: Any) -> Any:
        step = partial(scan_rollout, algorithm, params, env)
        return jax.lax.fori_loop(0, COUNT, lambda i, now: step(now, jax.random.fold_in(key, i))[0], actors)

    @jax.jit
    def updates(learner: Any) -> Any:
        step = player.algorithm.update
        return jax.lax.fori_loop(0, COUNT, lambda i, now: step(now, own, jax.random.fold_in(key, i))[0], learner)

    learner = jax.tree.map(jnp.copy, state.learner["adversary"])
    return {"rollouts": lambda: rollouts(actors), "updates": lambda: updates(learner)}


def _time(work: Any) -> float:
    jax.block_until_ready(work())
    began = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
