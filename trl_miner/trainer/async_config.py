"""`MinerAsyncGRPOConfig`: TRL's `AsyncGRPOConfig` with the settings of the methods, and what it
refuses."""

import os
from dataclasses import dataclass, field
from typing import get_type_hints

from .config import RunConfig, SharedSettings
from .rules import check_derived
from .trl_asynchronous import TREE_ATTENTION as TREE_ATTENTION  # TRL before 1.16 is refused here
from .trl_asynchronous import AsyncGRPOConfig

# Our own settings that both trainers have, and those that say how `trl-miner launch` starts the
# server.
_SHARED = """
    advantage_estimator all_right all_wrong correct_threshold correct_reward_func
    gate_on_correctness advantage_estimator_kwargs optimizer_batch_size overwrite_output_dir
    miner_gamma miner_lambda_max miner_intrinsic log_token_credit vllm_tensor_parallel_size
    vllm_gpu_memory_utilization vllm_max_model_length
    """.split()
# The other settings of the synchronous trainer.
REFUSED = (
    RunConfig.__dataclass_fields__.keys() - AsyncGRPOConfig.__dataclass_fields__.keys() - {*_SHARED}
)


def _as_synchronous(cls: type) -> type:
    """Add the fields of `_SHARED` to a class, and where it has no field, the value that its
    training amounts to."""
    hints = get_type_hints(RunConfig)
    for name in _SHARED:
        model = RunConfig.__dataclass_fields__[name]
        setattr(cls, name, field(default=model.default, metadata=model.metadata))
        cls.__annotations__[name] = hints[name]
    for name in REFUSED:
        setattr(cls, name, RunConfig.__dataclass_fields__[name].default)
    cls.loss_type, cls.vllm_mode = "dapo", "server"  # type: ignore[attr-defined]
    return cls


@dataclass(repr=False)
@_as_synchronous
class MinerAsyncGRPOConfig(SharedSettings, AsyncGRPOConfig):
    """Configuration of `MinerAsyncGRPOTrainer`: TRL's `AsyncGRPOConfig` with the settings below, and
    of `GRPOConfig` those of vLLM's server: `vllm_tensor_parallel_size`,
    `vllm_gpu_memory_utilization` and `vllm_max_model_length`.

    TRL's settings keep their defaults, which TRL documents.

    Args:
        > Method

        advantage_estimator (`str`, *optional*, defaults to `"miner"`):
            Method that turns rewards into advantages: `miner` (arXiv 2601.04731), `grpo` (arXiv
            2402.03300), `reinforce_pp` (arXiv 2501.03262), `reinforce_pp_baseline` (arXiv
            2501.03262), `ucas` (arXiv 2510.10649), `entropy_adv` (arXiv 2506.14758), `rl_zvp`
            (arXiv 2509.21880), `entropy`; or the import path of your own, such as
            `my_lib.my_advantages`. It decides for mixed prompts, and for all-right and all-wrong
            prompts unless `all_right` and `all_wrong` name another. If it has no advantage for
            mixed prompts, GRPO decides there: `miner` means `grpo` with `all_right: miner`.

        all_right (`str | None`, *optional*, defaults to `None`):
            Method for all-right prompts, those whose completions are all correct: `entropy`,
            `miner`, `reinforce_pp`, `reinforce_pp_baseline`, `rl_zvp`, `ucas`, the import path of
            your own, or `none`, which gives them no advantage. By default `advantage_estimator`
            decides.

        all_wrong (`str | None`, *optional*, defaults to `None`):
            Method for all-wrong prompts, those whose completions are all incorrect: `reinforce_pp`,
            `reinforce_pp_baseline`, `rl_zvp`, `ucas`, the import path of your own, or `none`. By
            default `advantage_estimator` decides.

        advantage_estimator_kwargs (`dict[str, Any] | str | None`, *optional*, defaults to `None`):
            Parameters of the methods' functions, such as `{alpha: 0.2}` for `rl_zvp`: a mapping in
            a recipe, JSON on a command line. MINER and `entropy` have settings of their own
            instead.

        miner_gamma (`float`, *optional*, defaults to `2.0`):
            How strongly MINER favors tokens that the model was unsure of: a token of probability p
            gets the weight (1 - p)^gamma. At 0 all tokens weigh the same (the paper's ablation w/o
            FW).

        miner_lambda_max (`float | None`, *optional*, defaults to `0.0015`):
            The most signal that MINER takes from all-right prompts, as a share of the signal of the
            mixed prompts in the same generation batch. 0 is plain GRPO. `inf`, or `null` in a
            recipe, removes the cap (the paper's ablation w/o AC).

        miner_intrinsic (`str`, *optional*, defaults to `"nll"`):
            What MINER rewards on all-right prompts. `nll` rewards completions that the model was
            unsure of. `certainty` rewards the opposite, and is not in the paper. `constant` rewards
            all of them with 0.05 (the paper's ablation w/o IR, which needs `miner_lambda_max:
            null`).

        > What counts as correct

        correct_reward_func (`str | None`, *optional*, defaults to `None`):
            The verifier: the reward function that decides what is correct, by its name in the
            metric `rewards/NAME/mean`. If each task has its own, give several, joined by `+` or as
            a list; those that score the same completion must agree. By default it is the only
            reward function, or else the known verifiers among them (`math_reward`, `choice_reward`,
            `task_reward`, `accuracy_reward`, `reasoning_accuracy_reward`), or else, with a warning,
            all of them together. A prompt is neither all right nor all wrong if the verifier leaves
            one of its completions unscored.

        correct_threshold (`float`, *optional*, defaults to `1.0`):
            A completion is correct if the verifier's reward, before weighting, is at least this.

        gate_on_correctness (`bool`, *optional*, defaults to `False`):
            Let correctness alone decide which prompts are all right or all wrong, even if a reward
            for format or length differs between their completions. That reward then gives these
            prompts no advantage, and `all_right` and `all_wrong` apply to them.

        > Speed and memory

        optimizer_batch_size (`int | None`, *optional*, defaults to `None`):
            Completions per optimizer step, over all processes. This sets
            `gradient_accumulation_steps`, so that a recipe is the same run on two GPUs and on
            eight.

        > The run

        overwrite_output_dir (`bool`, *optional*, defaults to `False`):
            Delete what earlier runs have written into `output_dir` before a run starts there; other
            files stay. Without it, a folder in which a run has finished a step is an error. A run
            that resumes from a checkpoint of the folder deletes nothing.

        > Logging

        log_token_credit (`int`, *optional*, defaults to `0`):
            Record every this many optimizer steps the credit of each token of up to 64 completions,
            in `credit/credit_STEP.parquet` of `output_dir`, for `trl-miner inspect`; 0 is never. If
            no part of the step has computed their log-probs, a record costs one forward pass.
    """

    def __post_init__(self) -> None:
        self._check()
        super().__post_init__()
        self._derive()

    @classmethod
    def of(cls, args: AsyncGRPOConfig) -> "MinerAsyncGRPOConfig":
        """Return TRL's settings with the defaults of ours. What TRL has derived stays as it is."""
        config = cls.__new__(cls)
        for name, setting in cls.__dataclass_fields__.items():
            setattr(config, name, getattr(args, name, setting.default))
        config.__dict__.update(vars(args))
        config._check()
        config._derive()
        return config

    def _check(self) -> None:
        self._check_own_fields()
        for method in self.estimators:
            missing = [
                *sorted(method.scores - {"old_logps"}),
                *["record of prompts"] * method.reads_past,
            ]
            if missing:
                raise ValueError(
                    "The asynchronous trainer has the log-probs of the server, and no"
                    f" {', '.join(missing)}: got the method {method.name!r}, which needs that."
                    " Choose another, or train with MinerGRPOConfig."
                )
        if self.deepspeed is not None or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
            raise ValueError(
                "DeepSpeed does not work with TRL's asynchronous trainer: got"
                f" deepspeed={self.deepspeed!r}, or an accelerate_config with it. Leave it out, or"
                " use FSDP: recipes/accelerate/fsdp2.yaml."
            )
        self._set_accumulation()
        # the rollouts of a window, whose advantages are estimated together: those of an optimizer
        # step
        self.steps_per_generation = self.gradient_accumulation_steps
        size = (
            self.per_device_train_batch_size * self.gradient_accumulation_steps * self.num_processes
        )
        self.generation_batch_size = size
        if size % self.num_generations:
            raise ValueError(
                "per_device_train_batch_size x gradient_accumulation_steps x processes must hold"
                f" whole groups: got {size} rollouts for num_generations={self.num_generations}."
                " Make it a multiple."
            )

    def _derive(self) -> None:
        self.use_vllm = not self.use_cpu
        if self.use_cpu and self.token_budget is None:  # TRL would ask the server
            self.token_budget = 0
        check_derived(self)


@dataclass(repr=False)
class RecipeConfig(MinerAsyncGRPOConfig):
    """The settings of a recipe, where `dtype` is one of TRL's `ModelConfig`."""

    dtype: str = field(default="float32", init=False)
