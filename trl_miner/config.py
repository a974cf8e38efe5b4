"""`MinerGRPOConfig`: TRL's `GRPOConfig` with the settings of the trainer and the knobs of the
methods."""

import copy
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trl import GRPOConfig

from .methods import DYNAMIC_SAMPLING, ESTIMATORS, GSPO, POLICY_LOSSES, REINFORCE_ADA, SELECTIONS
from .methods.compose import ALL_RIGHT, ALL_WRONG, Composition, estimators_of, find_composition
from .methods.method import AdvantageEstimator, Method, PolicyLoss
from .methods.miner import REWARDS
from .methods.own import read_knobs
from .redaction import redact
from .rules import check_derived, check_settings
from .setting import convert_fields, setting


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


def _names(methods: Iterable[Method]) -> str:
    """Return the names of methods, each with its paper, if it has one."""
    return ", ".join(
        f"{method.name} (arXiv {method.arxiv})" if method.arxiv else method.name
        for method in methods
    )


@dataclass(repr=False)  # that of transformers shows secrets, and dataclass would write another
class MinerGRPOConfig(SharedSettings, GRPOConfig):
    """
    Configuration of [`MinerGRPOTrainer`]: everything [`~trl.GRPOConfig`] has, with its defaults,
    and the fields below.
    """

    advantage_estimator: str = setting(
        "miner",
        f"Advantage estimator: {_names(ESTIMATORS.values())}; or the import path of your own, such"
        " as my_lib.my_advantages. It is the estimator of mixed prompts, and of the others unless"
        " all_right and all_wrong name theirs. One that does not act on mixed prompts leaves those"
        " to GRPO: miner is short for grpo with all_right: miner.",
    )
    all_right: str | None = setting(
        None,
        f"Advantage estimator of all-right prompts: {', '.join(estimators_of(ALL_RIGHT))}, the"
        " import path of your own, or none, which gives them no advantage. Default: what"
        " advantage_estimator does there.",
    )
    all_wrong: str | None = setting(
        None,
        f"The same for all-wrong prompts: {', '.join(estimators_of(ALL_WRONG))}, an import path, or"
        " none.",
    )
    correct_threshold: float = setting(
        1.0,
        "A rollout is correct when the verifier's reward, before weighting, is at or above this.",
    )
    correct_reward_func: str | None = setting(
        None,
        "Name of the reward function that decides what is correct, as in the metric"
        " rewards/NAME/mean; or several joined by +, or as a list, where each task has its own:"
        " those that score a rollout must agree. Default: the only one, else the known verifiers"
        " among them (math_reward, choice_reward, task_reward, accuracy_reward,"
        " reasoning_accuracy_reward), else, with a warning, all of them together. A prompt with a"
        " rollout that they leave unscored is neither all right nor all wrong.",
    )
    gate_on_correctness: bool = setting(
        False,
        "Only correctness tells the rollouts of a prompt apart: where they are all right, all wrong"
        " or unscorable, a reward of format or length gives them no advantage, and all_right and"
        " all_wrong apply although it differs.",
    )
    advantage_estimator_kwargs: dict[str, Any] | str | None = setting(
        None,
        "Knobs of the advantage estimators, yours or built in, but for the miner_* and"
        " entropy_weight: a mapping in a recipe, JSON on a command line, such as {alpha: 0.2} for"
        " rl_zvp. They are parameters of their functions.",
    )
    miner_gamma: float = setting(
        2.0,
        "Focus of MINER's token credit (1 - p)^gamma, at least 0; 0 is uniform (the paper's w/o"
        " FW).",
        at_least=0,
    )
    miner_lambda_max: float | None = setting(
        1.5e-3,
        "Cap of the signal from all-right prompts, as a share of the signal from mixed prompts. 0:"
        " plain GRPO; inf (or null in a recipe): no cap, the paper's ablation w/o AC. Both are of"
        " the same generation batch.",
        at_least=0,
        or_none=True,
    )
    miner_intrinsic: str = setting(
        "nll",
        "MINER's intrinsic reward: nll, which credits unsure rollouts; certainty, its opposite,"
        " which is not the paper's; or constant, 0.05 for every rollout of an all-right prompt (the"
        " paper's ablation w/o IR, not calibrated: set miner_lambda_max: null).",
        one_of=REWARDS,
    )
    entropy_weight: float = setting(
        1e-3,
        "Entropy bonus on all-right prompts: its coefficient, in advantage units per nat; 0 is"
        " GRPO.",
        at_least=0,
    )
    dose_share: float | None = setting(
        None,
        "Share of the policy gradient's norm that the methods of all-right and all-wrong prompts"
        " get, theirs / (theirs + the others'), above 0 and below 1: a factor on their advantages"
        " holds it, in place of a cap such as miner_lambda_max. The first 8 optimizer steps and"
        " every 25th are measured; such a step goes through the model once more, and keeps two more"
        " gradients of the trained weights. Not with DeepSpeed, FSDP or fp16.",
    )
    policy_loss: str = setting(
        "clip",
        f"What acts inside the loss: {_names(POLICY_LOSSES.values())}. clip is the loss that"
        " loss_type names; the others need loss_type grpo, bnpo, dr_grpo or dapo, at token level.",
        one_of=POLICY_LOSSES,
    )
    policy_loss_kwargs: dict[str, Any] | str | None = setting(
        None,
        "Knobs of policy_loss: a mapping in a recipe, JSON on a command line, such as {ratio:"
        " 0.002}.",
    )
    optimizer_batch_size: int | None = setting(
        None,
        "Rollouts per optimizer step, over all processes. Sets gradient_accumulation_steps, so that"
        " one recipe is the same run on two GPUs and on eight.",
    )
    compute_less: bool = setting(
        True,
        "Skip forward and backward for rollouts whose advantage is zero at every token, unless a KL"
        " penalty moves them, and sort the others into micro-batches by length. TRL's micro-batches"
        " stay where the loss depends on them (top_entropy_quantile, entropy bonus, router loss,"
        " Clip-Cov, KL-Cov, loss_type bnpo), with pad_to_multiple_of, and with models that see"
        " padding or images. Metrics of the loss are means over the tokens in it.",
    )
    max_tokens_per_micro_batch: int | None = setting(
        None,
        "Cut the rollouts of an optimizer step into as few micro-batches as hold this many tokens"
        " each, prompts and padding included. A longer rollout goes alone. By default, on a GPU, as"
        " many tokens as TRL's micro-batches hold; on a CPU, as many micro-batches as TRL makes.",
        at_least=2,
    )
    log_gradient_share: int = setting(
        0,
        "Optimizer steps from one measurement of the gradient to the next; 0: none. It logs how"
        " much of a step's policy gradient (without KL penalty, entropy bonus and router loss)"
        " comes from the rollouts of all-right (PH) prompts, or of those that dose_share acts on:"
        " miner/ph_gradient_norm, miner/other_gradient_norm, miner/ph_gradient_share (PH / (PH +"
        " other)) and miner/gradient_cosine. Training stays the same, bit for bit; a measured step"
        " costs what one of dose_share does. Not with DeepSpeed, FSDP or fp16.",
        at_least=0,
    )
    dynamic_sampling: bool = setting(
        False,
        "DAPO's dynamic sampling (arXiv 2503.14476): drop prompts whose rollouts are all right or"
        " all wrong, and draw others until the batch is full, in at most 10 generations. Not in"
        " evaluation. The number of steps stays the same, so a run passes over its data sooner:"
        " dynamic_sampling/epoch says how far it is.",
    )
    adaptive_sampling_rounds: int = setting(
        1,
        "Reinforce-Ada (arXiv 2510.04996): sample a prompt in up to so many rounds of"
        " num_generations rollouts, until half of a group can be right and half wrong, and choose"
        " such a group, with the mean and deviation of all; 1: once. A prompt that never was mixed"
        " keeps its first group, which MINER sees whole.",
        at_least=1,
    )
    prompt_selection: str = setting(
        "none",
        "Which prompts to generate less often. greso (arXiv 2506.02177): those with many visits in"
        " a row at which all rollouts were right, or all wrong; all come up again. thompson (MoPPS,"
        " arXiv 2507.04632): of four candidates for each prompt the one whose pass rate, drawn from"
        " its posterior, is nearest to one half. Both leave out prompts that MINER learns from.",
        one_of=("none", *SELECTIONS),
    )

    def __post_init__(self) -> None:
        self._check_own_fields()
        self._set_accumulation()
        super().__post_init__()
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
    """
    Configuration of a run with a folder, as `trl-miner train` has it, or a `RunTrainer` in Python:
    everything [`MinerGRPOConfig`] has, and what a run does with its folder.
    """

    overwrite_output_dir: bool = setting(
        False,
        "Delete what earlier runs have written into output_dir, and nothing else, before a run"
        " starts there; else a folder in which a run has finished a step is an error. A run that"
        " goes on from a checkpoint of the folder deletes nothing.",
    )
    log_token_credit: int = setting(
        0,
        "Optimizer steps from one record of tokens to the next; 0: none. A record,"
        " credit/credit_STEP.parquet in output_dir, has what trl-miner inspect shows of at most 64"
        " rollouts. Where no forward of the step has computed their old log-probs, it costs one.",
        at_least=0,
    )
