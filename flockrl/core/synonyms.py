"""Which of several names is meant by a word that is none of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SYNONYMS = {
    "lr": "learning_rate actor_lr",
    "critic_lr": "critic_learning_rate",
    "lr_schedule": "learning_rate_schedule anneal_lr",
    "gamma": "discount discount_factor",
    "gae_lambda": "lambda lambda_",
    "td_lambda": "lambda lambda_",
    "clip": "clip_range clip_param clip_coef clip_eps",
    "entropy": "ent_coef entropy_coef entropy_coeff entropy_cost",
    "entropy_schedule": "anneal_entropy entropy_decay ent_coef_schedule",
    "max_grad_norm": "grad_clip gradient_clip clip_grad_norm",
    "steps": "timesteps total_timesteps num_timesteps total_steps max_steps num_env_steps",
    "envs": "num_envs n_envs nenvs parallel_envs num_env_runners n_rollout_threads",
    "workers": "num_workers n_workers processes num_processes",
    "rollout_steps": "n_steps horizon rollout_length unroll_length rollout_fragment_length",
    "epochs": "n_epochs num_epochs update_epochs num_sgd_iter ppo_epoch",
    "minibatches": "num_minibatches n_minibatches num_mini_batch minibatch_size",
    "batch_size": "batch train_batch_size",
    "buffer_size": "replay_size buffer replay_buffer_size memory_capacity",
    "learning_starts": "warmup warmup_steps start_steps",
    "steps_per_update": "train_freq update_every",
    "explore_part": "exploration_fraction epsilon_decay",
    "explore_end": "exploration_final_eps final_epsilon min_epsilon",
    "explore_start": "exploration_initial_eps initial_epsilon epsilon",
    "hidden": "net_arch layers hidden_size hidden_sizes hidden_dim hidden_layers fcnet_hiddens",
    "activation": "activation_fn nonlinearity",
    "memory": "rnn lstm gru recurrent use_lstm use_rnn",
    "share": "share_policy parameter_sharing share_parameters shared",
    "kernel": "network model torso",
    "target_every": "target_update_interval target_update_freq",
    "tau": "polyak soft_update",
    "prioritized": "per prioritized_replay",
    "platform": "device gpu cuda cpu tpu accelerator backend",
    "eval_every": "eval_freq eval_interval evaluation_interval",
    "eval_episodes": "n_eval_episodes num_eval_episodes evaluation_duration",
    "checkpoint_every": "save_freq save_every checkpoint_freq save_interval",
    "episodes": "n_eval_episodes num_episodes n_episodes",
    "freeze": "frozen trainable requires_grad",
    "reinit": "reset_head reset_layers",
    "init_from": "load pretrained load_path restore checkpoint",
    "out": "output output_dir out_dir log_dir logdir save_path save_dir dir",
    "seed": "random_seed",
    "seeds": "num_seeds n_seeds",
    "quiet": "silent verbose",
    "explore": "stochastic sample deterministic",
    "gif": "render video animation",
    "train": "learn fit run",
    "eval": "test play enjoy evaluate",
    "resume": "continue",
    "recommend": "suggest advise",
    "list": "ls envs algorithms",
    "serve": "server",
}
"""Names of flockrl -> what other libraries and people call the same."""
_MEANT: dict[str, list[str]] = {}
for _name, _words in SYNONYMS.items():
    for _word in _words.split():
        _MEANT.setdefault(_word, []).append(_name)


def closest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is meant by `name`: one of the same meaning, or one that is written almost alike; else None."""
    options = {_plain(choice): choice for choice in sorted(choices)}
    before, dot, word = _plain(name).rpartition(".")
    for meant in _MEANT.get(word, []):
        if f"{before}{dot}{meant}" in options:
            return options[f"{before}{dot}{meant}"]
    found = difflib.get_close_matches(_plain(name), options, n=1, cutoff=0.66)
    return options[found[0]] if found else None


def _plain(word: str) -> str:
    """--Learning-Rate and learning_rate are the same word."""
    return word.lstrip("-").replace("-", "_") if word.startswith("-") else word
