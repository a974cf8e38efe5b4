"""The settings of this package by group, as docstrings, `--help` and the guides show them."""

from dataclasses import Field, fields
from typing import Any

GROUPS = {
    "Method": "advantage_estimator all_right all_wrong advantage_estimator_kwargs miner_gamma"
    " miner_lambda_max miner_intrinsic entropy_weight dose_share policy_loss policy_loss_kwargs",
    "What counts as correct": "correct_reward_func correct_threshold gate_on_correctness",
    "Data": "dataset_revision dataset_prompt_column dataset_solution_column dataset_options_column"
    " options_columns context_columns first_option answer_pattern answer_after decimal_comma"
    " system_prompt prompt_template prompt_style task_config tasks task_size task_seed",
    "Rewards": "reward_funcs math_accept_unboxed judge_seconds judge_workers soft_overlong_cache",
    "Tools": "tools environment_factory rollout_func tool_seconds",
    "Sampling": "dynamic_sampling adaptive_sampling_rounds prompt_selection",
    "Scoring": "held_out score_samples score_final_samples score_steps score_batch_size keep_best"
    " early_stop",
    "Speed and memory": "optimizer_batch_size compute_less max_tokens_per_micro_batch",
    "The run": "asynchronous accelerate_config overwrite_output_dir watchdog_seconds quiet",
    "Logging": "log_gradient_share log_token_credit",
}


def grouped(*classes: Any) -> dict[str, list[Field[Any]]]:
    """Return the settings of this package that configuration classes have, by the title of their
    group.

    Raises:
        ValueError: A setting is in no group.
    """
    settings = {
        setting.name: setting
        for kind in classes
        for setting in fields(kind)
        if "limits" in setting.metadata
    }
    groups = {
        title: [settings.pop(name) for name in names.split() if name in settings]
        for title, names in GROUPS.items()
    }
    if settings:
        raise ValueError(f"GROUPS must have all settings: {', '.join(settings)} is in no group.")
    return {title: members for title, members in groups.items() if members}
