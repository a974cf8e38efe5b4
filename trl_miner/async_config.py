"""`MinerAsyncGRPOConfig`: TRL's `AsyncGRPOConfig` with the settings of the methods, and what it
refuses."""

import os
from dataclasses import dataclass, field

from .config import RunConfig, SharedSettings
from .rules import check_derived
from .trl_asynchronous import TREE_ATTENTION as TREE_ATTENTION  # TRL before 1.16 is refused here
from .trl_asynchronous import AsyncGRPOConfig

# Our own settings that both trainers have, and those that say how `trl-miner launch` starts the
# server.
_SHARED = (
    *("advantage_estimator", "all_right", "all_wrong", "correct_threshold", "correct_reward_func"),
    *(
        "gate_on_correctness",
        "advantage_estimator_kwargs",
        "optimizer_batch_size",
        "overwrite_output_dir",
    ),
    *("miner_gamma", "miner_lambda_max", "miner_intrinsic", "log_token_credit"),
    *("vllm_tensor_parallel_size", "vllm_gpu_memory_utilization", "vllm_max_model_length"),
)
# The other settings of the synchronous trainer.
REFUSED = (
    RunConfig.__dataclass_fields__.keys() - AsyncGRPOConfig.__dataclass_fields__.keys() - {*_SHARED}
)


def _as_synchronous(cls: type) -> type:
    """Add the fields of `_SHARED` to a class, and where it has no field, the value that its
    training amounts to."""
    for name in _SHARED:
        model = RunConfig.__dataclass_fields__[name]
        setattr(cls, name, field(default=model.default, metadata=model.metadata))
        cls.__annotations__[name] = model.type
    for name in REFUSED:
        setattr(cls, name, RunConfig.__dataclass_fields__[name].default)
    cls.loss_type, cls.vllm_mode = "dapo", "server"  # type: ignore[attr-defined]
    return cls


@dataclass(repr=False)
@_as_synchronous
class MinerAsyncGRPOConfig(SharedSettings, AsyncGRPOConfig):
    """
    Configuration of [`MinerAsyncGRPOTrainer`]: everything TRL's `AsyncGRPOConfig` has, with its
    defaults, and the fields of `MinerGRPOConfig` that `_SHARED` names.
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
