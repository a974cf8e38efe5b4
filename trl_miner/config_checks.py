"""The rules of `MinerGRPOConfig`: errors for settings that cannot be, warnings for settings without effect."""

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from numbers import Real
from typing import Any, get_type_hints

import torch

from .methods import (
    METHODS,
    POLICY_LOSSES,
    REINFORCE_PP_BASELINE,
    SELECTIONS,
    AdvantageEstimator,
)
from .methods.compose import ALL_RIGHT, ALL_WRONG
from .methods.fields import check_limits
from .methods.method import Kind, Knob
from .setting import NONE, Setting, alternatives

logger = logging.getLogger("trl_miner.config")

ALL_ROWS, ROWS_WITH_ADVANTAGE = "all", "rows_with_advantage"  # of kl_on

# Lower bounds of TRL's settings. TRL finds some of these out hours later, or never.
_AT_LEAST = {
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations"), 1),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size", "max_completion_length"), 1),
    **dict.fromkeys(("vllm_tensor_parallel_size", "max_tool_calling_iterations"), 1),
    **dict.fromkeys(("learning_rate", "beta", "epsilon", "epsilon_high"), 0),
}
# None is a value of these. (Their types do not tell: transformers' parser takes None out of them.)
_OPTIONAL = {"steps_per_generation", "generation_batch_size", "max_completion_length", "epsilon_high", "min_p"}
_OPTIONAL |= {"max_tool_calling_iterations"}
# The values that TRL takes, but looks at only once a batch has been generated, or the model loaded.
ONE_OF = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_mode": ("server", "colocate"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}
# Settings that do something only where another one has one of these values.
_ONLY_WITH: dict[str, tuple[str, Collection[Any]]] = {
    "miner_gamma": ("miner_credit", ("focal",)),
    "dynamic_sampling_max_rounds": ("dynamic_sampling", (True,)),
}
# The losses of TRL that clip a ratio at every token; in the others there is nothing for a policy loss to change.
CLIPPED_LOSSES = {"grpo", "bnpo", "dr_grpo", "dapo"}
# With these losses of TRL a sequence-level ratio makes the gradient that of the row's mean advantage.
AVERAGED_BY_SEQUENCE_RATIO = {"grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo"}


def accumulation_steps(optimizer_batch_size: int, per_device_train_batch_size: int, num_processes: int) -> int:
    """Return the `gradient_accumulation_steps` that make up an optimizer batch, counted in rollouts."""
    together = per_device_train_batch_size * num_processes
    if optimizer_batch_size < 1 or optimizer_batch_size % together:
        raise ValueError(
            f"optimizer_batch_size must be a multiple of per_device_train_batch_size times the number of processes: "
            f"got {optimizer_batch_size} for {per_device_train_batch_size} x {num_processes}. Change the batch per "
            f"device, or launch another number of processes."
        )
    return optimizer_batch_size // together


@lru_cache
def _numeric_settings(config: type) -> tuple[Setting, ...]:
    """Return the settings of a configuration class that take numbers and truths alone."""
    hints = get_type_hints(config)
    found = [Setting(field.name, hints[field.name], _default(field)) for field in fields(config)]
    return tuple(setting for setting in found if {*alternatives(setting.type)} <= {bool, int, float, NONE})


def _default(field: Any) -> Any:
    return None if field.default is MISSING else field.default


def convert_fields(args: Any) -> None:
    """Bring numbers that were given as texts, as recipes may, into their type; raise ValueError for other types."""
    for setting in _numeric_settings(type(args)):  # type: ignore[arg-type]
        value = getattr(args, setting.name, None)
        if value is not None and (converted := setting.convert(value)) != value:
            setattr(args, setting.name, converted)


def check_device(args: Any) -> None:
    """Raise ValueError for bf16, transformers' default here, without a device that has it."""
    from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

    is_wanted = (args.bf16 if args.bf16 is not None else not args.fp16) or args.bf16_full_eval
    if is_wanted and not args.use_cpu and not is_torch_bf16_gpu_available() and not is_torch_xla_available():
        raise ValueError(
            f"bf16 needs a GPU that has it: got {'no such GPU' if torch.accelerator.is_available() else 'no GPU'}. To "
            f"train on a CPU, set use_cpu: true and bf16: false; on an older GPU, bf16: false and fp16: true."
        )


def check_group_size(args: Any) -> None:
    """Raise ValueError for groups of one rollout."""
    if args.num_generations < 2:
        raise ValueError(
            f"num_generations must be at least 2, because a rollout is judged against its group: got "
            f"{args.num_generations}. The paper uses 16."
        )


def check_fields(args: Any) -> None:
    """Raise ValueError for a field of our own, or one that `GRPOConfig` does not derive, that is out of range."""
    check_group_size(args)
    if math.isnan(args.correct_threshold):
        raise ValueError("correct_threshold must be a number: got nan. Verifiers that give 0 or 1 need 1.0.")
    if args.output_dir == "":
        raise ValueError("output_dir must name a folder: got ''. Write runs/NAME, or . for the current folder.")
    for method in METHODS.values():
        method.check({name: getattr(args, method.setting(name)) for name in method.knobs}, method.setting(""))
    check_limits(args)
    _check_trl_settings(args)
    credited = args.composition.credited
    _check_policy_loss(args)
    if args.dynamic_sampling:
        _check_dynamic_sampling(args, credited)
    if args.max_tokens_per_micro_batch is not None:
        _check_budget(args, args.max_tokens_per_micro_batch)


def _check_trl_settings(args: Any) -> None:
    own = type(args).__dataclass_fields__
    limits = [Knob(name=name, at_least=limit) for name, limit in _AT_LEAST.items()]
    limits += [Knob(name=name, at_least=0, at_most=1) for name in ("top_p", "min_p")]
    for knob in (*limits, *(Knob(name=name, one_of=values) for name, values in ONE_OF.items())):
        value = getattr(args, knob.name)
        if knob.name == "scale_rewards" and isinstance(value, bool):
            value = "group" if value else "none"
        if value is not None or knob.name not in _OPTIONAL:
            replace(knob, default=own[knob.name].default).check(value, {})
    if not args.temperature > 0:
        raise ValueError(
            f"temperature must be above 0, because logits are divided by it: got {args.temperature}. The default is 1."
        )
    for weight in args.reward_weights or ():
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise ValueError(f"reward_weights must hold numbers: got {weight!r}. Write [1.0, 0.5].")


def check_batches(args: Any, num_processes: int) -> None:
    """Raise ValueError where the batches of the launched processes do not come out even."""
    micro_batch = args.per_device_train_batch_size * num_processes
    if args.generation_batch_size and args.generation_batch_size % micro_batch:
        raise ValueError(
            f"generation_batch_size must be a multiple of per_device_train_batch_size times the number of processes: "
            f"got {args.generation_batch_size} for {args.per_device_train_batch_size} x {num_processes}. Change the "
            f"batch per device, or launch another number of processes."
        )
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    generation = args.generation_batch_size or micro_batch * steps
    if generation % args.num_generations:
        raise ValueError(
            f"A generation batch must hold whole groups: got {generation} rollouts for num_generations="
            f"{args.num_generations}. Make it a multiple."
        )
    if args.use_vllm and args.vllm_mode == "colocate" and num_processes % args.vllm_tensor_parallel_size:
        raise ValueError(
            f"With vllm_mode: colocate, vllm_tensor_parallel_size must divide the number of processes: got "
            f"{args.vllm_tensor_parallel_size} for {num_processes}. Set it to 1."
        )


def _check_policy_loss(args: Any) -> None:
    name = args.policy_loss
    if name not in POLICY_LOSSES:
        raise ValueError(f"policy_loss must be one of {', '.join(POLICY_LOSSES)}: got {name!r}.")
    loss = POLICY_LOSSES[name]
    if loss.function is None:
        return
    if args.importance_sampling_level != "token":
        raise ValueError(
            f"policy_loss={name} works on the ratio of each token: got importance_sampling_level="
            f"{args.importance_sampling_level!r}. Set it to 'token', or policy_loss to 'clip'."
        )
    if args.loss_type not in CLIPPED_LOSSES:
        raise ValueError(
            f"policy_loss={name} works inside a clipped loss: got loss_type={args.loss_type!r}. Use one of "
            f"{', '.join(sorted(CLIPPED_LOSSES))}."
        )
    for setting, reason in loss.refuses.items():
        if getattr(args, setting) is not None:
            raise ValueError(f"policy_loss={name} {reason}: got {setting}={getattr(args, setting)}. Leave it out.")


def _check_dynamic_sampling(args: Any, credited: Mapping[Kind, AdvantageEstimator]) -> None:
    for method in args.estimators:
        if kinds := [kind for kind, other in credited.items() if other.name == method.name]:
            mixed = args.composition.mixed.name
            raise ValueError(
                f"dynamic_sampling drops the {_prompts(sorted(kinds))} that {method.label} learns from: got "
                f"{describe_estimators(args)}. Set advantage_estimator to {mixed}"
                f"{' (that is DAPO)' if mixed == 'grpo' else ''} and leave all_right and all_wrong out, or leave "
                f"dynamic_sampling out."
            )
    mixed = args.composition.mixed
    lost = sorted(mixed.acts_on - {"mixed"} - args.composition.homogeneous.keys())
    if lost and mixed.name not in METHODS:  # what one of the user's own does with them is not known
        logger.warning(
            f"dynamic_sampling drops the {_prompts(lost)} before {mixed.label} sees them. If it learns from them, "
            f"leave dynamic_sampling out. If not, make it an AdvantageEstimator with acts_on=frozenset({{'mixed'}}), "
            f"which silences this."
        )
    elif lost:
        raise ValueError(
            f"dynamic_sampling drops the {_prompts(lost)} that {mixed.label} learns from: got "
            f"{describe_estimators(args)}. To have it learn from mixed prompts alone, write "
            f"{' and '.join(f'{kind}: none' for kind in lost)}; or leave dynamic_sampling out."
        )


def _warn_of_selection(args: Any) -> None:
    """Warn where `prompt_selection` passes over prompts that a method pays."""
    composition = args.composition
    pays = {kind: composition.mixed for kind in composition.mixed.acts_on}
    pays |= {**composition.homogeneous, **composition.credited}
    methods = {kind: pays[kind] for kind in (ALL_RIGHT, ALL_WRONG) if kind in pays and pays[kind].name in METHODS}
    if methods:
        labels = dict.fromkeys(method.label for method in methods.values())
        logger.warning(
            f"prompt_selection={args.prompt_selection} generates {_prompts(methods)} less often, from which "
            f"{' and '.join(labels)} would learn: got {describe_estimators(args)}. Leave prompt_selection out, or set "
            f"advantage_estimator: grpo alone, unless this is what you want to try."
        )


def check_dose_share(args: Any, dosed: Mapping[Kind, AdvantageEstimator]) -> None:
    """Raise ValueError where `dose_share` is no share, has nothing to act on, or has a rival."""
    if not 0 < args.dose_share < 1:
        raise ValueError(
            f"dose_share must be above 0 and below 1, as a share of the gradient's norm: got {args.dose_share}. A "
            f"good first value is 0.01. To give all-right and all-wrong prompts nothing, write advantage_estimator: "
            f"grpo alone."
        )
    if not dosed:
        raise ValueError(
            f"dose_share scales the advantages of a method of all_right or all_wrong prompts beside another method of "
            f"mixed ones: got {describe_estimators(args)}, which has none. Write advantage_estimator: grpo with "
            f"all_right: miner, or leave dose_share out."
        )
    for kind, method in dosed.items():
        if method is REINFORCE_PP_BASELINE:
            raise ValueError(
                f"dose_share needs a method that tells the rollouts of a prompt apart or pays them all: got {kind}: "
                f"{method.name}, which subtracts the group's mean and leaves an {kind.replace('_', '-')} prompt "
                f"nothing but the batch's offset. Choose another, such as "
                f"{'miner' if kind == ALL_RIGHT else 'rl_zvp'}, or leave dose_share out."
            )
        knob = method.knobs.get("lambda_max")
        setting = method.setting("lambda_max")
        if knob is not None and (value := getattr(args, setting)) not in (None, knob.default):
            raise ValueError(
                f"{setting} must be left out with dose_share, which takes the place of this cap: got {value}. Leave "
                f"one of them out."
            )


def describe_estimators(args: Any) -> str:
    """Return the settings that name the estimators as they are written."""
    names = ("advantage_estimator", "all_right", "all_wrong")
    return ", ".join(f"{name}={value!r}" for name in names if (value := getattr(args, name)) is not None)


def _prompts(kinds: Iterable[Kind]) -> str:
    return f"{' and '.join(kinds).replace('_', '-')} prompts"


def _check_budget(args: Any, budget: float) -> None:
    if budget < 2 or budget != int(budget):
        raise ValueError(
            f"max_tokens_per_micro_batch must be a whole number of tokens, at least 2: got {budget}. It must hold the "
            f"longest prompt and max_completion_length={args.max_completion_length} tokens."
        )
    if not args.compute_less:
        raise ValueError(
            f"max_tokens_per_micro_batch sorts rollouts by length: got {budget} with compute_less=False. "
            f"Leave one of them out."
        )
    if args.max_completion_length is not None and budget <= args.max_completion_length:
        logger.warning(
            f"max_tokens_per_micro_batch={budget} does not hold a prompt and max_completion_length="
            f"{args.max_completion_length} tokens: the run ends with an error if a rollout is longer."
        )


def check_combinations(args: Any) -> None:
    """Raise ValueError for what depends on fields that `GRPOConfig` derives, and warn of settings without effect."""
    _warn_of_averaging(args)
    _warn_of_unused(args)
    _warn_of_own_scaling(args)
    loss = args.policy_loss_method
    accumulation, cycle = args.gradient_accumulation_steps, args.steps_per_generation * args.num_iterations
    shown = f"gradient_accumulation_steps={accumulation}, steps_per_generation={args.steps_per_generation}, "
    shown += f"num_iterations={args.num_iterations}"
    if loss.off_policy_only and accumulation % cycle == 0:
        logger.warning(
            f"policy_loss={loss.name} does nothing strictly on-policy, where every probability ratio is 1: got "
            f"{shown}. Raise steps_per_generation or num_iterations, as recipes/arithmetic/{loss.name}.yaml does."
        )
    elif loss.spans_optimizer_step and args.steps_per_generation % accumulation:
        raise ValueError(
            f"policy_loss={loss.name} searches its bounds over a whole optimizer batch, which must lie in one "
            f"generation batch: got {shown}. Make steps_per_generation a multiple of gradient_accumulation_steps."
        )
    if args.kl_on == ROWS_WITH_ADVANTAGE and args.beta == 0:
        logger.warning(
            f"kl_on={ROWS_WITH_ADVANTAGE} does nothing without a KL penalty: got beta={args.beta}. Set beta above 0, "
            f"or leave kl_on out."
        )
    if args.prompt_selection in SELECTIONS:
        _warn_of_selection(args)
    if args.dynamic_sampling and args.eval_strategy != "no":
        logger.warning(
            "dynamic_sampling is for training: evaluation drops no prompt, so that eval_reward and reward are not "
            "means over the same kind of prompts."
        )


def _warn_of_unused(args: Any) -> None:
    """Warn of settings whose method or feature has no part in the run."""
    used = {method.setting(name) for method in args.methods for name in method.knobs}
    unused = {
        method.setting(name): (knob.default, f"of {method.name}, which has no part in this run")
        for method in METHODS.values()
        for name, knob in method.knobs.items()
        if not method.settings_of and method.setting(name) not in used
    }
    for setting, (other, values) in _ONLY_WITH.items():
        if setting not in unused and getattr(args, other) not in values:
            default = type(args).__dataclass_fields__[setting].default
            unused[setting] = default, f"which needs {other}: {' or '.join(str(value).lower() for value in values)}"
    shown = [
        f"{name}={value!r} ({why})"
        for name, (default, why) in unused.items()
        if (value := getattr(args, name)) != default
    ]
    if shown:
        logger.warning(f"Settings without effect: {'; '.join(shown)}. Leave them out, or set what they need.")


def _warn_of_own_scaling(args: Any) -> None:
    """Warn where a method makes its advantages of the summed rewards, past TRL's settings of how to scale them."""
    own = [method.name for method in args.estimators if method.from_total_rewards]
    wanted = {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}
    passed_over = [f"{name}={value!r}" for name, usual in wanted.items() if (value := getattr(args, name)) != usual]
    if own and passed_over:
        logger.warning(
            f"{' and '.join(passed_over)} has no effect on {' and '.join(own)}, which scales the weighted sum of the "
            f"rewards in its own way. Use grpo or miner for it, or leave it out."
        )


def _warn_of_averaging(args: Any) -> None:
    """Warn where the loss averages over each rollout what a method tells apart token by token."""
    if args.importance_sampling_level != "sequence" or args.loss_type not in AVERAGED_BY_SEQUENCE_RATIO:
        return
    per_token = [method for method in args.estimators if method.is_per_token(args.knobs(method.name))]
    if not per_token:
        return
    culprit, silence = describe_estimators(args), ""
    if len(per_token) == 1 and (uniform := per_token[0].uniform_when):
        settings = {f"{per_token[0].name}_{name}": value for name, value in uniform.items()}
        culprit = " and ".join(f"{name}={getattr(args, name)!r}" for name in settings)
        silence = f", or {' or '.join(f'{name}={value!r}' for name, value in settings.items())} to silence this"
    logger.warning(
        f"importance_sampling_level='sequence' with loss_type='{args.loss_type}' averages the advantage over each "
        f"rollout, so {culprit} does not reach single tokens. Use importance_sampling_level='token' for it{silence}."
    )


def check_quantized_for_vllm(bits: int, *, is_sharded: bool, has_dora: bool) -> None:
    """Raise ValueError where vLLM cannot get the weights of a model in 4 or 8 bits in full."""
    if bits == 8:
        raise ValueError(
            "vLLM samples from models in 4 bits, or 16 and more: got load_in_8bit. Set load_in_4bit, or neither."
        )
    if has_dora:
        raise ValueError(
            "vLLM with load_in_4bit takes LoRA adapters: got use_dora. Leave out use_dora or load_in_4bit."
        )
    if is_sharded:
        raise ValueError(
            "A model in 4 bits that vLLM samples from must not be sharded: got FSDP or ZeRO-3. Use "
            "recipes/accelerate/ddp.yaml, or leave out load_in_4bit."
        )
