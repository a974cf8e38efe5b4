"""The rules of settings, by what must be known to check them: one list for configuration, trainer
and doctor.

A rule raises ValueError for settings that cannot be, and logs a warning for those without the
effect they suggest.
"""

import logging
import math
from collections.abc import Callable, Sized
from typing import Any

from ..common.setting import check_limits, out_of_limits
from ..methods import KL_COV, METHODS, MINER, SELECTIONS
from ..methods.method import AdvantageEstimator, Kind

logger = logging.getLogger("trl_miner.trainer.config")

# The values that TRL takes, but looks at only once a batch has been generated, or the model loaded.
ONE_OF = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_mode": ("server", "colocate"),
    "vllm_importance_sampling_mode": (
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    ),
}
# The numbers that TRL and transformers take, though nothing is trained with them, or something else
# than they say: max_steps=-5 trains whole epochs.
_LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "at least 0": (
        lambda value: value >= 0,
        "learning_rate weight_decay beta epsilon epsilon_high max_grad_norm warmup_steps"
        " adam_epsilon dataloader_num_workers num_completions_to_print",
    ),
    "above 0": (
        lambda value: value > 0,
        "temperature repetition_penalty delta num_train_epochs logging_steps save_steps eval_steps"
        " vllm_server_timeout vllm_importance_sampling_clip_max vllm_importance_sampling_cap"
        " sapo_temperature_neg sapo_temperature_pos off_policy_mask_threshold",
    ),
    "at least 1": (
        lambda value: value >= 1,
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps"
        " generation_batch_size steps_per_generation num_iterations max_completion_length"
        " vllm_max_model_length vllm_tensor_parallel_size ref_model_sync_steps"
        " max_tool_calling_iterations",
    ),
    "at least 2": (lambda value: value >= 2, "num_generations"),
    "between 0 and 1": (
        lambda value: 0 <= value <= 1,
        "adam_beta1 adam_beta2 min_p top_entropy_quantile ref_model_mixup_alpha",
    ),
    "above 0 and at most 1": (lambda value: 0 < value <= 1, "top_p vllm_gpu_memory_utilization"),
    "at least 1, or -1 for whole epochs": (lambda value: value == -1 or value >= 1, "max_steps"),
    "between 0 and 4294967295": (lambda value: 0 <= value < 2**32, "seed data_seed"),
}
# The losses of TRL that clip a ratio at every token; in the others there is nothing for a policy
# loss to change.
CLIPPED_LOSSES = {"grpo", "bnpo", "dr_grpo", "dapo"}
# With these losses of TRL a sequence-level ratio makes the gradient that of the row's mean
# advantage.
AVERAGED_BY_SEQUENCE_RATIO = {"grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo"}
# The distributions of accelerate with which no process has every weight and its gradient.
_SHARDED = {"DEEPSPEED", "FSDP", "MEGATRON_LM"}


# Known: the settings, before `GRPOConfig` derives some from others.


def fields_are_in_range(args: Any) -> None:
    """Fields of our own are within their limits, and those of TRL whose wrong values nothing else
    refuses."""
    if math.isnan(args.correct_threshold):
        raise ValueError(
            "correct_threshold must be a number: got nan. Verifiers that give 0 or 1 need 1.0."
        )
    if args.output_dir == "":
        raise ValueError(
            "output_dir must name a folder: got ''. Write runs/NAME, or . for the current folder."
        )
    weights = getattr(args, "reward_weights", None) or ()
    if not all(math.isfinite(weight) for weight in weights):
        raise ValueError(f"reward_weights must be finite numbers: got {[*weights]}.")
    for name, values in ONE_OF.items():
        if (value := getattr(args, name)) not in values and not isinstance(value, bool):
            default = type(args).__dataclass_fields__[name].default
            raise ValueError(out_of_limits(name, value, f"one of {', '.join(values)}", default))
    for rule, (is_within, names) in _LIMITS.items():
        for name in names.split():
            value = getattr(args, name, None)  # the asynchronous trainer has only some of them
            if value is not None and not (is_within(value) and math.isfinite(value)):
                rule += ", and finite" * (value == math.inf)
                default = type(args).__dataclass_fields__[name].default
                raise ValueError(out_of_limits(name, value, rule, default))
    check_limits(args)


def policy_loss_fits(args: Any) -> None:
    """A `policy_loss` has a loss of TRL's that it can change."""
    name, why = args.policy_loss, ""
    if args.policy_loss_method.function is None:
        return
    if args.importance_sampling_level != "token":
        why = (
            "works on the ratio of each token: got"
            f" importance_sampling_level={args.importance_sampling_level!r}"
        )
    elif args.loss_type not in CLIPPED_LOSSES:
        why = (
            f"works inside a clipped loss, {', '.join(sorted(CLIPPED_LOSSES))}: got"
            f" loss_type={args.loss_type!r}"
        )
    elif name == KL_COV.name and args.delta is not None:
        why = f"has no clipping for delta to bound: got delta={args.delta}"
    if why:
        raise ValueError(f"policy_loss={name} {why}. Change that, or set `policy_loss: clip`.")


def sampling_keeps_what_methods_learn_from(args: Any) -> None:
    """Neither `dynamic_sampling` nor `prompt_selection` passes over prompts that a method learns
    from."""
    mixed, learners = args.composition.mixed, _learners(args)
    if not learners:
        return
    labels = " and ".join(dict.fromkeys(method.label for method in learners.values()))
    what = f"{' and '.join(learners).replace('_', '-')} prompts that {labels} learns from"
    if args.dynamic_sampling:
        raise ValueError(
            f"dynamic_sampling drops the {what} ({describe_estimators(args)}). Leave it out; or, to"
            f" learn from mixed prompts alone, set `advantage_estimator: {mixed.name}` and"
            f" {' and '.join(f'`{kind}: none`' for kind in learners)}."
        )
    if args.prompt_selection in SELECTIONS:
        logger.warning(
            f"prompt_selection={args.prompt_selection} generates less often the {what}. Leave it"
            " out, or set `advantage_estimator: grpo` alone."
        )


def adaptive_sampling_fits(args: Any) -> None:
    """`adaptive_sampling_rounds` has no other sampling beside it, and advantages are by all
    rollouts of a prompt."""
    if args.adaptive_sampling_rounds <= 1:
        return
    mixed, got = args.composition.mixed, "dynamic_sampling=True" if args.dynamic_sampling else ""
    if args.multi_objective_aggregation != "sum_then_normalize":
        got = f"multi_objective_aggregation={args.multi_objective_aggregation!r}"
    # which see half of a group right, whatever the prompt's share is
    if mixed.from_total_rewards or mixed.needs_whole_groups:
        got = (
            f"advantage_estimator={mixed.name!r}, which goes by the rewards of the chosen completions"
            " alone"
        )
    if got:
        raise ValueError(
            "adaptive_sampling_rounds fills the batch itself, and judges a completion by the summed"
            f" rewards of all of its prompt: got {got}. Leave one of them out."
        )


def dose_has_methods_to_scale(args: Any) -> None:
    """`dose_share` is a share, and has methods to act on."""
    if args.dose_share is None:
        return
    if not 0 < args.dose_share < 1:
        raise ValueError(
            f"dose_share is {args.dose_share}. It must be above 0 and below 1; a good first value is"
            " 0.01."
        )
    if not args.composition.dosed:
        raise ValueError(
            f"dose_share has nothing to scale ({describe_estimators(args)}). Set"
            " `advantage_estimator: grpo` and `all_right: miner`, or leave dose_share out: it scales a"
            " method of all-right or all-wrong prompts beside another one of mixed prompts."
        )


# Known: the settings with what `GRPOConfig` has derived.


def token_advantages_reach_tokens(args: Any) -> None:
    """The loss does not average over each rollout what differs from token to token."""
    if (
        args.importance_sampling_level != "sequence"
        or args.loss_type not in AVERAGED_BY_SEQUENCE_RATIO
    ):
        return
    if any(method.scores or method is MINER for method in args.estimators):
        logger.warning(
            f"importance_sampling_level='sequence' with loss_type='{args.loss_type}' averages the"
            f" advantage over each completion, so that of {describe_estimators(args)} does not reach"
            " single tokens. Use importance_sampling_level='token' for it."
        )


def settings_have_an_effect(args: Any) -> None:
    """No setting is of a method or feature that has no part in the run, or that a method passes
    over."""
    used = {field for method in args.methods for field in method.settings.values()}
    unused = {
        field: f"of {method.name}, which has no part in this run"
        for method in reversed(METHODS.values())  # of those with one field, the first is named
        for field in method.settings.values()
        if field not in used
    }
    if args.dose_share is not None:
        unused["miner_lambda_max"] = "dose_share takes its place"
    if not args.compute_less:
        unused["max_tokens_per_micro_batch"] = "which needs compute_less: true"
    if scaling := [method.name for method in args.estimators if method.from_total_rewards]:
        why = f"as {' and '.join(scaling)} scales the weighted sum of the rewards in its own way"
        unused |= dict.fromkeys(("scale_rewards", "multi_objective_aggregation"), why)
    shown = [
        f"{name}={value!r} ({why})"
        for name, why in unused.items()
        if (value := getattr(args, name)) != getattr(type(args), name)
    ]
    if shown:
        logger.warning(
            f"Settings without effect: {'; '.join(shown)}. Leave them out, or set what they need."
        )


def policy_loss_has_ratios(args: Any) -> None:
    """A `policy_loss` sees the off-policy ratios, and whole optimizer steps, that it needs."""
    loss = args.policy_loss_method
    accumulation, cycle = (
        args.gradient_accumulation_steps,
        args.steps_per_generation * args.num_iterations,
    )
    if loss.off_policy_only and accumulation % cycle == 0:
        logger.warning(
            f"policy_loss={loss.name} does nothing strictly on-policy, where every probability"
            " ratio is 1. Raise steps_per_generation or num_iterations, as"
            f" recipes/arithmetic/{loss.name}.yaml does."
        )
    elif loss.spans_optimizer_step and args.steps_per_generation % accumulation:
        raise ValueError(
            f"policy_loss={loss.name} searches its bounds over an optimizer batch: got"
            f" {accumulation} micro-batches, and steps_per_generation={args.steps_per_generation}."
            " Make steps_per_generation a multiple of gradient_accumulation_steps."
        )


def dose_sees_a_step(args: Any) -> None:
    """A `dose_share` is held in each generation batch: one for each optimizer step, or for
    several."""
    if args.dose_share is not None and (count := 1 / args.optimizer_steps_per_generation) > 1:
        logger.warning(
            f"dose_share is held in each generation batch, and an optimizer step has {count:g}. If"
            " some of them have no mixed prompt, the step's share lies above it; dose/share shows"
            " it. Raise steps_per_generation for one batch a step."
        )


def policy_loss_has_rollouts_to_compare(args: Any) -> None:
    """Clip-Cov and KL-Cov find several rollouts in a micro-batch: all tokens of one have the same
    advantage."""
    if (
        args.policy_loss_method.fixed_micro_batches
        and args.per_device_train_batch_size * args.num_processes < 2
    ):
        raise ValueError(
            f"policy_loss={args.policy_loss} compares the completions of a micro-batch: got one alone,"
            " in which all covariances are 0. Raise per_device_train_batch_size, or take several"
            " processes."
        )


# Known besides: accelerate's distribution and precision; of a model in 4 or 8 bits, how vLLM would
# get its weights.


def gradients_can_be_measured(args: Any, *, distribution: str, precision: str) -> None:
    """Every process has the gradients that `dose_share` and `log_gradient_share` measure."""
    setting = " and ".join(
        name for name in ("dose_share", "log_gradient_share") if getattr(args, name)
    )
    if not setting:
        return
    reason = ""
    if distribution.upper() in _SHARDED:
        reason = (
            f"needs every weight and its gradient on each process: got {distribution}. Launch"
            " without it"
        )
    elif precision == "fp16":
        reason = "does not follow the loss scaling of fp16: got fp16=True. Use bf16"
    if reason:
        raise ValueError(f"{setting} {reason}, or leave {setting} out.")


def vllm_gets_quantized_weights(*, bits: int, is_sharded: bool, has_dora: bool) -> None:
    """vLLM can get the weights of a quantized model in full."""
    got = {"load_in_8bit": bits == 8, "use_dora": has_dora, "FSDP or ZeRO-3": is_sharded}
    if any(got.values()):
        raise ValueError(
            "vLLM gets the weights of a quantized model only in 4 bits, without DoRA, and whole on"
            f" each process: got {', '.join(name for name, is_so in got.items() if is_so)}. Change"
            " that, or leave out load_in_4bit."
        )


# Known besides: the training set.


def draws_prompts(args: Any) -> str:
    """Return the setting by which the trainer draws prompts in the place of TRL's dataloader;
    empty: it does not."""
    if args.dynamic_sampling:
        return "dynamic_sampling"
    if args.adaptive_sampling_rounds > 1:
        return "adaptive_sampling_rounds"
    return "prompt_selection" if args.prompt_selection in SELECTIONS else ""


def prompts_can_be_drawn(args: Any, rows: Any, *, has_tools: bool) -> None:
    """A training set has the prompts of a batch; what draws them in the place of TRL's dataloader
    can do so by their index."""
    setting, why = draws_prompts(args), ""
    has_images = bool({"image", "images"} & set(getattr(rows, "column_names", None) or ()))
    num_groups = args.generation_batch_size // args.num_generations
    # TRL would make no step, without an error
    if isinstance(rows, Sized) and len(rows) < num_groups:
        raise ValueError(
            f"The training set must fill a generation batch: got {len(rows)} prompts for batches of"
            f" {num_groups} (generation_batch_size / num_generations). Lower"
            " per_device_train_batch_size, or add prompts."
        )
    if not setting:
        return
    if setting != "prompt_selection" and (has_tools or has_images):
        why = "works on prompts of text alone: got tools, environments or images"
    elif not isinstance(rows, Sized):
        why = "draws prompts by their index: got a streaming training set"
    elif len(rows) < 2 * num_groups:
        why = (
            f"chooses from at least two batches: got {len(rows)} prompts for batches of"
            f" {num_groups}"
        )
    if why:
        raise ValueError(f"{setting} {why}. Change that, or leave {setting} out.")


def prompts_can_be_recognised(args: Any, *, has_environment: bool) -> None:
    """What goes by the past of a prompt knows it by its text, where no environment brings the
    task."""
    by_past = [
        f"advantage_estimator: {method.name}" for method in args.estimators if method.reads_past
    ]
    by_past += [f"prompt_selection: {args.prompt_selection}"] * (
        args.prompt_selection in SELECTIONS
    )
    if has_environment and by_past:
        raise ValueError(
            f"{by_past[0]} knows a prompt by its text: got environment_factory, whose environments"
            " may pose other tasks with the same text. Leave one of them out."
        )


def describe_estimators(args: Any) -> str:
    """Return the settings that name the estimators as they are written."""
    names = ("advantage_estimator", "all_right", "all_wrong")
    return ", ".join(
        f"{name}={value!r}" for name in names if (value := getattr(args, name)) is not None
    )


def _learners(args: Any) -> dict[Kind, AdvantageEstimator]:
    """Return the methods that may learn from all-right and all-wrong prompts, by the kind of
    prompt."""
    mixed, homogeneous = args.composition.mixed, args.composition.homogeneous
    return {
        kind: mixed for kind in sorted(mixed.acts_on - {"mixed"} - homogeneous.keys())
    } | args.composition.dosed


def check_settings(args: Any) -> None:
    """Check what is known before `GRPOConfig` derives some settings from others.

    Raises ValueError if a rule is broken: with the rule, the value and what to do.
    """
    fields_are_in_range(args)
    policy_loss_fits(args)
    sampling_keeps_what_methods_learn_from(args)
    adaptive_sampling_fits(args)
    dose_has_methods_to_scale(args)


def check_derived(args: Any) -> None:
    """Check what `GRPOConfig` has derived, as `check_settings` does."""
    token_advantages_reach_tokens(args)
    settings_have_an_effect(args)
    dose_sees_a_step(args)
    policy_loss_has_ratios(args)
    policy_loss_has_rollouts_to_compare(args)
