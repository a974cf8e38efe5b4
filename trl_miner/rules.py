"""The rules of settings, by what must be known to check them: one list for configuration, trainer and doctor.

A rule raises ValueError for settings that cannot be, and logs a warning for those without the effect they suggest.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from .methods import F_GRPO, KL_COV, METHODS, REINFORCE_PP_BASELINE, SELECTIONS
from .methods.fields import check_limits
from .methods.method import AdvantageEstimator, Kind, Knob

logger = logging.getLogger("trl_miner.config")

# Lower bounds of TRL's settings. TRL finds some of these out hours later, or never.
_AT_LEAST = {
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations"), 1),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size", "max_completion_length"), 1),
    **dict.fromkeys(("vllm_tensor_parallel_size", "max_tool_calling_iterations"), 1),
    "num_generations": 2,  # a rollout is judged against its group
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
    "max_tokens_per_micro_batch": ("compute_less", (True,)),
}
# The losses of TRL that clip a ratio at every token; in the others there is nothing for a policy loss to change.
CLIPPED_LOSSES = {"grpo", "bnpo", "dr_grpo", "dapo"}
# With these losses of TRL a sequence-level ratio makes the gradient that of the row's mean advantage.
AVERAGED_BY_SEQUENCE_RATIO = {"grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo"}
# The distributions of accelerate with which no process has every weight and its gradient.
_SHARDED = {"DEEPSPEED", "FSDP", "MEGATRON_LM"}


# Known: the settings, before `GRPOConfig` derives some from others.


def own_fields_are_in_range(args: Any) -> None:
    """Fields of our own, the methods' knobs among them, are within their limits."""
    if math.isnan(args.correct_threshold):
        raise ValueError("correct_threshold must be a number: got nan. Verifiers that give 0 or 1 need 1.0.")
    if args.output_dir == "":
        raise ValueError("output_dir must name a folder: got ''. Write runs/NAME, or . for the current folder.")
    for method in METHODS.values():
        method.check({name: getattr(args, method.setting(name)) for name in method.knobs}, method.setting(""))
    check_limits(args)


def trl_fields_are_in_range(args: Any) -> None:
    """Fields of TRL that it does not check, or late, are within their limits."""
    limits = [Knob(name=name, at_least=limit) for name, limit in _AT_LEAST.items()]
    limits += [Knob(name=name, at_least=0, at_most=1) for name in ("top_p", "min_p")]
    for knob in (*limits, *(Knob(name=name, one_of=values) for name, values in ONE_OF.items())):
        value = getattr(args, knob.name)
        if knob.name == "scale_rewards" and isinstance(value, bool):
            value = "group" if value else "none"
        if value is not None or knob.name not in _OPTIONAL:
            replace(knob, default=getattr(type(args), knob.name)).check(value, {})
    if not args.temperature > 0:
        raise ValueError(
            f"temperature must be above 0, because logits are divided by it: got {args.temperature}. The default is 1."
        )
    for weight in args.reward_weights or ():
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise ValueError(f"reward_weights must hold numbers: got {weight!r}. Write [1.0, 0.5].")


def policy_loss_fits(args: Any) -> None:
    """A `policy_loss` has a loss of TRL's that it can change."""
    name = args.policy_loss
    if args.policy_loss_method.function is None:
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
    if name == KL_COV.name and args.delta is not None:
        raise ValueError(
            f"policy_loss={name} has no clipping for delta to bound: got delta={args.delta}. Leave it out."
        )


def dynamic_sampling_keeps_what_methods_learn_from(args: Any) -> None:
    """`dynamic_sampling` has no method beside it that learns from the prompts that it drops."""
    mixed, learners = args.composition.mixed, _learners(args)
    if not (args.dynamic_sampling and learners):
        return
    labels = " and ".join(dict.fromkeys(method.label for method in learners.values()))
    text = (
        f"dynamic_sampling drops the {_prompts(learners)} that {labels} learns from: got {describe_estimators(args)}"
    )
    advice = f"write advantage_estimator: {mixed.name} with {' and '.join(f'{kind}: none' for kind in learners)}"
    names = {method.name for method in learners.values()}
    if names == {mixed.name} and mixed.name not in METHODS:  # what it does with them is not known
        logger.warning(f"{text}. If it does, {advice}, or leave dynamic_sampling out.")
    else:
        raise ValueError(f"{text}. To learn from mixed prompts alone, {advice}; or leave dynamic_sampling out.")


def adaptive_sampling_fits(args: Any) -> None:
    """`adaptive_sampling_rounds` has no other sampling beside it, and advantages are by all rollouts of a prompt."""
    if args.adaptive_sampling_rounds <= 1:
        return
    mixed, got = args.composition.mixed, "dynamic_sampling=True" if args.dynamic_sampling else ""
    if args.multi_objective_aggregation != "sum_then_normalize":
        got = f"multi_objective_aggregation={args.multi_objective_aggregation!r}"
    if mixed.from_total_rewards or mixed is F_GRPO:  # which see half of a group right, whatever the prompt's share is
        got = f"advantage_estimator={mixed.name!r}, which goes by the rewards of the chosen rollouts alone"
    if got:
        raise ValueError(
            f"adaptive_sampling_rounds fills the batch by itself, and judges a rollout by the summed rewards of all "
            f"rollouts of its prompt: got {got}. Leave one of them out."
        )


def token_budget_holds_a_rollout(args: Any) -> None:
    """`max_tokens_per_micro_batch` holds the longest completion."""
    budget, longest = args.max_tokens_per_micro_batch, args.max_completion_length
    if budget is not None and longest is not None and budget <= longest:
        logger.warning(
            f"max_tokens_per_micro_batch={budget} does not hold a prompt and max_completion_length={longest} tokens: "
            f"the run ends with an error if a rollout is longer."
        )


def dose_has_methods_to_scale(args: Any) -> None:
    """`dose_share` is a share, has methods to act on, and no cap beside it."""
    if args.dose_share is None:
        return
    if not 0 < args.dose_share < 1:
        raise ValueError(
            f"dose_share must be above 0 and below 1, as a share of the gradient's norm: got {args.dose_share}. A "
            f"good first value is 0.01; for none, write advantage_estimator: grpo alone."
        )
    if not args.composition.dosed:
        raise ValueError(
            f"dose_share scales the advantages of a method of all_right or all_wrong prompts beside another method of "
            f"mixed ones: got {describe_estimators(args)}, which has none. Write advantage_estimator: grpo with "
            f"all_right: miner, or leave dose_share out."
        )
    for kind, method in args.composition.dosed.items():
        if method is REINFORCE_PP_BASELINE:
            raise ValueError(
                f"dose_share needs a method that gives the rollouts of such a prompt an advantage: got {kind}: "
                f"{method.name}, which leaves it nothing but the batch's offset. Choose another."
            )
        knob, setting = method.knobs.get("lambda_max"), method.setting("lambda_max")
        if knob is not None and (value := getattr(args, setting)) not in (None, knob.default):
            raise ValueError(
                f"{setting} must be left out with dose_share, which takes the place of this cap: got {value}."
            )


# Known besides: the number of launched processes.


def batches_come_out_even(args: Any, num_processes: int) -> None:
    """The batches of the launched processes hold whole groups."""
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


# Known besides: whether this machine has the device that the settings ask for.


def device_has_bf16(args: Any) -> None:
    """bf16, transformers' default here, has a device that computes in it."""
    from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

    is_wanted = (args.bf16 if args.bf16 is not None else not args.fp16) or args.bf16_full_eval
    if is_wanted and not args.use_cpu and not is_torch_bf16_gpu_available() and not is_torch_xla_available():
        raise ValueError(
            f"bf16 needs a GPU that has it: got {'no such GPU' if torch.accelerator.is_available() else 'no GPU'}. To "
            f"train on a CPU, set use_cpu: true and bf16: false; on an older GPU, bf16: false and fp16: true."
        )


# Known: the settings with what `GRPOConfig` has derived.


def token_advantages_reach_tokens(args: Any) -> None:
    """The loss does not average over each rollout what differs from token to token."""
    if args.importance_sampling_level != "sequence" or args.loss_type not in AVERAGED_BY_SEQUENCE_RATIO:
        return
    if any(method.per_token for method in args.estimators):
        logger.warning(
            f"importance_sampling_level='sequence' with loss_type='{args.loss_type}' averages the advantage over each "
            f"rollout, so that of {describe_estimators(args)} does not reach single tokens. Use "
            f"importance_sampling_level='token' for it."
        )


def settings_have_an_effect(args: Any) -> None:
    """No setting is of a method or feature that has no part in the run."""
    used = {method.setting(name) for method in args.methods for name in method.knobs}
    unused = {
        method.setting(name): (knob.default, f"of {method.name}, which has no part in this run")
        for method in METHODS.values()
        for name, knob in method.knobs.items()
        if not method.settings_of and method.setting(name) not in used
    }
    for setting, (other, values) in _ONLY_WITH.items():
        if setting not in unused and getattr(args, other) not in values:
            default = getattr(type(args), setting)
            unused[setting] = default, f"which needs {other}: {' or '.join(str(value).lower() for value in values)}"
    shown = [
        f"{name}={value!r} ({why})"
        for name, (default, why) in unused.items()
        if (value := getattr(args, name)) != default
    ]
    if shown:
        logger.warning(f"Settings without effect: {'; '.join(shown)}. Leave them out, or set what they need.")


def rewards_are_scaled_as_asked(args: Any) -> None:
    """No method makes its advantages of the summed rewards, past TRL's settings of how to scale them."""
    own = [method.name for method in args.estimators if method.from_total_rewards]
    wanted = {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}
    passed_over = [f"{name}={value!r}" for name, usual in wanted.items() if (value := getattr(args, name)) != usual]
    if own and passed_over:
        logger.warning(
            f"{' and '.join(passed_over)} has no effect on {' and '.join(own)}, which scales the weighted sum of the "
            f"rewards in its own way. Use grpo or miner for it, or leave it out."
        )


def policy_loss_has_ratios(args: Any) -> None:
    """A `policy_loss` sees the off-policy ratios, and whole optimizer steps, that it needs."""
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


def selection_generates_what_methods_learn_from(args: Any) -> None:
    """`prompt_selection` does not pass over prompts that a method learns from."""
    learners = {kind: method for kind, method in _learners(args).items() if method.name in METHODS}
    if args.prompt_selection in SELECTIONS and learners:
        labels = dict.fromkeys(method.label for method in learners.values())
        logger.warning(
            f"prompt_selection={args.prompt_selection} generates {_prompts(learners)} less often, from which "
            f"{' and '.join(labels)} would learn. Leave it out, or set advantage_estimator: grpo alone."
        )


# Known besides: accelerate's distribution and precision; of a model in 4 or 8 bits, how vLLM would get its weights.


def gradients_can_be_measured(args: Any, *, distribution: str, precision: str) -> None:
    """Every process has the gradients that `dose_share` and `log_gradient_share` measure."""
    setting = " and ".join(name for name in ("dose_share", "log_gradient_share") if getattr(args, name))
    if not setting:
        return
    reason, checkpointing = None, args.gradient_checkpointing_kwargs or {}
    if distribution.upper() in _SHARDED:
        reason = f"needs every weight and its gradient on each process: got {distribution}. Launch without it"
    elif precision == "fp16":
        reason = "does not follow the loss scaling of fp16: got fp16=True. Use bf16"
    elif args.gradient_checkpointing and checkpointing.get("use_reentrant"):
        reason = "takes gradients by torch.autograd.grad, which reentrant checkpointing does not support: got "
        reason += "gradient_checkpointing_kwargs={'use_reentrant': True}. Set it to False"
    if reason:
        raise ValueError(f"{setting} {reason}, or leave {setting} out.")


def vllm_gets_quantized_weights(*, bits: int, is_sharded: bool, has_dora: bool) -> None:
    """vLLM can get the weights of a quantized model in full."""
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


# Known besides: the training set.


def draws_prompts(args: Any) -> bool:
    """Return whether the trainer draws prompts itself, in the place of TRL's dataloader."""
    return bool(args.dynamic_sampling or args.adaptive_sampling_rounds > 1 or args.prompt_selection in SELECTIONS)


def prompts_can_be_drawn(args: Any, rows: Any, *, has_tools: bool) -> None:
    """What draws prompts in the place of TRL's dataloader can draw those of a training set by their index."""
    if not draws_prompts(args):
        return
    setting = "dynamic_sampling" if args.dynamic_sampling else "adaptive_sampling_rounds"
    has_images = bool({"image", "images"} & set(getattr(rows, "column_names", None) or ()))
    if (args.dynamic_sampling or args.adaptive_sampling_rounds > 1) and (has_tools or has_images):
        raise ValueError(
            f"{setting} works on prompts of text alone: got tools, environments or images. Leave {setting} out."
        )
    if not (args.dynamic_sampling or args.adaptive_sampling_rounds > 1):
        setting = f"prompt_selection: {args.prompt_selection}"
    if not isinstance(rows, Sized):
        raise ValueError(
            f"{setting} draws prompts by their index: got a streaming training set. Load it without streaming, or "
            f"leave {setting} out."
        )
    num_groups = args.generation_batch_size // args.num_generations
    if len(rows) < 2 * num_groups:
        raise ValueError(
            f"{setting} needs a training set to choose from, of at least two batches: got {len(rows)} prompts for "
            f"batches of {num_groups}. Use more prompts, or a smaller batch."
        )


def describe_estimators(args: Any) -> str:
    """Return the settings that name the estimators as they are written."""
    names = ("advantage_estimator", "all_right", "all_wrong")
    return ", ".join(f"{name}={value!r}" for name in names if (value := getattr(args, name)) is not None)


def _learners(args: Any) -> dict[Kind, AdvantageEstimator]:
    """Return the methods that may learn from all-right and all-wrong prompts, by the kind of prompt."""
    mixed, homogeneous = args.composition.mixed, args.composition.homogeneous
    return {kind: mixed for kind in sorted(mixed.acts_on - {"mixed"} - homogeneous.keys())} | args.composition.dosed


def _prompts(kinds: Iterable[Kind]) -> str:
    return f"{' and '.join(kinds).replace('_', '-')} prompts"


# The rules of settings before `GRPOConfig` derives some from others, and those of what it has derived.
SETTINGS = (
    own_fields_are_in_range,
    trl_fields_are_in_range,
    policy_loss_fits,
    dynamic_sampling_keeps_what_methods_learn_from,
    adaptive_sampling_fits,
    token_budget_holds_a_rollout,
    dose_has_methods_to_scale,
)
DERIVED = (
    token_advantages_reach_tokens,
    settings_have_an_effect,
    rewards_are_scaled_as_asked,
    policy_loss_has_ratios,
    selection_generates_what_methods_learn_from,
)


def check(rules: Iterable[Callable[[Any], None]], args: Any) -> None:
    """Run rules on settings. Raises ValueError if one is broken: with the rule, the value and what to do."""
    for rule in rules:
        rule(args)
