"""`MinerGRPOConfig`: TRL's `GRPOConfig` and the method's own knobs."""

import math
from dataclasses import MISSING, dataclass, field, fields

from trl import GRPOConfig

from .advantages import ESTIMATORS
from .miner import CREDITS, INTRINSICS, check_knobs


@dataclass
class MinerGRPOConfig(GRPOConfig):
    r"""
    Configuration of [`MinerGRPOTrainer`]: everything [`~trl.GRPOConfig`] has, with its defaults, and:

    Parameters:
        > Parameters that control the advantages

        advantage_estimator (`str`, *optional*, defaults to `"miner"`):
            `"miner"` (https://huggingface.co/papers/2601.04731) or `"grpo"`, which is TRL's own, bit for bit.
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
    """

    advantage_estimator: str = field(
        default="miner", metadata={"help": f"Advantage estimator: {', '.join(sorted(ESTIMATORS))}."}
    )
    correct_threshold: float = field(
        default=1.0,
        metadata={"help": "A rollout is correct when the verifier's reward is at or above this, in reward units."},
    )
    correct_reward_func: str | None = field(
        default=None,
        metadata={"help": "Name of the reward function that decides what is correct. Default: the first one."},
    )
    miner_gamma: float = field(
        default=2.0, metadata={"help": "Focus of MINER's token credit (1 - p)^gamma, at least 0; 0 is uniform."}
    )
    miner_lambda_max: float | None = field(
        default=1.5e-3,
        metadata={
            "help": "Cap of the signal from all-right prompts, as a share of the signal from mixed prompts. 0: plain "
            "GRPO; inf (or null in a recipe): no cap."
        },
    )
    miner_credit: str = field(default="focal", metadata={"help": f"MINER's token credit: {', '.join(CREDITS)}."})
    miner_intrinsic: str = field(
        default="nll", metadata={"help": f"MINER's intrinsic reward: {', '.join(INTRINSICS)}."}
    )
    miner_constant_reward: float = field(
        default=0.05, metadata={"help": "Reward of miner_intrinsic=constant, in advantage units."}
    )

    def __post_init__(self) -> None:
        self._check_own_fields()
        super().__post_init__()

    def _check_own_fields(self) -> None:
        if self.num_generations < 2:
            raise ValueError(
                f"num_generations must be at least 2, because a rollout is judged against its group: got "
                f"{self.num_generations}. The paper uses 16."
            )
        if self.advantage_estimator not in ESTIMATORS:
            raise ValueError(
                f"advantage_estimator must be one of {', '.join(sorted(ESTIMATORS))}: got "
                f"{self.advantage_estimator!r}."
            )
        if math.isnan(self.correct_threshold):
            raise ValueError("correct_threshold must be a number: got nan. Verifiers that give 0 or 1 need 1.0.")
        if not self.miner_constant_reward >= 0:
            raise ValueError(
                f"miner_constant_reward must be at least 0: got {self.miner_constant_reward}. The paper uses 0.05."
            )
        if self.miner_lambda_max is not None and math.isinf(self.miner_lambda_max) and self.miner_lambda_max > 0:
            self.miner_lambda_max = None  # on a command line, inf is the only way to say "no cap"
        check_knobs(
            gamma=self.miner_gamma,
            lambda_max=self.miner_lambda_max,
            credit=self.miner_credit,
            intrinsic=self.miner_intrinsic,
            prefix="miner_",
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
        return config
