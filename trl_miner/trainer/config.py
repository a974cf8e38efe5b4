"""`MinerGRPOConfig`: TRL's `GRPOConfig` with fourteen settings."""

import logging
import math
import os
from dataclasses import dataclass
from typing import Any

from trl import GRPOConfig

from ..common.names import setting
from ..methods import ESTIMATORS, POLICY_LOSSES
from ..methods.compose import NONE, Composition, find_composition, find_policy_loss
from ..methods.method import PolicyLoss
from ..methods.miner import REWARDS

logger = logging.getLogger(__name__)

# Losses of TRL that clip a ratio at every token; in the others a policy loss has nothing to change.
CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo")

# The least values of settings.
LEAST = {
    "correct_threshold": -math.inf,  # a number
    "miner_gamma": 0,
    "miner_lambda_max": 0,
    "optimizer_batch_size": 1,
    "max_tokens_per_micro_batch": 2,
}


@dataclass(repr=False)
class MinerGRPOConfig(GRPOConfig):
    """Configuration of `MinerGRPOTrainer`: TRL's `GRPOConfig`, and the fields below. TRL documents
    its own, which keep their defaults.

    Raises:
        ValueError: A setting is out of its range, or contradicts another.
    """

    advantage_estimator: str = setting(
        "miner",
        "Method that turns rewards into advantages:"
        f" {', '.join(ESTIMATORS)}; or the import path of your own, such as"
        " `my_lib.my_advantages`. A method for all-right prompts alone leaves the others to GRPO:"
        " `miner` means `grpo` with `all_right: miner`.",
    )
    all_right: str | None = setting(
        None,
        "Method for all-right prompts, those whose completions are all correct: the name of one"
        " that acts on them, an import path, or `none`, which gives them no advantage. By default"
        " `advantage_estimator` decides.",
    )
    correct_threshold: float = setting(
        1.0,
        "A completion is correct if the verifier's reward, before weighting, is at least this.",
    )
    correct_reward_func: str | None = setting(
        None,
        "The verifier: the reward function that decides what is correct, by its name in the metric"
        " `rewards/NAME/mean`. If each task has its own, join several by `+`; those that score the"
        " same completion must agree. By default it is the only reward function, or else, with a"
        " warning, all that have a weight together.",
    )
    advantage_estimator_kwargs: dict[str, Any] | str | None = setting(
        None,
        "Parameters of the methods of `advantage_estimator` and `all_right`, such as"
        " `{beta_pos: 0.3}` for `ucas`: a mapping in a recipe, JSON on a command line.",
    )
    miner_gamma: float = setting(
        2.0,
        "How strongly MINER favors tokens that the model was unsure of: a token of probability p"
        " gets the weight (1 - p)^gamma. At 0 all tokens weigh the same (the paper's ablation w/o"
        " FW).",
    )
    miner_lambda_max: float | None = setting(
        1.5e-3,
        "The most signal that MINER takes from all-right prompts, as a share of the signal of the"
        " mixed prompts in the same generation batch. 0 is plain GRPO. `inf`, or `null` in a"
        " recipe, removes the cap (the paper's ablation w/o AC).",
    )
    miner_intrinsic: str = setting(
        "nll",
        "What MINER rewards on all-right prompts. `nll` rewards completions that the model was"
        " unsure of. `certainty` rewards the opposite, and is not in the paper. `constant` rewards"
        " all of them with 0.05 (the paper's ablation w/o IR, which needs `miner_lambda_max:"
        " null`).",
    )
    policy_loss: str = setting(
        "clip",
        f"How the loss limits an update: {', '.join(POLICY_LOSSES)}. `clip` is TRL's own"
        " loss. The others need `loss_type` `grpo`, `bnpo`, `dr_grpo` or `dapo`, and importance"
        " sampling at token level; their numbers are those of one of TRL's micro-batches.",
    )
    policy_loss_kwargs: dict[str, Any] | str | None = setting(
        None,
        "Parameters of `policy_loss`, such as `{ratio: 0.002}`: a mapping in a recipe, JSON on a"
        " command line.",
    )
    optimizer_batch_size: int | None = setting(
        None,
        "Completions per optimizer step, over all processes. This sets"
        " `gradient_accumulation_steps`, so that a recipe is the same run on two GPUs and on"
        " eight.",
    )
    compute_less: bool = setting(
        True,
        "Leave out completions whose advantage is zero at every token, unless a KL penalty moves"
        " them, and sort the others into micro-batches by length, or, with an attention kernel of"
        " variable lengths, go without padding. The gradient stays the same. TRL's micro-batches"
        " stay if the loss depends on them (`top_entropy_quantile`, an entropy bonus, a router"
        " loss, a `policy_loss`, `loss_type: bnpo`), with `pad_to_multiple_of`, and for images and"
        " models whose log-probs depend on padding. `false` is TRL's step bit for bit.",
    )
    max_tokens_per_micro_batch: int | None = setting(
        None,
        "The most tokens in a micro-batch, prompts and padding included; a longer completion goes"
        " alone. There are never more micro-batches than TRL's, so that a value too small for that"
        " is exceeded. By default a micro-batch holds as many tokens as one of TRL's.",
    )
    dynamic_sampling: bool = setting(
        False,
        "DAPO's dynamic sampling (arXiv 2503.14476): generate for other prompts, in rounds of a"
        " whole batch, until the batch is full of prompts with both correct and wrong completions,"
        " in at most 10 rounds. Evaluation does not use it.",
    )

    __repr__ = GRPOConfig.__str__  # which hides secrets

    def __post_init__(self) -> None:
        self._check_own_settings()
        if self.optimizer_batch_size is not None:
            self.gradient_accumulation_steps = self._accumulation(self.optimizer_batch_size)
        super().__post_init__()
        self._warn_of_what_has_no_effect()

    @classmethod
    def of(cls, args: GRPOConfig) -> "MinerGRPOConfig":
        """Return TRL's settings with the defaults of ours. What TRL has derived stays as it is."""
        if isinstance(args, cls):
            return args
        config = cls.__new__(cls)
        vars(config).update(vars(args))  # what is missing has the default
        config._check_own_settings()
        return config

    @property
    def composition(self) -> Composition:
        """The advantage estimators of the run with their knobs."""
        return find_composition(
            self.advantage_estimator,
            self.all_right,
            kwargs=self.advantage_estimator_kwargs,
            settings=vars(self),
        )

    @property
    def policy_loss_method(self) -> tuple[PolicyLoss, dict[str, Any]]:
        """The method of `policy_loss` and its knobs."""
        return find_policy_loss(self.policy_loss, self.policy_loss_kwargs)

    def _check_own_settings(self) -> None:
        if self.miner_lambda_max == math.inf:  # on a command line the only way to say "no cap"
            self.miner_lambda_max = None
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}: got {value}. Or leave it out.")
        if self.miner_intrinsic not in REWARDS:
            given = self.miner_intrinsic
            raise ValueError(f"miner_intrinsic must be one of {REWARDS}: got {given!r}.")
        composition = self.composition  # raises its own errors
        if self.policy_loss_method[0].function is not None:
            self._check_policy_loss()
        if self.dynamic_sampling and composition.all_right not in (None, NONE):
            raise ValueError(
                "dynamic_sampling drops the all-right prompts that"
                f" {composition.all_right.label} learns from. Leave it out; or, to learn from"
                " mixed prompts alone, set `advantage_estimator: grpo` without all_right."
            )

    def _check_policy_loss(self) -> None:
        losses, delta = ", ".join(CLIPPED_LOSSES), self.delta not in (None, math.inf)
        wrong = {
            "importance_sampling_level: token": self.importance_sampling_level != "token",
            f"a clipped loss_type, {losses}": self.loss_type not in CLIPPED_LOSSES,
            "delta left out, which bounds a clipping": delta and self.policy_loss == "kl_cov",
            "use_adaptive_entropy left out": self.use_adaptive_entropy,
        }
        for needed in (needed for needed, is_wrong in wrong.items() if is_wrong):
            raise ValueError(f"policy_loss={self.policy_loss} needs {needed}. Or set it to clip.")

    def _accumulation(self, optimizer_batch_size: int) -> int:
        per_device, processes = (
            self.per_device_train_batch_size,
            int(os.environ.get("WORLD_SIZE") or 1),  # known before the processes have met
        )
        wanted, rest = divmod(optimizer_batch_size, per_device * processes)
        if wanted < 1 or rest:
            raise ValueError(
                "optimizer_batch_size must be a multiple of per_device_train_batch_size times the"
                f" number of processes: got {optimizer_batch_size} for {per_device} x {processes}."
                " Change the batch per device, or launch another number of processes."
            )
        if self.gradient_accumulation_steps not in (1, wanted):
            raise ValueError(
                f"optimizer_batch_size={optimizer_batch_size} makes gradient_accumulation_steps"
                f" {wanted}: got {self.gradient_accumulation_steps}. Leave one of them out."
            )
        return wanted

    def _warn_of_what_has_no_effect(self) -> None:
        is_miner = any(method.settings for method in self.composition.methods)
        cycle = (self.steps_per_generation or 1) * self.num_iterations
        is_on_policy = self.gradient_accumulation_steps % cycle == 0
        if self.policy_loss_method[0].off_policy_only and is_on_policy:
            logger.warning(
                f"policy_loss={self.policy_loss} does nothing strictly on-policy, where every"
                " probability ratio is 1. Raise steps_per_generation or num_iterations."
            )
        is_averaged = self.loss_type not in ("cispo", "vespo")
        if is_miner and self.importance_sampling_level == "sequence" and is_averaged:
            logger.warning(
                "importance_sampling_level=sequence averages the advantages of a completion, so"
                " that MINER's do not reach single tokens. Use token."
            )
