"""`MinerGRPOTrainer`: TRL's `GRPOTrainer` with other advantages, and optimizer steps that compute less.

The only folder that touches the private methods of TRL and transformers; `tests/test_trl_contract.py` watches each of
them. `miner_grpo.py` tells what happens to a generation batch, `run_trainer.py` what happens in a step of the run. All
else are collaborators of these two classes, each with its own state.
"""

from .miner_grpo import MinerGRPOTrainer as MinerGRPOTrainer
