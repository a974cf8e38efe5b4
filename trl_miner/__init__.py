"""MINER for TRL: reinforcement learning that also learns from prompts it already answers right.

The public names load on first use, so that `import trl_miner` (and with it `trl-miner --help`)
costs milliseconds: it imports neither torch nor trl.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .asynchronous.trainer import MinerAsyncGRPOTrainer as MinerAsyncGRPOTrainer
    from .common.heartbeat import beat as beat
    from .evaluation.in_training import EvaluationCallback as EvaluationCallback
    from .methods.miner import MinerAdvantages as MinerAdvantages
    from .methods.miner import miner_advantages as miner_advantages
    from .recipe.preview import preview as preview
    from .trainer.async_config import MinerAsyncGRPOConfig as MinerAsyncGRPOConfig
    from .trainer.config import MinerGRPOConfig as MinerGRPOConfig
    from .trainer.trainer import MinerGRPOTrainer as MinerGRPOTrainer
    from .training.prompt_kinds import PromptKinds as PromptKinds

_MODULE_OF = {
    "MinerAsyncGRPOConfig": "trainer.async_config",
    "MinerAsyncGRPOTrainer": "asynchronous.trainer",
    "EvaluationCallback": "evaluation.in_training",
    "MinerGRPOConfig": "trainer.config",
    "MinerGRPOTrainer": "trainer.trainer",
    "MinerAdvantages": "methods.miner",
    "PromptKinds": "training.prompt_kinds",
    "beat": "common.heartbeat",
    "miner_advantages": "methods.miner",
    "preview": "recipe.preview",
}
__all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}. Its public names:"
            f" {sorted(_MODULE_OF)}."
        )
    from importlib import import_module

    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
