"""`MinerGRPOConfig`: TRL's `GRPOConfig` with the settings of the trainer and the knobs of the methods."""

import copy
import json
import math
import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from trl import GRPOConfig

from .methods import DYNAMIC_SAMPLING, ESTIMATORS, GSPO, METHODS, POLICY_LOSSES, REINFORCE_ADA, SELECTIONS
from .methods.compose import ALL_RIGHT, ALL_WRONG, Composition, estimators_of, find_composition
from .methods.fields import add_method_fields, list_methods, setting
from .methods.method import AdvantageEstimator, Method, PolicyLoss
from .methods.own import own_knobs
from .redaction import redact
from .rules import check_derived, check_settings, device_has_bf16
from .setting import convert_fields


def accumulation_steps(optimizer_batch_size: int, per_device_train_batch_size: int, num_processes: int) -> int:
    """Return the `gradient_accumulation_steps` that make up an optimizer batch.

    Raises ValueError if it is no multiple of what the processes take at once.
    """
    together = per_device_train_batch_size * num_processes
    if optimizer_batch_size < 1 or optimizer_batch_size % together:
        raise ValueError(
            f"optimizer_batch_size must be a multiple of per_device_train_batch_size times the number of processes: "
            f"got {optimizer_batch_size} for {per_device_train_batch_size} x {num_processes}. Change the batch per "
            f"device, or launch another number of processes."
        )
    return optimizer_batch_size // together


class SharedSettings:
    """What the settings of the synchronous and of the asynchronous trainer have in common."""

    if TYPE_CHECKING:  # their fields, and TRL's
        __dataclass_fields__: ClassVar[dict[str, Any]]
        advantage_estimator: Any
        advantage_estimator_kwargs: Any
        correct_reward_func: Any
        generation_batch_size: Any
        gradient_accumulation_steps: Any
        token_budget: Any

        def __getattr__(self, name: str) -> Any: ...

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
        wanted = accumulation_steps(self.optimizer_batch_size, self.per_device_train_batch_size, self.num_processes)
        if given not in (1, wanted):
            raise ValueError(
                f"optimizer_batch_size sets gradient_accumulation_steps: got optimizer_batch_size="
                f"{self.optimizer_batch_size}, which is {wanted} with {self.num_processes} processes, and "
                f"gradient_accumulation_steps={given}. Leave one of them out."
            )
        self.gradient_accumulation_steps = wanted

    @property
    def optimizer_steps_per_generation(self) -> float:
        """The number of optimizer steps per generation batch; below 1 where a step takes several batches."""
        return self.steps_per_generation * self.num_iterations / self.gradient_accumulation_steps

    @property
    def policy_loss_method(self) -> PolicyLoss:
        """The record of `policy_loss`."""
        return POLICY_LOSSES[self.policy_loss]

    @property
    def methods(self) -> tuple[Method, ...]:
        """The records of all methods that have a part in the run."""
        methods: list[Method] = [*self.estimators]
        if self.policy_loss_method.function is not None:
            methods.append(self.policy_loss_method)
        if self.importance_sampling_level != "token":
            methods.append(GSPO)
        if self.dynamic_sampling:
            methods.append(DYNAMIC_SAMPLING)
        if self.adaptive_sampling_rounds > 1:
            methods.append(REINFORCE_ADA)
        if self.prompt_selection in SELECTIONS:
            methods.append(SELECTIONS[self.prompt_selection])
        return tuple(methods)

    def _own_knobs(self) -> dict[str, dict[str, Any]]:
        own = [method for method in self.estimators if method.name not in METHODS]
        return own_knobs(own, self.advantage_estimator_kwargs)

    def knobs(self, method: str) -> dict[str, Any]:
        """Return the settings of one method, given its name or import path, by the names that its function takes."""
        if method not in METHODS:
            return self._own_knobs()[method]
        settings = self.method_settings(method)
        return {name: settings[METHODS[method].setting(name)] for name in METHODS[method].knobs}

    def method_settings(self, method: str) -> dict[str, Any]:
        """Return the settings of one method, given its name or import path, by the names of the fields.

        A cap is None where `dose_share` takes its place.
        """
        if method not in METHODS:
            return {"advantage_estimator_kwargs": self.knobs(method)}
        record = METHODS[method]
        names = [record.setting(name) for name in record.knobs]
        if method == DYNAMIC_SAMPLING.name:
            names = [f.name for f in fields(self) if f.name.startswith("dynamic_sampling_")]
        if method == REINFORCE_ADA.name:
            names = ["adaptive_sampling_rounds"]
        replaced = {record.setting("lambda_max")} if self.dose_share is not None else set()
        return {name: None if name in replaced else getattr(self, name) for name in names}

    def without_secrets(self) -> "SharedSettings":
        """Return a copy for a file: its secrets are `***`, and `hub_token` is None."""
        public = copy.copy(self)
        public.__dict__.update({**redact(vars(self)), "hub_token": None})
        return public

    def to_dict(self) -> dict[str, Any]:
        """Return the settings without secrets: trackers get them so."""
        shown: dict[str, Any] = super(SharedSettings, self.without_secrets()).to_dict()  # type: ignore[misc]
        # transformers writes <HUB_TOKEN> where there is none, too
        return {name: None if getattr(self, name, 0) is None else value for name, value in shown.items()}

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
        if isinstance(self.advantage_estimator_kwargs, str):
            try:
                self.advantage_estimator_kwargs = json.loads(self.advantage_estimator_kwargs)
            except ValueError as error:
                text = self.advantage_estimator_kwargs
                raise ValueError(f"advantage_estimator_kwargs must be JSON: got {text!r} ({error}).") from error
        self._own_knobs()
        for method in METHODS.values():
            for name, knob in method.knobs.items():
                if knob.is_optional and getattr(self, method.setting(name)) == math.inf:
                    # On a command line, inf is the only way to say "none".
                    setattr(self, method.setting(name), None)
        check_settings(self)


@dataclass(repr=False)  # that of transformers shows secrets, and dataclass would write another
@add_method_fields(after={"advantage_estimator_kwargs": ESTIMATORS.values(), "policy_loss": POLICY_LOSSES.values()})
class MinerGRPOConfig(SharedSettings, GRPOConfig):
    r"""
    Configuration of [`MinerGRPOTrainer`]: everything [`~trl.GRPOConfig`] has, with its defaults, and:

    Parameters:
    """

    advantage_estimator: str = setting(
        "miner",
        f"Advantage estimator: {list_methods(ESTIMATORS.values())}; or the import path of your own, such as "
        "my_lib.my_advantages. It is the estimator of mixed prompts, and of the others unless all_right and all_wrong "
        "name theirs. One that does not act on mixed prompts leaves those to GRPO: miner is short for grpo with "
        "all_right: miner.",
    )
    all_right: str | None = setting(
        None,
        f"Advantage estimator of all-right prompts: {', '.join(estimators_of(ALL_RIGHT))}, the import path of your "
        "own, or none, which gives them no advantage. Default: what advantage_estimator does there.",
    )
    all_wrong: str | None = setting(
        None, f"The same for all-wrong prompts: {', '.join(estimators_of(ALL_WRONG))}, an import path, or none."
    )
    correct_threshold: float = setting(
        1.0, "A rollout is correct when the verifier's reward, before weighting, is at or above this."
    )
    correct_reward_func: str | None = setting(
        None,
        "Name of the reward function that decides what is correct, as in the metric rewards/NAME/mean; or several "
        "joined by +, or as a list, where each task has its own: those that score a rollout must agree. Default: the "
        "only one, else the known verifiers among them (math_reward, choice_reward, accuracy_reward, "
        "reasoning_accuracy_reward), else, with a warning, all of them together. A prompt with a rollout that they "
        "leave unscored is neither all right nor all wrong.",
    )
    gate_on_correctness: bool = setting(
        False,
        "Only correctness tells the rollouts of a prompt apart: where they are all right, all wrong or unscorable, a "
        "reward of format or length gives them no advantage, and all_right and all_wrong apply although it differs.",
    )
    advantage_estimator_kwargs: dict[str, Any] | str | None = setting(
        None, "Knobs of your own advantage estimator: a mapping in a recipe, JSON on a command line."
    )
    dose_share: float | None = setting(
        None,
        "Share of the policy gradient's norm that the methods of all-right and all-wrong prompts get, theirs / "
        "(theirs + the others'), above 0 and below 1: a factor on their advantages holds it, in place of a cap such "
        "as miner_lambda_max. The first 8 optimizer steps and every 25th are measured; such a step goes through the "
        "model once more, and keeps two more gradients of the trained weights. Not with DeepSpeed, FSDP or fp16.",
    )
    policy_loss: str = setting(
        "clip",
        f"What acts inside the loss: {list_methods(POLICY_LOSSES.values())}. clip is the loss that loss_type names; "
        "the others need loss_type grpo, bnpo, dr_grpo or dapo, at token level.",
        one_of=POLICY_LOSSES,
    )
    optimizer_batch_size: int | None = setting(
        None,
        "Rollouts per optimizer step, over all processes. Sets gradient_accumulation_steps, so that one recipe is the "
        "same run on two GPUs and on eight.",
    )
    compute_less: bool = setting(
        True,
        "Skip forward and backward for rollouts whose advantage is zero at every token, unless a KL penalty moves "
        "them, and sort the others into micro-batches by length. TRL's micro-batches stay where the loss depends on "
        "them (top_entropy_quantile, entropy bonus, router loss, Clip-Cov, KL-Cov, loss_type bnpo), with images or "
        "pad_to_multiple_of, and with models that see padding. Metrics of the loss are means over the tokens in it.",
    )
    max_tokens_per_micro_batch: int | None = setting(
        None,
        "Cut the rollouts of an optimizer step into as few micro-batches as hold this many tokens each, prompts and "
        "padding included, instead of per_device_train_batch_size rollouts each. At least the longest rollout.",
        at_least=2,
    )
    reuse_sampling_logps: bool = setting(
        True,
        "MINER takes the log-probs of vLLM or a rollout_func, instead of a forward over the all-right rollouts, where "
        "TRL computes none. Once a training they are compared with the policy's, and the run ends if they differ.",
    )
    overwrite_output_dir: bool = setting(
        False,
        "Delete what earlier runs have written into output_dir, and nothing else, before a run starts there; else a "
        "used folder is an error. A run that goes on from a checkpoint of the folder deletes nothing.",
    )
    log_token_credit: int = setting(
        0,
        "Optimizer steps from one record of tokens to the next; 0: none. A record, credit/credit_STEP.parquet in "
        "output_dir, has what trl-miner inspect shows of at most 64 rollouts. Where no forward of the step has "
        "computed their old log-probs, it costs one.",
        at_least=0,
    )
    log_gradient_share: int = setting(
        0,
        "Optimizer steps from one measurement of the gradient to the next; 0: none. It logs how much of a step's "
        "policy gradient (without KL penalty, entropy bonus and router loss) comes from the rollouts of all-right "
        "(PH) prompts, or of those that dose_share acts on: miner/ph_gradient_norm, miner/other_gradient_norm, "
        "miner/ph_gradient_share (PH / (PH + other)) and miner/gradient_cosine. Training stays the same, bit for bit; "
        "a measured step costs what one of dose_share does. Not with DeepSpeed, FSDP or fp16.",
        at_least=0,
    )
    dynamic_sampling: bool = setting(
        False,
        "DAPO's dynamic sampling (arXiv 2503.14476): drop prompts whose rollouts are all right or all wrong, and draw "
        "others until the batch is full. Not in evaluation. The number of steps stays the same, so a run passes over "
        "its data sooner: dynamic_sampling/epoch says how far it is.",
    )
    dynamic_sampling_max_rounds: int = setting(
        10, "Generations per batch, the first included, before it is filled up with other prompts.", at_least=1
    )
    adaptive_sampling_rounds: int = setting(
        1,
        "Reinforce-Ada (arXiv 2510.04996): sample a prompt in up to so many rounds of num_generations rollouts, until "
        "half of a group can be right and half wrong, and choose such a group, with the mean and deviation of all; 1: "
        "once. A prompt that never was mixed keeps its first group, which MINER sees whole.",
        at_least=1,
    )
    prompt_selection: str = setting(
        "none",
        "Which prompts to generate less often. greso (arXiv 2506.02177): those with many visits in a row at "
        "which all rollouts were right, or all wrong; all come up again. thompson (MoPPS, arXiv 2507.04632): of four "
        "candidates for each prompt the one whose pass rate, drawn from its posterior, is nearest to one half. Both "
        "leave out prompts that MINER learns from.",
        one_of=("none", *SELECTIONS),
    )

    def __post_init__(self) -> None:
        self._check_own_fields()
        self._take_derived_batch()
        self._set_accumulation()
        try:
            super().__post_init__()  # which may still choose the device
        except ValueError:
            device_has_bf16(self)
            raise
        check_derived(self)

    def _take_derived_batch(self) -> None:
        """Let TRL derive again what it has derived before, so that a configuration can be rebuilt from its fields."""
        steps, batch = self.steps_per_generation, self.generation_batch_size
        if steps is None or batch is None:
            return
        parts = f"{self.per_device_train_batch_size} x {self.num_processes} x {steps}"
        if batch != self.per_device_train_batch_size * self.num_processes * steps:
            raise ValueError(
                f"generation_batch_size must be per_device_train_batch_size x processes x steps_per_generation: got "
                f"{batch} and {parts}. Set one of generation_batch_size and steps_per_generation to None."
            )
        self.generation_batch_size = None

    @classmethod
    def from_grpo_config(cls, args: GRPOConfig) -> "MinerGRPOConfig":
        """Return the same settings with MINER's defaults, so that a script written for `GRPOConfig` runs unchanged.

        (Of a subclass of yours the fields are kept, not the methods: derive it from `MinerGRPOConfig` instead.)
        """
        if isinstance(args, cls):
            return args
        config = cls(**{f.name: getattr(args, f.name) for f in fields(GRPOConfig) if f.init})
        for name in vars(args).keys() - vars(config).keys():
            setattr(config, name, getattr(args, name))
        return config
