"""MINER for TRL: learn from the prompts, too, that the model already answers correctly.

The public names load on first use, so that `import trl_miner` (and with it `trl-miner --help`)
costs milliseconds: it imports neither torch nor trl.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .evaluation.in_training import EvaluationCallback as EvaluationCallback
    from .methods.miner import miner_advantages as miner_advantages
    from .trainer.config import MinerGRPOConfig as MinerGRPOConfig
    from .trainer.trainer import MinerGRPOTrainer as MinerGRPOTrainer

_MODULE_OF = {
    "EvaluationCallback": "evaluation.in_training",
    "MinerGRPOConfig": "trainer.config",
    "MinerGRPOTrainer": "trainer.trainer",
    "miner_advantages": "methods.miner",
}
__all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
