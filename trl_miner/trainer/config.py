"""`MinerGRPOConfig`: TRL's `GRPOConfig` with the settings of the trainer and the knobs of the
methods."""

import copy
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trl import GRPOConfig

from ..common.redaction import redact
from ..common.setting import convert_fields, setting
from ..methods import DYNAMIC_SAMPLING, ESTIMATORS, GSPO, POLICY_LOSSES, REINFORCE_ADA, SELECTIONS
from ..methods.compose import ALL_RIGHT, ALL_WRONG, Composition, estimators_of, find_composition
from ..methods.method import AdvantageEstimator, Method, PolicyLoss
from ..methods.miner import REWARDS
from ..methods.own import read_knobs
from .rules import check_derived, check_settings


class SharedSettings:
    """What the settings of the synchronous and of the asynchronous trainer have in common."""

    if TYPE_CHECKING:  # their fields, and TRL's
        __dataclass_fields__: ClassVar[dict[str, Any]]
        adaptive_sampling_rounds: int
        advantage_estimator: Any
        advantage_estimator_kwargs: Any
        all_right: str | None
        all_wrong: str | None
        chat_template_kwargs: Any
        correct_reward_func: Any
        dose_share: float | None
        dynamic_sampling: bool
        generation_batch_size: Any
        gradient_accumulation_steps: Any
        importance_sampling_level: str
        miner_lambda_max: Any
        model_init_kwargs: Any
        num_generations: Any
        num_iterations: int
        optimizer_batch_size: int | None
        per_device_train_batch_size: int
        policy_loss: str
        policy_loss_kwargs: Any
        prompt_selection: str
        steps_per_generation: Any
        token_budget: Any

    @property
    def composition(self) -> Composition:
        """The advantage estimator of each kind of prompt."""
        return find_composition(self.advantage_estimator, self.all_right, self.all_wrong)

    @property
    def estimators(self) -> tuple[AdvantageEstimator, ...]:
        """The records of all advantage estimators that have a part in the run."""
        return self.composition.methods

    @property
    def num_processes(self) -> int:
        """The number of launched processes, known before they have met."""
        return int(os.environ.get("WORLD_SIZE") or 1)

    def _set_accumulation(self) -> None:
        if self.optimizer_batch_size is None:
            return
        given = self.gradient_accumulation_steps
        per_device, processes = self.per_device_train_batch_size, self.num_processes
        wanted, rest = divmod(self.optimizer_batch_size, per_device * processes)
        if wanted < 1 or rest:
            raise ValueError(
                "optimizer_batch_size must be a multiple of per_device_train_batch_size times the"
                f" number of processes: got {self.optimizer_batch_size} for {per_device} x"
                f" {processes}. Change the batch per device, or launch another number of processes."
            )
        if given not in (1, wanted):
            raise ValueError(
                f"optimizer_batch_size={self.optimizer_batch_size} makes"
                f" gradient_accumulation_steps {wanted}: got gradient_accumulation_steps={given}."
                " Leave one of them out."
            )
        self.gradient_accumulation_steps = wanted

    @property
    def optimizer_steps_per_generation(self) -> float:
        """The number of optimizer steps per generation batch; below 1 where a step takes several
        batches."""
        return self.steps_per_generation * self.num_iterations / self.gradient_accumulation_steps

    @property
    def policy_loss_method(self) -> PolicyLoss:
        """The record of `policy_loss`."""
        return POLICY_LOSSES[self.policy_loss]

    @property
    def methods(self) -> tuple[Method, ...]:
        """The records of all methods that have a part in the run."""
        parts: dict[Method, bool] = {
            self.policy_loss_method: self.policy_loss_method.function is not None,
            GSPO: self.importance_sampling_level != "token",
            DYNAMIC_SAMPLING: self.dynamic_sampling,
            REINFORCE_ADA: self.adaptive_sampling_rounds > 1,
            **{method: self.prompt_selection == name for name, method in SELECTIONS.items()},
        }
        return *self.estimators, *(method for method, has_part in parts.items() if has_part)

    def knobs(self, method: Method) -> dict[str, Any]:
        """Return the settings of a method by the names that its function takes; others have its
        defaults."""
        kwargs = (
            self.policy_loss_kwargs
            if isinstance(method, PolicyLoss)
            else self.advantage_estimator_kwargs
        )
        given = {name: value for name, value in (kwargs or {}).items() if name in method.knobs}
        return given | {name: self._value_of(field) for name, field in method.settings.items()}

    def _value_of(self, field: str) -> Any:
        """Return a field's value; None for the cap that `dose_share` takes the place of."""
        return (
            None
            if field == "miner_lambda_max" and self.dose_share is not None
            else getattr(self, field)
        )

    def without_secrets(self) -> "SharedSettings":
        """Return a copy for a file: its secrets are `***`, and `hub_token` is None."""
        public = copy.copy(self)
        public.__dict__.update({**redact(vars(self)), "hub_token": None})
        return public

    def to_dict(self) -> dict[str, Any]:
        """Return the settings without secrets: trackers get them so."""
        shown: dict[str, Any] = super(SharedSettings, self.without_secrets()).to_dict()  # type: ignore[misc]
        # transformers writes <HUB_TOKEN> where there is none, too
        return {
            name: None if getattr(self, name, 0) is None else value for name, value in shown.items()
        }

    def __str__(self) -> str:
        return super(SharedSettings, self.without_secrets()).__str__()

    __repr__ = __str__

    def _check_own_fields(self) -> None:
        """Bring the fields that have several spellings into one, and check all."""
        convert_fields(self)
        assert self.composition  # its errors show the setting as it was written
        self.advantage_estimator = self.advantage_estimator.strip()
        if isinstance(self.correct_reward_func, list | tuple):
            self.correct_reward_func = "+".join(map(str, self.correct_reward_func)) or None
        self.advantage_estimator_kwargs = read_knobs(
            "advantage_estimator_kwargs", self.advantage_estimator_kwargs, self.estimators
        )
        loss = [self.policy_loss_method] if self.policy_loss in POLICY_LOSSES else []
        self.policy_loss_kwargs = read_knobs("policy_loss_kwargs", self.policy_loss_kwargs, loss)
        if self.miner_lambda_max == math.inf:  # on a command line the only way to say "none"
            self.miner_lambda_max = None
        check_settings(self)


def _divisors(message: str) -> str:
    """Return which numbers of completions TRL would take, behind its message on one that does not
    divide the batch; empty: it says something else."""
    found = re.fullmatch(r"\S+ \((\d+)\) must be divisible by num_generations \(\d+\)\.", message)
    if not found:
        return ""
    size = int(found[1])
    numbers = [str(number) for number in range(2, min(size, 64) + 1) if size % number == 0]
    return f" Set num_generations to {', '.join(numbers)}, or change the batch."


def _values(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _names(methods: Iterable[Method]) -> str:
    """Return the names of methods, each with its paper, if it has one."""
    return ", ".join(
        f"`{method.name}`" + f" (arXiv {method.arxiv})" * bool(method.arxiv) for method in methods
    )


@dataclass(repr=False)  # that of transformers shows secrets, and dataclass would write another
class MinerGRPOConfig(SharedSettings, GRPOConfig):
    """Configuration of `MinerGRPOTrainer`: TRL's `GRPOConfig` with the settings below.

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

        entropy_weight (`float`, *optional*, defaults to `0.001`):
            Coefficient of the entropy bonus (`all_right: entropy`), in units of advantage per nat.
            0 is GRPO.

        dose_share (`float | None`, *optional*, defaults to `None`):
            Share of the policy gradient that the methods of `all_right` and `all_wrong` get, such
            as MINER's share of the gradient: the norm of their part, divided by the sum of the
            norms of both parts. It lies between 0 and 1, and replaces caps such as
            `miner_lambda_max`. The first 8 optimizer steps and every 25th are measured, which costs
            another pass through the model and memory for two more gradients. It does not work with
            DeepSpeed, FSDP or fp16.

        policy_loss (`str`, *optional*, defaults to `"clip"`):
            How the loss limits an update: `clip` (arXiv 2402.03300), `clip_cov` (arXiv 2505.22617),
            `kl_cov` (arXiv 2505.22617), `bapo` (arXiv 2510.18927). `clip` is TRL's own loss. The
            others need `loss_type` `grpo`, `bnpo`, `dr_grpo` or `dapo`, and importance sampling at
            token level.

        policy_loss_kwargs (`dict[str, Any] | str | None`, *optional*, defaults to `None`):
            Parameters of `policy_loss`, such as `{ratio: 0.002}`: a mapping in a recipe, JSON on a
            command line.

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

        > Sampling

        dynamic_sampling (`bool`, *optional*, defaults to `False`):
            DAPO's dynamic sampling (arXiv 2503.14476): replace all-right and all-wrong prompts by
            other prompts until the batch is full, in at most 10 generations. Evaluation does not
            use it. The number of steps stays the same, so a run goes through its data sooner;
            `dynamic_sampling/epoch` logs how far it is.

        adaptive_sampling_rounds (`int`, *optional*, defaults to `1`):
            Reinforce-Ada (arXiv 2510.04996): sample a prompt in up to this many rounds of
            `num_generations` completions, until half of a group can be right and half wrong. That
            group is trained, with the mean and the deviation of all completions. A prompt that
            stays all right or all wrong keeps its first group, which MINER sees whole. 1 is
            ordinary sampling.

        prompt_selection (`str`, *optional*, defaults to `"none"`):
            Which prompts to generate for less often. `greso` (arXiv 2506.02177) skips prompts that
            have been all right or all wrong many times in a row, though not for good. `thompson`
            (MoPPS, arXiv 2507.04632) takes, of four candidates, the prompt whose pass rate is
            probably nearest to one half. Both skip prompts that MINER learns from.

        > Speed and memory

        optimizer_batch_size (`int | None`, *optional*, defaults to `None`):
            Completions per optimizer step, over all processes. This sets
            `gradient_accumulation_steps`, so that a recipe is the same run on two GPUs and on
            eight.

        compute_less (`bool`, *optional*, defaults to `True`):
            Skip completions whose advantage is zero at every token, unless a KL penalty moves them,
            and sort the others into micro-batches by length. The gradient stays the same. TRL's
            micro-batches are kept if the loss depends on them (`top_entropy_quantile`, an entropy
            bonus, a router loss, Clip-Cov, KL-Cov, `loss_type: bnpo`), with `pad_to_multiple_of`,
            and for models that see padding or images. Metrics of the loss become means over the
            tokens that remain.

        max_tokens_per_micro_batch (`int | None`, *optional*, defaults to `None`):
            The most tokens in a micro-batch, prompts and padding included: an optimizer step is cut
            into as few micro-batches as this allows, and a longer completion goes alone. By
            default, a micro-batch on a GPU holds as many tokens as one of TRL's, and on a CPU there
            are as many micro-batches as TRL makes.

        > Logging

        log_gradient_share (`int`, *optional*, defaults to `0`):
            Measure every this many optimizer steps how much of the policy gradient comes from
            all-right prompts, or from the prompts that `dose_share` acts on; 0 is never. It logs
            `miner/ph_gradient_norm`, `miner/other_gradient_norm`, `miner/ph_gradient_share` and
            `miner/gradient_cosine`, without KL penalty, entropy bonus and router loss. Training
            stays the same, bit for bit. A measured step costs as much as one of `dose_share`, and
            DeepSpeed, FSDP and fp16 are not supported.
    """

    advantage_estimator: str = setting(
        "miner",
        "Method that turns rewards into advantages:"
        f" {_names(ESTIMATORS.values())}; or the import path of your own, such as"
        " `my_lib.my_advantages`. It decides for mixed prompts, and for all-right and all-wrong"
        " prompts unless `all_right` and `all_wrong` name another. If it has no advantage for mixed"
        " prompts, GRPO decides there: `miner` means `grpo` with `all_right: miner`.",
    )
    all_right: str | None = setting(
        None,
        "Method for all-right prompts, those whose completions are all correct:"
        f" {_values(estimators_of(ALL_RIGHT))}, the import path of your own, or `none`, which gives"
        " them no advantage. By default `advantage_estimator` decides.",
    )
    all_wrong: str | None = setting(
        None,
        "Method for all-wrong prompts, those whose completions are all incorrect:"
        f" {_values(estimators_of(ALL_WRONG))}, the import path of your own, or `none`. By default"
        " `advantage_estimator` decides.",
    )
    correct_threshold: float = setting(
        1.0,
        "A completion is correct if the verifier's reward, before weighting, is at least this.",
    )
    correct_reward_func: str | None = setting(
        None,
        "The verifier: the reward function that decides what is correct, by its name in the metric"
        " `rewards/NAME/mean`. If each task has its own, give several, joined by `+` or as a list;"
        " those that score the same completion must agree. By default it is the only reward"
        " function, or else the known verifiers among them (`math_reward`, `choice_reward`,"
        " `task_reward`, `accuracy_reward`, `reasoning_accuracy_reward`), or else, with a warning,"
        " all of them together. A prompt is neither all right nor all wrong if the verifier leaves"
        " one of its completions unscored.",
    )
    gate_on_correctness: bool = setting(
        False,
        "Let correctness alone decide which prompts are all right or all wrong, even if a reward"
        " for format or length differs between their completions. That reward then gives these"
        " prompts no advantage, and `all_right` and `all_wrong` apply to them.",
    )
    advantage_estimator_kwargs: dict[str, Any] | str | None = setting(
        None,
        "Parameters of the methods' functions, such as `{alpha: 0.2}` for `rl_zvp`: a mapping in a"
        " recipe, JSON on a command line. MINER and `entropy` have settings of their own instead.",
    )
    miner_gamma: float = setting(
        2.0,
        "How strongly MINER favors tokens that the model was unsure of: a token of probability p"
        " gets the weight (1 - p)^gamma. At 0 all tokens weigh the same (the paper's ablation w/o"
        " FW).",
        at_least=0,
    )
    miner_lambda_max: float | None = setting(
        1.5e-3,
        "The most signal that MINER takes from all-right prompts, as a share of the signal of the"
        " mixed prompts in the same generation batch. 0 is plain GRPO. `inf`, or `null` in a"
        " recipe, removes the cap (the paper's ablation w/o AC).",
        at_least=0,
        or_none=True,
    )
    miner_intrinsic: str = setting(
        "nll",
        "What MINER rewards on all-right prompts. `nll` rewards completions that the model was"
        " unsure of. `certainty` rewards the opposite, and is not in the paper. `constant` rewards"
        " all of them with 0.05 (the paper's ablation w/o IR, which needs `miner_lambda_max:"
        " null`).",
        one_of=REWARDS,
    )
    entropy_weight: float = setting(
        1e-3,
        "Coefficient of the entropy bonus (`all_right: entropy`), in units of advantage per nat. 0"
        " is GRPO.",
        at_least=0,
    )
    dose_share: float | None = setting(
        None,
        "Share of the policy gradient that the methods of `all_right` and `all_wrong` get, such as"
        " MINER's share of the gradient: the norm of their part, divided by the sum of the norms of"
        " both parts. It lies between 0 and 1, and replaces caps such as `miner_lambda_max`. The"
        " first 8 optimizer steps and every 25th are measured, which costs another pass through the"
        " model and memory for two more gradients. It does not work with DeepSpeed, FSDP or fp16.",
    )
    policy_loss: str = setting(
        "clip",
        f"How the loss limits an update: {_names(POLICY_LOSSES.values())}. `clip` is TRL's own"
        " loss. The others need `loss_type` `grpo`, `bnpo`, `dr_grpo` or `dapo`, and importance"
        " sampling at token level.",
        one_of=POLICY_LOSSES,
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
        "Skip completions whose advantage is zero at every token, unless a KL penalty moves them,"
        " and sort the others into micro-batches by length. The gradient stays the same. TRL's"
        " micro-batches are kept if the loss depends on them (`top_entropy_quantile`, an entropy"
        " bonus, a router loss, Clip-Cov, KL-Cov, `loss_type: bnpo`), with `pad_to_multiple_of`,"
        " and for models that see padding or images. Metrics of the loss become means over the"
        " tokens that remain.",
    )
    max_tokens_per_micro_batch: int | None = setting(
        None,
        "The most tokens in a micro-batch, prompts and padding included: an optimizer step is cut"
        " into as few micro-batches as this allows, and a longer completion goes alone. By default,"
        " a micro-batch on a GPU holds as many tokens as one of TRL's, and on a CPU there are as"
        " many micro-batches as TRL makes.",
        at_least=2,
    )
    log_gradient_share: int = setting(
        0,
        "Measure every this many optimizer steps how much of the policy gradient comes from"
        " all-right prompts, or from the prompts that `dose_share` acts on; 0 is never. It logs"
        " `miner/ph_gradient_norm`, `miner/other_gradient_norm`, `miner/ph_gradient_share` and"
        " `miner/gradient_cosine`, without KL penalty, entropy bonus and router loss. Training"
        " stays the same, bit for bit. A measured step costs as much as one of `dose_share`, and"
        " DeepSpeed, FSDP and fp16 are not supported.",
        at_least=0,
    )
    dynamic_sampling: bool = setting(
        False,
        "DAPO's dynamic sampling (arXiv 2503.14476): replace all-right and all-wrong prompts by"
        " other prompts until the batch is full, in at most 10 generations. Evaluation does not use"
        " it. The number of steps stays the same, so a run goes through its data sooner;"
        " `dynamic_sampling/epoch` logs how far it is.",
    )
    adaptive_sampling_rounds: int = setting(
        1,
        "Reinforce-Ada (arXiv 2510.04996): sample a prompt in up to this many rounds of"
        " `num_generations` completions, until half of a group can be right and half wrong. That"
        " group is trained, with the mean and the deviation of all completions. A prompt that stays"
        " all right or all wrong keeps its first group, which MINER sees whole. 1 is ordinary"
        " sampling.",
        at_least=1,
    )
    prompt_selection: str = setting(
        "none",
        "Which prompts to generate for less often. `greso` (arXiv 2506.02177) skips prompts that"
        " have been all right or all wrong many times in a row, though not for good. `thompson`"
        " (MoPPS, arXiv 2507.04632) takes, of four candidates, the prompt whose pass rate is"
        " probably nearest to one half. Both skip prompts that MINER learns from.",
        one_of=("none", *SELECTIONS),
    )

    def __post_init__(self) -> None:
        self._check_own_fields()
        self._set_accumulation()
        try:
            super().__post_init__()
        except ValueError as error:
            raise ValueError(f"{error}{_divisors(str(error))}") from error
        check_derived(self)

    @classmethod
    def of(cls, args: GRPOConfig) -> "MinerGRPOConfig":
        """Return TRL's settings with the defaults of ours. What TRL has derived stays as it is."""
        config = cls.__new__(cls)
        for name, field in cls.__dataclass_fields__.items():
            setattr(config, name, getattr(args, name, field.default))
        config.__dict__.update(vars(args))
        config._check_own_fields()
        check_derived(config)
        return config


@dataclass(repr=False)
class RunConfig(MinerGRPOConfig):
    """Configuration of a run with a folder, as `trl-miner train` has it, or a `RunTrainer` in
    Python: `MinerGRPOConfig` with the settings below.

    Args:
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

    overwrite_output_dir: bool = setting(
        False,
        "Delete what earlier runs have written into `output_dir` before a run starts there; other"
        " files stay. Without it, a folder in which a run has finished a step is an error. A run"
        " that resumes from a checkpoint of the folder deletes nothing.",
    )
    log_token_credit: int = setting(
        0,
        "Record every this many optimizer steps the credit of each token of up to 64 completions,"
        " in `credit/credit_STEP.parquet` of `output_dir`, for `trl-miner inspect`; 0 is never. If"
        " no part of the step has computed their log-probs, a record costs one forward pass.",
        at_least=0,
    )
