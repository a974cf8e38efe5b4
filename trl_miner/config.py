"""`MinerGRPOConfig`: TRL's `GRPOConfig` and the method's own knobs."""

import logging
import math
import os
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trl import GRPOConfig

from .methods.compose import ESTIMATORS, TOKEN_LEVEL, parse_estimator
from .methods.miner import CREDITS, INTRINSICS, check_knobs
from .methods.token_losses import CLIPPED_LOSSES, OFF_POLICY_ONLY, POLICY_LOSSES

logger = logging.getLogger(__name__)

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


@dataclass
class MinerGRPOConfig(GRPOConfig):
    r"""
    Configuration of [`MinerGRPOTrainer`]: everything [`~trl.GRPOConfig`] has, with its defaults, and:

    Parameters:
        > Parameters that control the advantages

        advantage_estimator (`str`, *optional*, defaults to `"miner"`):
            `"miner"` (https://huggingface.co/papers/2601.04731); `"grpo"`, which is TRL's own;
            `"reinforce_pp"` and `"reinforce_pp_baseline"` (https://huggingface.co/papers/2501.03262); `"ucas"`
            (https://huggingface.co/papers/2510.10649); `"entropy_adv"` (https://huggingface.co/papers/2506.14758). Or
            one of the last four with MINER on the all-right prompts: `"ucas+miner"`, also as a list.
        correct_threshold (`float`, *optional*, defaults to `1.0`):
            A rollout is correct when the verifier's reward is at or above this, in units of that reward before
            weighting.
        correct_reward_func (`str`, *optional*):
            Name of the reward function that decides what is correct, as TRL logs it under `rewards/NAME/mean`.
            Default: the first one. A rollout that it leaves unscored makes its prompt count as mixed.

        > Parameters that control MINER

        miner_gamma (`float`, *optional*, defaults to `2.0`):
            Focus of the token credit (1 - p)^gamma, at least 0; 0 is uniform.
        miner_lambda_max (`float`, *optional*, defaults to `1.5e-3`):
            Cap of the signal from all-right prompts, as a share of the signal from mixed prompts of the same
            generation batch. 0 is plain GRPO; `null` (or `.inf`) is no cap, the paper's ablation w/o AC.
        miner_credit (`str`, *optional*, defaults to `"focal"`):
            `"focal"`, `"uniform"` (the paper's ablation w/o FW), `"rank"` or `"inverse"`.
        miner_intrinsic (`str`, *optional*, defaults to `"nll"`):
            `"nll"`, or `"constant"`: every rollout of an all-right prompt gets `miner_constant_reward` (the paper's
            ablation w/o IR, which it does not calibrate: set `miner_lambda_max: null` with it).
        miner_constant_reward (`float`, *optional*, defaults to `0.05`):
            That constant, in advantage units.
        miner_nh_scale (`float`, *optional*, defaults to `0.0`):
            Punishes confidence in all-wrong prompts, under the same cap, as the published code can. 0, the paper's,
            leaves them alone.

        > Parameters that control UCAS and Entropy-Adv

        ucas_beta_pos (`float`, *optional*, defaults to `0.25`):
            How much more an unsure right rollout is rewarded, per standard deviation of confidence.
        ucas_beta_neg (`float`, *optional*, defaults to `0.35`):
            How much more a sure wrong rollout is punished.
        ucas_token_coef (`float`, *optional*, defaults to `0.05`):
            Largest tax on a token with a high logit, in advantage units.
        entropy_adv_alpha (`float`, *optional*, defaults to `0.4`):
            Weight of a token's entropy in its advantage, in advantage units per nat.
        entropy_adv_kappa (`float`, *optional*, defaults to `2.0`):
            The bonus is at most 1/kappa of the advantage.

        > Parameters that control the loss

        policy_loss (`str`, *optional*, defaults to `"clip"`):
            `"clip"` is the one that `loss_type` names. `"clip_cov"`, `"kl_cov"`
            (https://huggingface.co/papers/2505.22617) and `"bapo"` (https://huggingface.co/papers/2510.18927) act
            inside it, for `loss_type` grpo, bnpo, dr_grpo and dapo at token level.
        clip_cov_ratio (`float`, *optional*, defaults to `2e-4`):
            Share of the tokens that Clip-Cov leaves out of the gradient. The method sets `epsilon: 1.0` with it.
        clip_cov_low, clip_cov_high (`float`, *optional*, default to `1.0` and `5.0`):
            Covariance between which tokens are candidates, in advantage units times nats.
        kl_cov_ratio (`float`, *optional*, defaults to `2e-3`):
            Share of the tokens that KL-Cov penalizes.
        kl_cov_coef (`float`, *optional*, defaults to `1.0`):
            Weight of that penalty.
        bapo_target (`float`, *optional*, defaults to `1.0`):
            Positive over negative contribution that BAPO's bounds are to reach; 1 is a positive share of 50 %.
        bapo_low_start, bapo_low_max, bapo_low_step (`float`, *optional*, default to `0.5`, `0.95`, `0.05`):
            Lower bound of the probability ratio: where its search starts, ends, and by what steps.
        bapo_high_start, bapo_high_max, bapo_high_step (`float`, *optional*, default to `1.5`, `3.0`, `0.1`):
            Upper bound, likewise.

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
    miner_gamma: float = _knob(2.0, "Focus of MINER's token credit (1 - p)^gamma, at least 0; 0 is uniform.")
    miner_lambda_max: float | None = _knob(
        1.5e-3,
        "Cap of the signal from all-right prompts, as a share of the signal from mixed prompts. 0: plain GRPO; inf "
        "(or null in a recipe): no cap.",
    )
    miner_credit: str = _knob("focal", f"MINER's token credit: {', '.join(CREDITS)}.")
    miner_intrinsic: str = _knob("nll", f"MINER's intrinsic reward: {', '.join(INTRINSICS)}.")
    miner_constant_reward: float = _knob(0.05, "Reward of miner_intrinsic=constant, in advantage units.")
    miner_nh_scale: float = _knob(
        0.0, "Weight of MINER's punishment of sure all-wrong prompts, under the cap; 0: none."
    )
    ucas_beta_pos: float = _knob(0.25, "UCAS: extra reward of unsure right rollouts, per standard deviation.")
    ucas_beta_neg: float = _knob(0.35, "UCAS: extra punishment of sure wrong rollouts, per standard deviation.")
    ucas_token_coef: float = _knob(0.05, "UCAS: largest tax on a token with a high logit, in advantage units.")
    entropy_adv_alpha: float = _knob(0.4, "Entropy-Adv: weight of a token's entropy, in advantage units per nat.")
    entropy_adv_kappa: float = _knob(2.0, "Entropy-Adv: the bonus is at most 1/kappa of the advantage; above 1.")
    policy_loss: str = _knob("clip", f"What acts inside the loss: {', '.join(POLICY_LOSSES)}.")
    clip_cov_ratio: float = _knob(2e-4, "Clip-Cov: share of the tokens left out of the gradient, in [0, 1].")
    clip_cov_low: float = _knob(1.0, "Clip-Cov: smallest covariance of a candidate, in advantage units times nats.")
    clip_cov_high: float = _knob(5.0, "Clip-Cov: largest covariance of a candidate.")
    kl_cov_ratio: float = _knob(2e-3, "KL-Cov: share of the tokens penalized, in [0, 1].")
    kl_cov_coef: float = _knob(1.0, "KL-Cov: weight of the penalty |lp - old lp|.")
    bapo_target: float = _knob(1.0, "BAPO: positive over negative contribution to reach.")
    bapo_low_start: float = _knob(0.5, "BAPO: first lower bound of the probability ratio.")
    bapo_low_max: float = _knob(0.95, "BAPO: last lower bound.")
    bapo_low_step: float = _knob(0.05, "BAPO: step of the lower bound.")
    bapo_high_start: float = _knob(1.5, "BAPO: first upper bound of the probability ratio.")
    bapo_high_max: float = _knob(3.0, "BAPO: last upper bound.")
    bapo_high_step: float = _knob(0.1, "BAPO: step of the upper bound.")
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
        if self.miner_lambda_max is not None and math.isinf(self.miner_lambda_max) and self.miner_lambda_max > 0:
            self.miner_lambda_max = None  # on a command line, inf is the only way to say "no cap"
        check_knobs(**self.knobs("miner"), prefix="miner_")
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
        return {f.name.removeprefix(prefix): getattr(self, f.name) for f in fields(self) if f.name.startswith(prefix)}

    def _check_ranges(self) -> None:
        at_least = {name: 0.0 for name in ("ucas_beta_pos", "ucas_beta_neg", "ucas_token_coef", "entropy_adv_alpha")}
        at_least |= {name: 0.0 for name in ("clip_cov_ratio", "kl_cov_ratio", "kl_cov_coef", "bapo_target")}
        at_least |= {name: 0.0 for name in ("bapo_low_start", "bapo_low_step", "bapo_high_step")}
        at_least |= {"watchdog_seconds": 0.0, "dynamic_sampling_max_rounds": 1, "dynamic_sampling_oversample": 1.0}
        at_least |= {"log_token_credit_steps": 1, "log_token_credit_rollouts": 1, "log_miner_update_steps": 1}
        # bounds that are a method's own sense: a bonus below the advantage, a range with an inside
        at_least |= {"entropy_adv_kappa": 1.0, "clip_cov_high": self.clip_cov_low, "bapo_high_start": 1.0}
        at_least |= {"bapo_low_max": self.bapo_low_start, "bapo_high_max": self.bapo_high_start}
        at_most = {"clip_cov_ratio": 1.0, "kl_cov_ratio": 1.0, "bapo_low_max": 1.0}
        for sign, limits in ((1, at_least), (-1, at_most)):
            for name, limit in limits.items():
                value = getattr(self, name)
                if not sign * value >= sign * limit:
                    rule = "at least" if sign == 1 else "at most"
                    default = type(self).__dataclass_fields__[name].default
                    raise ValueError(f"{name} must be {rule} {limit}: got {value}. The default is {default}.")

    def _check_policy_loss(self) -> None:
        loss = self.policy_loss
        if loss not in POLICY_LOSSES:
            raise ValueError(f"policy_loss must be one of {', '.join(POLICY_LOSSES)}: got {loss!r}.")
        if loss == "clip":
            return
        if self.importance_sampling_level != "token":
            raise ValueError(
                f"policy_loss={loss} works on the ratio of each token: got importance_sampling_level="
                f"{self.importance_sampling_level!r}. Set it to 'token', or policy_loss to 'clip'."
            )
        if self.loss_type not in CLIPPED_LOSSES:
            raise ValueError(
                f"policy_loss={loss} works inside a clipped loss: got loss_type={self.loss_type!r}. Use one of "
                f"{', '.join(sorted(CLIPPED_LOSSES))}."
            )
        if loss == "kl_cov" and self.delta is not None:
            raise ValueError(
                f"policy_loss=kl_cov has no clipping, so that delta has nothing to bound: got delta={self.delta}. "
                f"Leave it out."
            )

    def _check_dynamic_sampling(self) -> None:
        if self.dynamic_sampling and "miner" in parse_estimator(self.advantage_estimator):
            raise ValueError(
                f"dynamic_sampling drops the all-right prompts that MINER learns from: got advantage_estimator="
                f"{self.advantage_estimator!r}. Set it to grpo (that is DAPO), or leave dynamic_sampling out."
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
        """What depends on fields that `GRPOConfig` derives."""
        names = [name for name in parse_estimator(self.advantage_estimator) if name in TOKEN_LEVEL]
        credit = "" if names != ["miner"] else self.miner_credit
        if (
            names
            and credit != "uniform"
            and self.importance_sampling_level == "sequence"
            and self.loss_type in AVERAGED_BY_SEQUENCE_RATIO
        ):
            what = f"miner_credit='{credit}'" if credit else f"advantage_estimator='{self.advantage_estimator}'"
            logger.warning(
                f"importance_sampling_level='sequence' with loss_type='{self.loss_type}' averages the advantage over "
                f"each rollout, so {what} does not reach single tokens. Use importance_sampling_level='token' for it"
                + (", or miner_credit='uniform' to silence this." if credit else ".")
            )
        accumulation, cycle = self.gradient_accumulation_steps, self.steps_per_generation * self.num_iterations
        shown = f"gradient_accumulation_steps={accumulation}, steps_per_generation={self.steps_per_generation}, "
        shown += f"num_iterations={self.num_iterations}"
        if self.policy_loss in OFF_POLICY_ONLY and accumulation % cycle == 0:
            logger.warning(
                f"policy_loss={self.policy_loss} does nothing strictly on-policy, where every probability ratio is 1: "
                f"got {shown}. Raise steps_per_generation or num_iterations, as "
                f"recipes/arithmetic/{self.policy_loss}.yaml does."
            )
        elif self.policy_loss == "bapo" and self.steps_per_generation % accumulation:
            raise ValueError(
                f"policy_loss=bapo searches its bounds over a whole optimizer batch, which must lie in one generation "
                f"batch: got {shown}. Make steps_per_generation a multiple of gradient_accumulation_steps."
            )
        if self.dynamic_sampling and self.eval_strategy != "no":
            logger.warning(
                "dynamic_sampling is for training: evaluation drops no prompt, so that eval_reward and reward are not "
                "means over the same kind of prompts."
            )

    @classmethod
    def from_grpo_config(cls, args: GRPOConfig) -> "MinerGRPOConfig":
        """The same settings with MINER's defaults, so that a script written for `GRPOConfig` runs unchanged.

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
