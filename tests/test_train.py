"""Training from Python: runs, policies, callbacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.envs.mpe.core import ParticleEnv
from flockrl.training import memory


class Ears(flockrl.Callback):
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def on_start(self, moment):
        self.heard.append(("start", moment.step))

    def on_iteration(self, moment):
        self.heard.append(("iteration", moment.step))
        assert moment.metrics["step"] == moment.step
        assert moment.state.iteration == moment.step // 128

    def on_episode_stats(self, moment, episodes, returns, length):
        self.heard.append(("episodes", moment.step))
        assert (len(returns), length) == (3, 25.0)

    def on_evaluation(self, moment, result):
        self.heard.append(("evaluation", moment.step))
        assert result.episodes == TINY["eval_episodes"]

    def on_checkpoint(self, moment):
        self.heard.append(("checkpoint", moment.step))

    def on_end(self, moment):
        self.heard.append(("end", moment.step))
        assert (moment.path / "result.json").exists()


def test_callbacks_hear_everything_in_order(tmp_path):
    ears = Ears()
    flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "run", callbacks=[ears], **{**TINY, "steps": 512})
    assert ears.heard[:4] == [("start", 0), ("evaluation", 0), ("iteration", 0), ("iteration", 128)]
    for name, steps in {"evaluation": [0, 256, 512], "checkpoint": [256, 512], "end": [512]}.items():
        assert [step for event, step in ears.heard if event == name] == steps
    assert [step for event, step in ears.heard if event == "iteration"] == [0, 128, 256, 384, 512]
    assert ("episodes", 256) in ears.heard


class Enough(flockrl.Callback):
    def on_iteration(self, moment):
        if moment.step >= 384:
            moment.stop("enough")


def test_a_callback_can_stop_the_run(tmp_path):
    run = flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "run", callbacks=[Enough()], **TINY)
    assert run.result["steps"] == 384
    assert run.result["stopped"] == "enough"
    assert run.metrics()[-1]["eval_return"] == run.result["final_eval_return"]
    assert run.evaluate(4).episodes == 4


def test_evaluation_result(tiny_run):
    result = tiny_run.evaluate(episodes=30, seed=1)
    assert result.returns.shape == (30, 3)
    assert result.per_agent.shape == (3,)
    assert result.mean == pytest.approx(result.returns.mean(), rel=1e-5)
    assert result.std == pytest.approx(result.returns.mean(1).std(), rel=1e-5)
    assert (result.lengths == 25).all()
    assert tiny_run.evaluate(30, seed=1).mean == result.mean
    assert tiny_run.evaluate(30, seed=2).mean != result.mean
    assert tiny_run.evaluate(30, seed=1, explore=True).mean != result.mean
    with pytest.raises(flockrl.UsageError, match="episodes must be at least 1"):
        tiny_run.evaluate(0)


def play(policy, env, steps=25):
    """Drive an environment by hand with `policy.act`."""
    import jax

    state, seen = env.reset(jax.random.key(7))
    policy.reset()
    actions, total = [], 0.0
    for t in range(steps):
        action = policy.act(np.asarray(seen.obs))
        state, seen, reward, *_ = env.step(jax.random.key(t), state, jnp.asarray(action))
        actions.append(action)
        total += float(reward.mean())
    return np.array(actions), total


def test_policy_acts_for_one_team_or_a_batch(tiny_run):
    policy = tiny_run.policy()
    obs = np.random.default_rng(0).normal(size=(5, 3, 18)).astype(np.float32)
    batch = policy.act(obs)
    assert batch.shape == (5, 3)
    assert batch.dtype == np.int32
    np.testing.assert_array_equal(np.stack([policy.act(row) for row in obs]), batch)
    np.testing.assert_array_equal(policy.act([obs[:, i] for i in range(3)]), batch)
    legal = np.zeros((5, 3, 5), bool)
    legal[..., 2] = True
    assert (policy.act(obs, avail=legal) == 2).all()
    draws = np.stack([policy.act(obs, explore=True) for _ in range(20)])
    assert len(np.unique(draws[:, 0, 0])) > 1
    with pytest.raises(flockrl.UsageError, match=r"shape \[3, 18\]"):
        policy.act(np.zeros((3, 17)))


def test_policy_remembers_until_reset(tmp_path):
    run = flockrl.train(
        "mappo", "mpe/simple_spread", out=tmp_path / "gru", memory="gru", memory_size=8, **{**TINY, "steps": 256}
    )
    policy, env = run.policy(), flockrl.make_env("mpe/simple_spread")
    assert isinstance(env, ParticleEnv)
    first, second = play(policy, env), play(policy, env)
    np.testing.assert_array_equal(first[0], second[0])
    assert any(h.any() for h in map(np.asarray, policy._memory))
    policy.reset()
    assert policy._memory is None
    policy.act(np.ones((2, 3, 18)))
    policy.reset(np.array([True, False]))
    kept = np.asarray(policy._memory[0])
    assert not kept[0].any()
    assert kept[1].any()


def test_continuous_actions_stay_in_bounds(tmp_path):
    run = flockrl.train(
        "ippo", "mpe/simple_speaker_listener:continuous_actions=true", out=tmp_path / "c", **{**TINY, "steps": 256}
    )
    spec = run.env.spec
    action = run.policy().act(np.full((2, spec.obs_size), 30.0), explore=True)
    assert action.shape == (2, spec.action_size)
    assert (action >= 0).all()
    assert (action <= 1).all()
    assert (action[0, 3:] == 0).all()


@pytest.mark.parametrize(
    ("share", "memory", "mode"),
    [("all", "none", "true"), pytest.param("groups", "gru", "true", marks=pytest.mark.slow)],
)
def test_unlike_agents_train_in_every_variant(tmp_path, share, memory, mode):
    env = f"mpe/simple_world_comm:continuous_actions={mode}"
    settings = {**TINY, "steps": 256, "share": share, "memory": memory, "memory_size": 8, "normalize_obs": True}
    run = flockrl.train("mappo", env, out=tmp_path / "run", **settings)
    assert np.isfinite(run.result["final_eval_return"])


def test_custom_environments_train_and_are_checked_first(tmp_path):
    env = flockrl.make_env("mpe/simple_spread:N=2")
    run = flockrl.train("ippo", env, out=tmp_path / "run", **TINY)
    assert run.evaluate(5).episodes == 5
    with pytest.raises(flockrl.UsageError, match="pass it as env="):
        flockrl.Run(run.path).evaluate(5)
    assert flockrl.Run(run.path, env=env).evaluate(5).mean == run.evaluate(5).mean

    class Broken:
        spec = env.spec
        reset = staticmethod(env.reset)

        @staticmethod
        def step(key, state, action):
            state, seen, reward, over, cut = env.step(key, state, action)
            return state, seen, reward[:1], over, cut

    with pytest.raises(flockrl.UsageError, match="reward"):
        flockrl.train("ippo", Broken(), out=tmp_path / "broken", **TINY)
    assert not (tmp_path / "broken").exists()


def test_import_is_light():
    """Heavy parts are imported where they are used."""
    import subprocess
    import sys

    heavy = "('matplotlib', 'orbax', 'PIL', 'mpe2', 'tensorboardX')"
    code = f"import sys, flockrl; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_run_that_does_not_fit_into_memory_is_refused_with_the_arithmetic(tmp_path, monkeypatch):
    """Before anything is compiled where rollouts or the state alone are too large, else by the compiler's figure."""
    path, rollout = tmp_path / "run", r"100,000,000 environments x 16 steps x 3 agents x 18 numbers = 345\.6 GB"
    with pytest.raises(flockrl.UsageError, match=rollout):
        flockrl.train("mappo", "mpe/simple_spread", out=path, **{**TINY, "envs": 100_000_000})
    with pytest.raises(flockrl.UsageError, match=r"state \(parameters, replay, environments\) [0-9,]+\.[0-9] GB"):
        flockrl.train("mappo", "mpe/simple_spread", out=path, **{**TINY, "hidden": (100_000, 100_000)})
    assert not path.exists()
    monkeypatch.setattr(memory, "available", lambda: 100_000.0)
    with pytest.raises(flockrl.UsageError, match=r"needs [0-9.]+ MB of memory and 0.1 MB .* while it computes"):
        flockrl.train("mappo", "mpe/simple_spread", out=path, **TINY)


def test_running_out_of_memory_is_a_sentence(tmp_path, monkeypatch):
    def run(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.")

    monkeypatch.setattr("flockrl.training.compiled.CompiledProgram.run", run)
    with pytest.raises(flockrl.UsageError, match="ran out of memory: there was no checkpoint yet"):
        flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "run", **TINY)


def test_available_memory_is_that_of_the_machine_or_of_its_control_group(tmp_path, monkeypatch):
    assert 1e6 < memory.available() < 1e15
    (tmp_path / "limit").write_text("123456\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", [tmp_path / name for name in ("limit", "none", "missing")])
    assert memory.available() == 123456


def test_the_console_says_why_a_callback_stopped_the_run(tmp_path, capsys):
    flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "r", callbacks=[Enough()], quiet=False, seeds=2, **TINY)
    shown = capsys.readouterr().out
    assert shown.count("final eval") == 1
    assert "Stopped at step 384 of 1,024: enough" in shown
