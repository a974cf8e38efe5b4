"""`MinerGRPOConfig`: TRL's `GRPOConfig` and the method's own knobs."""

import logging
import math
import os
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trl import GRPOConfig

from .methods import DYNAMIC_SAMPLING, ESTIMATORS, GSPO, METHODS, POLICY_LOSSES
from .methods.compose import parse_estimator
from .methods.method import AdvantageEstimator, Knob, Method, PolicyLoss

logger = logging.getLogger(__name__)

# Bounds of the settings that belong to no method.
_AT_LEAST = {
    "watchdog_seconds": 0,
    "dynamic_sampling_max_rounds": 1,
    "dynamic_sampling_oversample": 1,
    "log_token_credit_steps": 1,
    "log_token_credit_rollouts": 1,
    "log_miner_update_steps": 1,
}
# The losses of TRL that clip a ratio at every token; in the others there is nothing for a policy loss to change.
CLIPPED_LOSSES = {"grpo", "bnpo", "dr_grpo", "dapo"}
# With these losses of TRL a sequence-level ratio makes the gradient that of the row's mean advantage.
AVERAGED_BY_SEQUENCE_RATIO = {"grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo"}


def _knob(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def accumulation_steps(optimizer_batch_size: int, per_device_train_batch_size: int, num_processes: int) -> int:
    """Micro-batches per optimizer step and process for a batch of so many rollouts in all.

    Args:
        optimizer_batch_size: Rollouts of an optimizer step, over all processes.
        per_device_train_batch_size: Rollouts of a micro-batch on one process.
        num_processes: Those that train.

    Returns:
        The `gradient_accumulation_steps` that make it so.

    Raises:
        ValueError: It cannot be made of whole micro-batches.
    """
    together = per_device_train_batch_size * num_processes
    if optimizer_batch_size < 1 or optimizer_batch_size % together:
        raise ValueError(
            f"optimizer_batch_size must be a multiple of per_device_train_batch_size times the number of processes: "
            f"got {optimizer_batch_size} for {per_device_train_batch_size} x {num_processes}. Change the batch per "
            f"device, or launch another number of processes."
        )
    return optimizer_batch_size // together


def _add_method_fields(cls: type) -> type:
    """Give a config class a field for each knob of each method, before `dataclass` collects the fields.

    The fields of the estimators follow `correct_reward_func`, those of the policy losses `policy_loss`, which is their
    order in `trl-miner train --help`. The docstring names them where it says so in braces.
    """
    fields_after: Mapping[str, Mapping[str, Method]] = {
        "correct_reward_func": ESTIMATORS,
        "policy_loss": POLICY_LOSSES,
    }
    annotations: dict[str, Any] = {}
    for own, annotation in cls.__annotations__.items():
        annotations[own] = annotation
        for method in fields_after.get(own, {}).values():
            for knob in method.knobs.values():
                name = f"{method.name}_{knob.name}"
                annotations[name] = knob.type
                setattr(cls, name, _knob(knob.default, knob.help))
    cls.__annotations__ = annotations
    if cls.__doc__:
        texts = {
            "estimators": _listed(ESTIMATORS),
            "policy_losses": _listed({name: m for name, m in POLICY_LOSSES.items() if m.function is not None}),
            "estimator_knobs": _described(ESTIMATORS),
            "policy_loss_knobs": _described(POLICY_LOSSES),
        }
        for name, text in texts.items():
            cls.__doc__ = cls.__doc__.replace(f"{{{name}}}", text)
    return cls


def _listed(methods: Mapping[str, Method]) -> str:
    """List methods with their papers, as the class docstring does."""
    text = ", ".join(f'`"{name}"` (https://huggingface.co/papers/{method.arxiv})' for name, method in methods.items())
    return textwrap.fill(text, 106, break_long_words=False, break_on_hyphens=False).replace("\n", "\n" + 12 * " ")


def _described(methods: Mapping[str, Method]) -> str:
    """Describe all knobs of some methods, as the class docstring describes a field."""
    paragraphs = []
    for method in methods.values():
        for knob in method.knobs.values():
            kind = knob.type.__name__ if isinstance(knob.type, type) else str(knob.type)
            default = f'"{knob.default}"' if isinstance(knob.default, str) else knob.default
            paragraphs.append(f"{method.name}_{knob.name} (`{kind}`, *optional*, defaults to `{default}`):")
            text = textwrap.wrap(f"{knob.help} {knob.details}".strip(), 106, break_on_hyphens=False)
            paragraphs.extend(f"    {line}" for line in text)
    return "\n        ".join(paragraphs)


@dataclass
@_add_method_fields
class MinerGRPOConfig(GRPOConfig):
    r"""
    Configuration of [`MinerGRPOTrainer`]: everything [`~trl.GRPOConfig`] has, with its defaults, and:

    Parameters:
        > Parameters that control the advantages

        advantage_estimator (`str`, *optional*, defaults to `"miner"`):
            {estimators}.
            Or one of these, other than `"grpo"`, with MINER on the all-right prompts: `"ucas+miner"`, also as a list.
        correct_threshold (`float`, *optional*, defaults to `1.0`):
            A rollout is correct when the verifier's reward is at or above this, in units of that reward before
            weighting.
        correct_reward_func (`str`, *optional*):
            Name of the reward function that decides what is correct, as TRL logs it under `rewards/NAME/mean`.
            Default: the first one. A rollout that it leaves unscored makes its prompt count as mixed.

        > Parameters of the advantage estimators

        {estimator_knobs}

        > Parameters that control the loss

        policy_loss (`str`, *optional*, defaults to `"clip"`):
            `"clip"` is the one that `loss_type` names. The others act inside it, for `loss_type` grpo, bnpo, dr_grpo
            and dapo at token level: {policy_losses}.
        {policy_loss_knobs}

        > Parameters that control the batch

        optimizer_batch_size (`int`, *optional*):
            Rollouts per optimizer step, over all processes: sets `gradient_accumulation_steps` to what the launched
            processes need for it, so that one recipe is the same run on two GPUs and on eight. Default: as without.

        > Parameters that control the speed of a training step. They leave its gradient, but for rounding: sums are
        > made in another order. All off, a step is TRL's bit for bit.

        length_aware_training (`bool`, *optional*, defaults to `True`):
            The rollouts of an optimizer step are sorted into micro-batches by length, and each micro-batch is trimmed
            to its own longest prompt and completion. Where a loss needs TRL's micro-batches they are only trimmed:
            `top_entropy_quantile`, entropy bonus, router loss, Clip-Cov, and `loss_type: bnpo` with a `beta`. With
            KL-Cov and with images nothing changes.
        max_tokens_per_micro_batch (`int`, *optional*):
            Cut the rollouts of an optimizer step into as few micro-batches as hold this many tokens each, prompts and
            padding included, instead of `per_device_train_batch_size` rollouts each. At least the longest rollout.
        length_aware_scoring (`bool`, *optional*, defaults to `True`):
            The same for the forwards without a gradient: old log-probs and reference.
        skip_zero_advantages (`bool`, *optional*, defaults to `True`):
            Rollouts whose advantage is zero at every token get no forward and backward, where there is no KL penalty
            that would move them. The metric `entropy` is then a mean over the others; `micro_batches/rows` is their
            share.
        reuse_sampling_logps (`bool`, *optional*, defaults to `True`):
            With generation by transformers in float32, MINER takes the log-probs that the sampler had, instead of a
            forward over the all-right rollouts.

        > Parameters that control what happens when a part of the run stops

        watchdog_seconds (`float`, *optional*, defaults to `300.0`):
            A run in which nothing has moved for so long ends with an error that names the part and the step: the vLLM
            server does not answer or generates no token, a process is stopped or dead, no process gets on. 0: never.

        > Parameters that control what is recorded

        log_token_credit (`bool`, *optional*, defaults to `False`):
            Write `credit/credit_STEP.parquet` into the output folder: tokens, old log-probs, credit weights,
            advantages before and after the calibration, for `trl-miner inspect`. Where no forward of the step has
            found the log-probs, it makes one over the recorded rollouts.
        log_token_credit_steps (`int`, *optional*, defaults to `10`):
            Every so many optimizer steps.
        log_token_credit_rollouts (`int`, *optional*, defaults to `64`):
            At most so many rollouts each time, over all processes: whole prompts, of each kind in turn.
        log_miner_update (`bool`, *optional*, defaults to `False`):
            Log what an optimizer step did, apart for the rollouts of all-right (PH) prompts and for all others. Of the
            gradient of the policy loss (no KL penalty, entropy bonus or router loss): `miner/ph_gradient_norm`,
            `miner/other_gradient_norm`, `miner/ph_gradient_share` (PH / (PH + other)) and `miner/gradient_cosine`
            between the two. Of what Adam makes of it, g / (sqrt(v) + eps): `miner/ph_update_share` and
            `miner/update_cosine`; while v is of few gradients, in the first steps of a run, they are mostly of weights
            for which the two parts cancel. And by how much the step raised the log-prob of a token, in nats:
            `miner/ph_logp_gain` in PH rollouts with credit, `miner/ph_logp_gain_others` in those without,
            `miner/ph_logp_gain_paid` weighted by credit, `miner/he_logp_gain_right` and `miner/he_logp_gain_wrong` in
            rollouts of mixed prompts with a positive and with a negative advantage. The training stays as it is, bit
            for bit. Such a step goes through the model once more and makes two forwards, and keeps two more gradients
            of the trained weights. Not with DeepSpeed, FSDP or fp16.
        log_miner_update_steps (`int`, *optional*, defaults to `10`):
            Every so many optimizer steps.

        > Parameters that control the sampling of prompts

        dynamic_sampling (`bool`, *optional*, defaults to `False`):
            DAPO's (https://huggingface.co/papers/2503.14476): prompts whose rollouts are all right or all wrong are
            dropped and others drawn until the batch is full. Not in evaluation. A run has as many steps as without,
            and passes over its data the sooner: `dynamic_sampling/epoch` says how far it is.
        dynamic_sampling_max_rounds (`int`, *optional*, defaults to `10`):
            Generations per batch, the first included, before it is filled up with the best there is.
        dynamic_sampling_oversample (`float`, *optional*, defaults to `1.0`):
            A refill draws as many prompts as should fill the batch, going by the share of mixed ones so far, times
            this. Above 1, fewer rounds and more rollouts; a mixed prompt too many waits for the next batch, where it
            is generated anew.
        dynamic_sampling_require_full (`bool`, *optional*, defaults to `False`):
            Raise when a batch cannot be filled, instead of warning.
    """

    advantage_estimator: str = _knob(
        "miner", f"Advantage estimator: {', '.join(sorted(ESTIMATORS))}; or one of them with MINER: ucas+miner."
    )
    correct_threshold: float = _knob(
        1.0, "A rollout is correct when the verifier's reward is at or above this, in reward units."
    )
    correct_reward_func: str | None = _knob(
        None, "Name of the reward function that decides what is correct. Default: the first one."
    )
    policy_loss: str = _knob("clip", f"What acts inside the loss: {', '.join(POLICY_LOSSES)}.")
    watchdog_seconds: float = _knob(
        300.0, "End the run with an error when no part of it has moved for so long, in seconds; 0: never."
    )
    log_token_credit: bool = _knob(
        False, "Record what each token was paid, in credit/*.parquet, for trl-miner inspect."
    )
    log_token_credit_steps: int = _knob(10, "Record every so many optimizer steps.")
    log_token_credit_rollouts: int = _knob(64, "Record at most so many rollouts each time: whole prompts.")
    log_miner_update: bool = _knob(
        False, "Log the share of all-right prompts in gradient and update, and how log-probs moved: miner/*."
    )
    log_miner_update_steps: int = _knob(10, "Log it every so many optimizer steps.")
    optimizer_batch_size: int | None = _knob(
        None, "Rollouts per optimizer step, over all processes; sets gradient_accumulation_steps."
    )
    length_aware_training: bool = _knob(True, "Sort the rollouts of an optimizer step by length, and trim padding.")
    max_tokens_per_micro_batch: int | None = _knob(
        None, "Tokens of a micro-batch, padding included, instead of per_device_train_batch_size rollouts."
    )
    length_aware_scoring: bool = _knob(True, "The same for the forwards without a gradient.")
    skip_zero_advantages: bool = _knob(True, "No forward and backward for rollouts without an advantage.")
    reuse_sampling_logps: bool = _knob(True, "Take old log-probs from the sampler, where they are the same.")
    dynamic_sampling: bool = _knob(
        False, "DAPO: drop prompts that are all right or all wrong and draw others instead."
    )
    dynamic_sampling_max_rounds: int = _knob(10, "Generations per batch, the first included, before it is filled up.")
    dynamic_sampling_oversample: float = _knob(
        1.0, "Prompts drawn in a refill, as a multiple of those expected to fill the batch; at least 1."
    )
    dynamic_sampling_require_full: bool = _knob(False, "Raise when a batch cannot be filled, instead of warning.")

    def __post_init__(self) -> None:
        self._check_own_fields()
        if self.optimizer_batch_size is not None:
            self._set_accumulation(int(os.environ.get("WORLD_SIZE") or 1))
        super().__post_init__()
        self._check_combinations()

    def _check_own_fields(self) -> None:
        if self.num_generations < 2:
            raise ValueError(
                f"num_generations must be at least 2, because a rollout is judged against its group: got "
                f"{self.num_generations}. The paper uses 16."
            )
        self.advantage_estimator = "+".join(parse_estimator(self.advantage_estimator))
        if math.isnan(self.correct_threshold):
            raise ValueError("correct_threshold must be a number: got nan. Verifiers that give 0 or 1 need 1.0.")
        for method in METHODS.values():
            self._check_knobs(method)
        self._check_ranges()
        self._check_policy_loss()
        self._check_dynamic_sampling()
        self._check_budget()

    def __getstate__(self) -> dict[str, Any]:
        # transformers pickles its arguments into every checkpoint and run folder: a token has no place there.
        return {**self.__dict__, "hub_token": None}

    def _set_accumulation(self, num_processes: int) -> None:
        assert self.optimizer_batch_size is not None
        given = int(getattr(self, "gradient_accumulation_steps"))  # noqa: B009 (mypy cannot see transformers' field)
        wanted = accumulation_steps(self.optimizer_batch_size, self.per_device_train_batch_size, num_processes)
        if given not in (1, wanted):
            raise ValueError(
                f"optimizer_batch_size sets gradient_accumulation_steps: got optimizer_batch_size="
                f"{self.optimizer_batch_size}, which is {wanted} with {num_processes} processes, and "
                f"gradient_accumulation_steps={given}. Leave one of them out."
            )
        self.gradient_accumulation_steps = wanted

    @property
    def optimizer_steps_per_generation(self) -> float:
        """How many steps of the optimizer are made of one generation batch; below 1 where a step takes several."""
        return self.steps_per_generation * self.num_iterations / self.gradient_accumulation_steps

    def knobs(self, method: str) -> dict[str, Any]:
        """The settings of one method: those with its prefix.

        Args:
            method: Its name, such as "miner".

        Returns:
            By the names that its function takes, without the prefix.
        """
        prefix = f"{method}_"
        if method in METHODS and METHODS[method].knobs:
            return {name: getattr(self, prefix + name) for name in METHODS[method].knobs}
        return {f.name.removeprefix(prefix): getattr(self, f.name) for f in fields(self) if f.name.startswith(prefix)}

    @property
    def estimators(self) -> tuple[AdvantageEstimator, ...]:
        """The records of `advantage_estimator`, in its order."""
        return tuple(ESTIMATORS[name] for name in parse_estimator(self.advantage_estimator))

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
        return tuple(methods)

    def _check_knobs(self, method: Method) -> None:
        for name, knob in method.knobs.items():
            if knob.is_optional and getattr(self, f"{method.name}_{name}") == math.inf:
                setattr(self, f"{method.name}_{name}", None)  # on a command line, inf is the only way to say "none"
        method.check({name: getattr(self, f"{method.name}_{name}") for name in method.knobs}, f"{method.name}_")

    def _check_ranges(self) -> None:
        for name, limit in _AT_LEAST.items():
            knob = Knob(at_least=limit, name=name, default=type(self).__dataclass_fields__[name].default)
            knob.check(getattr(self, name), {})

    def _check_policy_loss(self) -> None:
        name = self.policy_loss
        if name not in POLICY_LOSSES:
            raise ValueError(f"policy_loss must be one of {', '.join(POLICY_LOSSES)}: got {name!r}.")
        if self.policy_loss_method.function is None:
            return
        if self.importance_sampling_level != "token":
            raise ValueError(
                f"policy_loss={name} works on the ratio of each token: got importance_sampling_level="
                f"{self.importance_sampling_level!r}. Set it to 'token', or policy_loss to 'clip'."
            )
        if self.loss_type not in CLIPPED_LOSSES:
            raise ValueError(
                f"policy_loss={name} works inside a clipped loss: got loss_type={self.loss_type!r}. Use one of "
                f"{', '.join(sorted(CLIPPED_LOSSES))}."
            )
        for setting, reason in self.policy_loss_method.refuses.items():
            if getattr(self, setting) is not None:
                raise ValueError(f"policy_loss={name} {reason}: got {setting}={getattr(self, setting)}. Leave it out.")

    def _check_dynamic_sampling(self) -> None:
        for method in self.estimators if self.dynamic_sampling else ():
            if method.rules:
                kinds = " and ".join(sorted(method.rules)).replace("_", "-")
                raise ValueError(
                    f"dynamic_sampling drops the {kinds} prompts that {method.label} learns from: got "
                    f"advantage_estimator={self.advantage_estimator!r}. Set it to grpo (that is DAPO), or leave "
                    f"dynamic_sampling out."
                )

    def _check_budget(self) -> None:
        budget = self.max_tokens_per_micro_batch
        if budget is None:
            return
        if budget < 2 or budget != int(budget):
            raise ValueError(
                f"max_tokens_per_micro_batch must be a whole number of tokens, at least 2: got {budget}. It must hold "
                f"the longest prompt and max_completion_length={self.max_completion_length} tokens."
            )
        if not self.length_aware_training:
            raise ValueError(
                f"max_tokens_per_micro_batch sorts rollouts by length: got {budget} with length_aware_training=False. "
                f"Leave one of them out."
            )
        if self.max_completion_length is not None and budget <= self.max_completion_length:
            logger.warning(
                f"max_tokens_per_micro_batch={budget} does not hold a prompt and max_completion_length="
                f"{self.max_completion_length} tokens: the run ends with an error if a rollout is longer."
            )

    def _check_combinations(self) -> None:
        """Check what depends on fields that `GRPOConfig` derives."""
        self._warn_of_averaging()
        loss = self.policy_loss_method
        accumulation, cycle = self.gradient_accumulation_steps, self.steps_per_generation * self.num_iterations
        shown = f"gradient_accumulation_steps={accumulation}, steps_per_generation={self.steps_per_generation}, "
        shown += f"num_iterations={self.num_iterations}"
        if loss.off_policy_only and accumulation % cycle == 0:
            logger.warning(
                f"policy_loss={loss.name} does nothing strictly on-policy, where every probability ratio is 1: got "
                f"{shown}. Raise steps_per_generation or num_iterations, as recipes/arithmetic/{loss.name}.yaml does."
            )
        elif loss.spans_optimizer_step and self.steps_per_generation % accumulation:
            raise ValueError(
                f"policy_loss={loss.name} searches its bounds over a whole optimizer batch, which must lie in one "
                f"generation batch: got {shown}. Make steps_per_generation a multiple of gradient_accumulation_steps."
            )
        if self.dynamic_sampling and self.eval_strategy != "no":
            logger.warning(
                "dynamic_sampling is for training: evaluation drops no prompt, so that eval_reward and reward are not "
                "means over the same kind of prompts."
            )

    def _warn_of_averaging(self) -> None:
        """Warn where the loss averages over each rollout what a method tells apart token by token."""
        if self.importance_sampling_level != "sequence" or self.loss_type not in AVERAGED_BY_SEQUENCE_RATIO:
            return
        per_token = [method for method in self.estimators if method.is_per_token(self.knobs(method.name))]
        if not per_token:
            return
        what, silence = f"advantage_estimator={self.advantage_estimator!r}", ""
        if len(per_token) == 1 and (switch := per_token[0].uniform_when):
            names = {f"{per_token[0].name}_{name}": value for name, value in switch.items()}
            what = " and ".join(f"{name}={getattr(self, name)!r}" for name in names)
            silence = f", or {' or '.join(f'{name}={value!r}' for name, value in names.items())} to silence this"
        logger.warning(
            f"importance_sampling_level='sequence' with loss_type='{self.loss_type}' averages the advantage over each "
            f"rollout, so {what} does not reach single tokens. Use importance_sampling_level='token' for it{silence}."
        )

    @classmethod
    def from_grpo_config(cls, args: GRPOConfig) -> "MinerGRPOConfig":
        """Return the same settings with MINER's defaults, so that a script written for `GRPOConfig` runs unchanged.

        `GRPOConfig` derives fields from each other and from the launched processes when it is made, and refuses to do
        it twice. So its state is taken over as it is. (Of a subclass of yours the fields are kept, not the methods:
        derive it from `MinerGRPOConfig` instead.)
        """
        if isinstance(args, cls):
            return args
        config = cls.__new__(cls)
        own = {f.name: f.default for f in fields(cls) if f.name not in vars(args) and f.default is not MISSING}
        for name, value in {**vars(args), **own}.items():
            setattr(config, name, value)
        config._check_own_fields()
        config._check_combinations()
        return config
