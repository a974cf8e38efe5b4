"""`MinerGRPOTrainer`: TRL's `GRPOTrainer` with another advantage, and a step that computes less.

The only folder that touches the private methods of TRL and transformers; `tests/test_trl_contract.py` watches each of
them. A chain of classes, each of which does one thing to TRL's trainer: `lasting`, `forwards`, `step`, `update`,
`miner_grpo`.
"""

from .miner_grpo import MinerGRPOTrainer as MinerGRPOTrainer
