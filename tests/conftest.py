"""Shared by all tests: compiled programs are kept between them, and small runs are easy to make."""

import os
import tempfile
from pathlib import Path

import pytest

CACHE = Path(tempfile.gettempdir()) / "flockrl-test-cache"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# Tests compile much and run little.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

TINY = {
    "steps": 1024, "envs": 8, "rollout_steps": 16, "epochs": 2, "minibatches": 2, "hidden": (8,),
    "eval_every": 256, "eval_episodes": 4, "checkpoint_every": 256,
}  # fmt: skip
"""Settings of a run that takes a second: eight iterations of 128 steps."""

LONG = (
    "test_host.py::test_host_rollouts_equal_compiled_ones[spread-range",
    "test_few.py::test_few_links_are_what_masks_make_of_them[dial-nearest=2",
    "test_few.py::test_few_links_are_what_masks_make_of_them[commnet-topology=ring",
    "test_adversary.py::test_one_agent_is_taken_over_in_a_part_of_the_episodes",
    "test_learners.py::test_slopes_of_an_on_policy_loss_are_those_of_its_differences[tarmac",
    "test_learners.py::test_learning_meets_the_luck_that_acting_had[ic3net",
    "test_network.py::test_single_steps_equal_a_whole_sequence[none-gru-talk6",
    "test_network.py::test_a_new_life_knows_nothing_of_the_last_one[True-talk1",
    "test_opponents.py::test_messages_learn_what_returns_depend_on",
    "test_mpe.py::test_free_running_episodes_agree_in_double_precision[simple-discrete",
    "test_mpe.py::test_free_running_episodes_agree_in_double_precision[simple_tag-num_good=3",
    "test_fleet.py::test_a_share_of_the_drones_fails_within_an_episode",
    "test_mixed.py::test_several_choices_at_once_train[parts-reinforce",
    "test_off_policy.py::test_dead_agents_teach_nothing[td3-False",
    "test_ppo.py::test_with_one_agent_sharing_makes_no_difference[central-none",
    "test_export.py::test_exported_and_native_actions_agree[ippo-unlike",
    "test_cli.py::test_off_policy_learners_say_what_their_replay_takes",
    "test_shac.py::test_a_run_cut_in_two_is_the_same_run",
    "test_trackers.py::test_a_table_holds_every_metric_and_none_is_none",
    "test_openspiel.py::test_a_run",
    "test_joining.py::test_those_who_are_away_change_nothing_and_order_does_not_either[entities",
    "test_range.py::test_a_run_is_played_on_its_own_range_on_others_and_in_silence",
    "test_few.py::test_few_links_are_what_masks_make_of_them[tarmac-topology=ring,loss=0.4",
    "test_few.py::test_few_links_are_what_masks_make_of_them[tarmac-nearest=2,loss=0.4",
    "test_few.py::test_few_links_are_what_masks_make_of_them[gat-topology=ring,delay=1",
    "test_self_play.py::test_an_average_learns_like_the_plain_learner_and_keeps_its_second_half",
    "test_host.py::test_a_resumed_run_equals_an_uninterrupted_one",
    "test_population.py::test_a_population_that_never_ranks_is_the_plain_seeds_to_the_bit",
    "test_runs.py::test_a_run_that_was_stopped_with_mail_on_its_way_goes_on_as_if_it_was_not",
    "test_mpe.py::test_free_running_episodes_agree_in_double_precision[simple_formation-N=7-continuous",
    "test_credit.py::test_sampled_shapley_values_come_with_their_error",
    "test_range.py::test_sides_share_a_range",
    "test_range.py::test_neighbours_are_those_within_the_range[fleet",
    "test_export.py::test_an_exported_team_loses_the_messages_that_its_numbers_lose",
    "test_recorded_learners.py::test_the_soft_maximum_is_an_integral_over_actions",
    "test_images.py::test_the_network_scales_bytes_and_takes_several_pictures",
    "test_images.py::test_units_survive_bright_pictures_and_noise",
    "test_adversary.py::test_rewards_that_the_team_learns_from_are_shifted",
    "test_off_policy_memory.py::test_learning_sees_what_acting_remembered",
    "test_run_faults.py::test_a_full_disk_ends_training_with_a_sentence_and_resume_goes_on[3000",
    "test_exploit.py::test_the_exact_value_is_what_episodes_pay[kuhn",
    "test_learning_recorded.py::test_it_becomes_better_than_the_recording[implicit_q-choice",
    "test_learning_recorded.py::test_without_its_idea_it_does_not[implicit_q-real",
    "test_cli.py::test_seeds_side_by_side",
    "test_bonus.py::test_the_replay_pays_the_bonus_of_now",
    "test_team_sizes.py::test_the_program_is_as_long_for_many_agents_as_for_few[mfac",
    "test_learners.py::test_learning_meets_the_luck_that_acting_had[tarmac",
    "test_opponents.py::test_a_scripted_opponent_is_seen_through",
    "test_tabular.py::test_many_environments_in_one_state_make_one_average",
    "test_adversary.py::test_observations_are_shifted_by_at_most_eps_and_the_team_learns_from_what_it_saw",
    "test_death.py::test_a_team_learns_that_a_sacrifice_pays[vdn",
    "test_off_policy.py::test_illegal_actions_are_never_taken[False-ddpg",
    "test_recorded_learners.py::test_a_step_towards_behaviour_matches_numpy[own-groups",
    "test_recorded_learners.py::test_without_advantages_policies_clone[True",
    "test_mixed.py::test_several_choices_at_once_train[parts-ppo-more0",
    "test_off_policy.py::test_one_gradient_step_matches_numpy[td3-own-groups",
    "test_bonus.py::test_models_get_used_to_what_they_see[RND",
    "test_reinforce.py::test_one_step_matches_a_gradient_by_hand[central-groups-settings3",
    "test_q_learning.py::test_the_loss_and_its_gradient_are_those_of_the_equations[qplex",
    "test_bonus.py::test_the_steps_of_unchanged_others_weigh_as_ever_and_those_of_others_do_not[none",
    "test_q_learning.py::test_vdn_with_one_agent_is_iql_to_the_bit",
    "test_mixed.py::test_one_discrete_and_one_continuous_agent_train[mappo",
    "test_sides.py::test_a_learner_of_shorter_rollouts_learns_from_the_pieces_in_turn[ippo",
    "test_recorded_learners.py::test_the_middle_expectile_is_a_mean_regression",
    "test_recorded_learners.py::test_without_behaviour_it_is_td3[True",
    "test_bonus_table.py::test_what_makes_sense_learns_and_resumes[row0",
    "test_opponents.py::test_past_selves_are_predicted_though_nobody_learns_for_them",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[td3-False",
    "test_off_policy.py::test_dead_agents_teach_nothing[ddpg-False",
    "test_off_policy.py::test_one_gradient_step_matches_numpy[ddpg-central-none",
    "test_opponents.py::test_weight_0_is_the_plain_learner",
    "test_off_policy_memory.py::test_learning_along_a_stretch_equals_a_loop_over_time[sac-False-settings2",
    "test_reinforce.py::test_with_gae_it_is_advantage_actor_critic[central-gru",
    "test_recorded_learners.py::test_without_caution_it_is_sac[False-central",
    "test_recorded_learners.py::test_the_gap_of_real_actions_matches_numpy[own-groups",
    "test_recorded_learners.py::test_a_step_of_implicit_q_matches_numpy[central-none",
    "test_off_policy.py::test_one_gradient_step_matches_numpy[sac-central-none",
    "test_off_policy.py::test_dead_agents_teach_nothing[sac-True",
    "test_off_policy.py::test_dead_agents_teach_nothing[sac-False",
    "test_off_policy.py::test_dead_agents_teach_nothing[ddpg-True",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[sac-False",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[ddpg-True",
    "test_bonus.py::test_without_scale_learners_learn_as_without_a_bonus[iql-own1",
    "test_sides.py::test_each_side_of_a_mixed_game_keeps_its_kind_of_actions[iql",
    "test_mixed.py::test_several_choices_at_once_train[row-ddpg-more1",
    "test_learned.py::test_a_server_is_reported",
    "test_ppo.py::test_a_magnet_that_is_the_policy_itself_does_not_pull_at_first",
    "test_ppo.py::test_with_one_agent_sharing_makes_no_difference[own-none",
    "test_ppo.py::test_loss_and_gradient_match_numpy[own-none-True",
    "test_ppo.py::test_loss_and_gradient_match_numpy[own-groups-True",
    "test_inside.py::test_attention_adds_up_over_the_living_that_may_be_heard[ippo-settings0",
    "test_inside.py::test_critics_with_memory_remember_the_episode_and_nothing_before[mappo",
    "test_acting_on_actors.py::test_rollouts_equal_local_ones[vdn-gru",
    "test_credit_learners.py::test_vdac_mixes_own_values_and_popart_leaves_them_where_they_were[monotonic",
    "test_heads.py::test_choices_of_like_sizes_keep_their_places[choices3",
    "test_offline.py::test_conservative_learning_follows_the_kind_of_actions",
    "test_offline.py::test_a_run_on_recorded_data_resumes_exactly[cql",
    "test_network.py::test_stretches_equal_a_loop_over_time_and_burn_in_passes_no_gradients[2-talk",
    "test_runs.py::test_the_report_shows_what_messages_do",
    "test_runs.py::test_the_command_line_tells_what_messages_do",
    "test_learners.py::test_experience_without_seeds_is_refused_on_policy",
    "test_learners.py::test_slopes_of_a_replay_learners_loss",
    "test_host.py::test_host_rollouts_equal_compiled_ones[spread-talk]",
    "test_host.py::test_training_with_workers_equals_training_without",
    "test_learning_off_policy.py::test_memory_is_needed[td3",
    "test_learning_off_policy.py::test_continuous_actions_hit_their_targets[isac]",
    "test_learning_probes.py::test_memory_is_needed",
    "test_learning_talk.py::test_without_messages_half_is_the_most",
    "test_longer.py::test_a_longer_run_that_is_killed",
    "test_longer.py::test_opponents_have_no_best_policy",
    "test_longer.py::test_what_depends_on_the_length_is_said",
    "test_longer.py::test_steps_that_fall_or_are_edited",
    "test_mixed.py::test_a_team_learns_from_the_recording_of_unlike_agents",
    "test_examples.py::test_example_runs[own_pettingzoo]",
    "test_bench.py::test_killed_in_the_middle_it_ends_with_the_same_table",
    "test_coming_from.py::test_a_snippet_runs_as_it_stands[pettingzoo]",
    "test_coming_from.py::test_a_snippet_runs_as_it_stands[rllib]",
    "test_register.py::test_a_registered_algorithm_plays_a_side",
    "test_adapters.py::test_such_teams_train",
    "test_ppo.py::test_with_one_agent_sharing_makes_no_difference[own-gru]",
    "test_ppo.py::test_with_one_agent_sharing_makes_no_difference[central-gru]",
    "test_sides_cli.py::test_two_unlike_learners_killed_and_resumed",
    "test_run_damage.py::test_damaged_runs_are_opened_or_refused",
    "test_trainer.py::test_a_loaded_trainer_goes_on_as_if_never_stopped[mappo]",
    "test_train.py::test_continuous_actions_stay_in_bounds",
    "test_train.py::test_policy_remembers_until_reset",
    "test_train.py::test_unlike_agents_train_in_every_variant[all-none-true]",
    "test_longer.py::test_the_best_policy_is_kept_beside_the_newest",
    "test_resume.py::test_a_seed_in_company_equals_the_seed_alone",
    "test_run_faults.py::test_other_settings_than_those_of_the_checkpoint",
    "test_run_faults.py::test_a_recording_that_lost_its_pieces",
    "test_run_faults.py::test_an_interrupted_recording_continues_exactly[parquet]",
    "test_run_faults.py::test_a_run_that_was_killed_after_writing_its_recording",
    "test_host.py::test_killing_workers_again_and_again",
    "test_host.py::test_host_rollouts_equal_compiled_ones[spread-gru]",
    "test_own_loop.py::test_a_learner_finds_the_probabilities_that_acting_noted",
    "test_examples.py::test_example_runs[own_algorithm]",
    "test_learning_off_policy.py::test_truncation_bootstraps_and_termination_does_not",
    "test_learning_off_policy.py::test_discrete_actions_follow_the_observation[sac]",
    "test_learning_recorded.py::test_it_becomes_better_than_the_recording[cql_continuous-real",
    "test_learning_recorded.py::test_it_becomes_better_than_the_recording[implicit_q-real",
    "test_recorded_learners.py::test_observations_count_in_units_of_their_deviation",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[cql",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[td3_bc",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[implicit_q",
    "test_off_policy.py::test_dead_agents_teach_nothing[cql",
    "test_off_policy.py::test_dead_agents_teach_nothing[td3_bc",
    "test_off_policy.py::test_dead_agents_teach_nothing[implicit_q",
    "test_off_policy_memory.py::test_learning_along_a_stretch_equals_a_loop_over_time[ddpg-False",
    "test_off_policy_memory.py::test_learning_along_a_stretch_equals_a_loop_over_time[sac-True",
    "test_recorded_learners.py::test_without_caution_it_is_sac[True-own",
    "test_recorded_learners.py::test_the_gap_of_real_actions_matches_numpy[central-none",
    "test_recorded_learners.py::test_without_behaviour_it_is_td3[False",
    "test_recorded_learners.py::test_a_step_towards_behaviour_matches_numpy[central",
    "test_recorded_learners.py::test_a_step_of_implicit_q_matches_numpy[own",
    "test_learners.py::test_learning_meets_the_luck_that_acting_had[dial",
    "test_learners.py::test_slopes_of_an_on_policy_loss_are_those_of_its_differences[dial",
    "test_mixed.py::test_several_choices_at_once_train[parts-ddpg",
    "test_mixed.py::test_one_discrete_and_one_continuous_agent_train[ippo",
    "test_learning_q.py::test_truncation_bootstraps_and_termination_does_not",
    "test_death.py::test_a_team_learns_that_a_sacrifice_pays[ireinforce",
    "test_learning_recorded.py::test_it_becomes_better_than_the_recording[td3_bc-real",
    "test_solve.py::test_strangers_in_the_lever_game",
    "test_sides.py::test_a_frozen_policy_stays_as_it_is[sided",
    "test_trainer.py::test_a_team_that_grows_keeps_what_it_learned[maddpg",
    "test_learning_probes.py::test_dead_agents_are_worth_nothing_and_teach_nothing",
    "test_learning_probes.py::test_actions_that_matter_are_found[maa2c",
    "test_host.py::test_host_rollouts_equal_compiled_ones[masks",
    "test_host.py::test_host_rollouts_equal_compiled_ones[state",
    "test_off_policy_memory.py::test_learning_along_a_stretch_equals_a_loop_over_time[ddpg-True",
    "test_own_loop.py::test_a_team_learns_in_somebody_elses_loop",
    "test_tabular.py::test_resuming_is_exact",
    "test_respawn.py::test_a_run_measures_success_and_its_recording_can_be_read",
    "test_learning_q.py::test_what_is_not_monotonic[wqmix",
    "test_learning_q.py::test_what_is_not_monotonic[qmix",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[td3-True",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[sac-True",
    "test_off_policy.py::test_one_agent_is_the_same_whatever_is_shared_or_seen[ddpg-False",
    "test_off_policy.py::test_one_gradient_step_matches_numpy[sac-own",
    "test_off_policy.py::test_dead_agents_teach_nothing[td3-True",
    "test_off_policy.py::test_illegal_actions_are_never_taken[False-td3",
    "test_learning_reinforce.py::test_masks_are_obeyed",
    "test_learning_reinforce.py::test_actions_are_chosen_by_observation[none",
    "test_death.py::test_a_team_learns_that_a_sacrifice_pays[mappo",
    "test_mixed.py::test_one_discrete_and_one_continuous_agent_train[maddpg",
    "test_mixed.py::test_one_discrete_and_one_continuous_agent_train[ireinforce",
    "test_coming_from.py::test_a_snippet_runs_as_it_stands[stable-baselines3",
    "test_learning_tabular.py::test_unlike_agents_each_learn_their_own",
    "test_learning_tabular.py::test_masks_are_obeyed",
    "test_learning_tabular.py::test_prisoners_defect",
    "test_learning_tabular.py::test_penalty_without_penalty_is_solved",
    "test_learning_tabular.py::test_climbing_ends_in_an_equilibrium",
)
"""Beginnings of tests that take long and are left to the slow set, beside those that are marked where they stand."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if f"{item.path.name}::{item.name}".startswith(LONG):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A finished MAPPO run on simple_spread."""
    import flockrl

    return flockrl.train("mappo", "mpe/simple_spread", out=tmp_path_factory.mktemp("runs") / "tiny", **TINY)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """An exported team of tests/relay that has not learned anything, version 0."""
    from relay_kit import SMALL, SPEC

    import flockrl

    path = tmp_path_factory.mktemp("model") / "0"
    trainer = flockrl.Trainer("ippo", SPEC, hyperparams=SMALL, envs=2, steps=400)
    flockrl.export(trainer.acquire_model(), path)
    return path


@pytest.fixture
def cli(capsys):
    """Run a command: (exit status, standard output, standard error)."""

    def run(*words):
        from flockrl.commands.main import main

        capsys.readouterr()
        status = main([str(word) for word in words])
        text = capsys.readouterr()
        return status, text.out, text.err

    return run
