"""`Core`: what the collaborators of `MinerGRPOTrainer` read of it, and nothing else of it.

mypy compares the trainer with this, and what a collaborator reads with this, too.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from .config import MinerGRPOConfig
from .reward_functions import Verifier


class Core(Protocol):
    """The trainer, as its collaborators see it: its members are TRL's where no type says more."""

    args: MinerGRPOConfig
    accelerator: Any
    model: Any
    optimizer: Any
    state: Any
    verifier: Verifier
    reward_weights: Tensor
    rollout_func: Any
    use_vllm: Any
    num_generations: int
    num_iterations: Any
    temperature: Any
    # the loss
    loss_type: Any
    beta: Any
    epsilon_low: Any
    epsilon_high: Any
    top_entropy_quantile: Any
    aux_loss_enabled: Any
    current_gradient_accumulation_steps: Any
    _entropy_bonus_enabled: Any
    # the generation batch under way, and the micro-step
    _buffered_inputs: Any
    _step: Any
    _pending_extra_logs: Any

    @property
    def forwards(self) -> "ForwardsOfRows": ...
    @property
    def optimizer_step(self) -> "StepUnderWay": ...
    def is_world_process_zero(self) -> bool: ...
    def log_train_metric(self, name: str, value: float) -> None: ...
    def catching_metrics(
        self,
    ) -> AbstractContextManager[dict[str, dict[str, list[float]]]]: ...
    def undoing_draws(self) -> AbstractContextManager[None]: ...
    def evaluating(self, *, as_training: bool = False) -> AbstractContextManager[None]: ...
    def micro_batch_loss(
        self, model: Any, inputs: dict[str, Any], weight: float = 1.0
    ) -> Tensor: ...
    def call_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        change: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
    ) -> Tensor: ...
    def trl_forward(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]: ...
    def note_rewards(self, rows: Any, rewards_NF: Tensor, completions: Any) -> None: ...
    def _generate(self, prompts: Any) -> tuple[Any, ...]: ...
    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor: ...
    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]: ...


class ForwardsOfRows(Protocol):
    """`scoring.Forwards`, as others see it."""

    @property
    def sorts_rows(self) -> bool: ...
    def logps(self, batch: dict[str, Any], batch_size: int) -> Tensor: ...


class StepUnderWay(Protocol):
    """`step.OptimizerStep`, as others see it."""

    @property
    def micro_step(self) -> int: ...
