"""The methods: pure functions of tensors, a file per method or family. Needs torch alone.

`METHODS` has the record of each, which says all that the rest of the package must know of it.
"""

from .method import AdvantageEstimator as AdvantageEstimator
from .method import Method as Method
from .method import PolicyLoss as PolicyLoss
from .rollouts import Estimate as Estimate
from .rollouts import Rollouts as Rollouts
from .rollouts import Surrogate as Surrogate

# isort: off
# A line per file.
from .miner import MINER as MINER
from .grpo import CLIP as CLIP, DYNAMIC_SAMPLING as DYNAMIC_SAMPLING, GRPO as GRPO, GSPO as GSPO
from .grpo import GRESO as GRESO, REINFORCE_ADA as REINFORCE_ADA, THOMPSON as THOMPSON
from .reinforce_pp import (
    REINFORCE_PP as REINFORCE_PP,
    REINFORCE_PP_BASELINE as REINFORCE_PP_BASELINE,
)
from .ucas import UCAS as UCAS
from .entropy_adv import ENTROPY_ADV as ENTROPY_ADV
from .rl_zvp import RL_ZVP as RL_ZVP
from .entropy import ENTROPY as ENTROPY
from .covariance import CLIP_COV as CLIP_COV, KL_COV as KL_COV
from .bapo import BAPO as BAPO

# isort: on

METHODS = {method.name: method for method in list(globals().values()) if isinstance(method, Method)}
ESTIMATORS = {
    name: method for name, method in METHODS.items() if isinstance(method, AdvantageEstimator)
}
SELECTIONS = {method.name: method for method in (GRESO, THOMPSON)}  # values of `prompt_selection`
POLICY_LOSSES = {name: method for name, method in METHODS.items() if isinstance(method, PolicyLoss)}
