"""The methods: pure functions of tensors, a file for each method or family. Needs torch alone.

`ESTIMATORS` and `POLICY_LOSSES` have the record of each by its name, which says all that the rest
of the package must know of it. A new method is a file with its function and its record, and the
record's name here. Estimators take `Rollouts`, policy losses a `MicroBatch`.
"""

from .bapo import BAPO
from .covariance import CLIP_COV, KL_COV
from .entropy import ENTROPY
from .entropy_adv import ENTROPY_ADV
from .f_grpo import F_GRPO
from .grpo import CLIP, GRPO
from .maxrl import MAXRL
from .method import AdvantageEstimator as AdvantageEstimator
from .method import PolicyLoss as PolicyLoss
from .miner import MINER
from .reinforce_pp import REINFORCE_PP, REINFORCE_PP_BASELINE
from .rollouts import Estimate as Estimate
from .rollouts import Rollouts as Rollouts
from .ucas import UCAS

_RECORDS = (MINER, GRPO, F_GRPO, MAXRL, ENTROPY_ADV, UCAS, REINFORCE_PP, REINFORCE_PP_BASELINE)
ESTIMATORS = {record.name: record for record in (*_RECORDS, ENTROPY)}
POLICY_LOSSES = {record.name: record for record in (CLIP, KL_COV, CLIP_COV, BAPO)}
