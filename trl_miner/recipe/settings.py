"""The settings of a run that neither TRL nor the trainer nor the data has."""

from dataclasses import dataclass

from ..common.names import setting


@dataclass
class RunArguments:
    """Rewards, scores before and after, and what is shown and kept."""

    reward_funcs: list[str] | None = setting(
        None,
        "Reward functions: math_reward, choice_reward, TRL's, or import paths such as"
        " `my_rewards.short`. Of several, `correct_reward_func` names the verifier. The default is"
        " choice_reward where the rows have options, else math_reward.",
    )
    soft_overlong_cache: int = setting(
        256,
        "Tokens at the end of `max_completion_length` that cost reward, with"
        " `get_soft_overlong_punishment`.",
    )
    tools: list[str] | None = setting(None, "Import paths of functions that the model may call.")
    environment_factory: str | None = setting(
        None, "Import path of a class whose methods are tools; one object per completion."
    )
    rollout_func: str | None = setting(
        None, "Import path of a function that generates the completions, as TRL describes it."
    )
    held_out: float | str | None = setting(
        0,
        "Problems to score before and after the training, never trained on: a number, a share"
        " below 1, or a benchmark such as `gsm8k:200` or `NAME=PATH`. 0: none.",
    )
    score_samples: int = setting(8, "Completions of each held-out problem.")
    score_steps: int = setting(0, "Also score every this many optimizer steps; 0: not between.")
    score_batch_size: int = setting(256, "Completions of held-out problems drawn at once.")
    log_token_credit: int = setting(
        0, "Record what each token was paid every this many optimizer steps; 0: never."
    )
    accelerate_config: str | None = setting(
        None, "For launch: accelerate's configuration, a file seen from the recipe's folder."
    )
    quiet: bool = setting(False, "Show only scores, warnings and errors.")

    def __post_init__(self) -> None:
        try:
            number = float(self.held_out or 0)
        except ValueError:
            return  # a benchmark, which `load_training_data` finds
        self.held_out = int(number) if number.is_integer() else number
