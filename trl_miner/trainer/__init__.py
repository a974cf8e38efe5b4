"""`MinerGRPOTrainer`: TRL's `GRPOTrainer` with other advantages, and optimizer steps that compute
less.

The only folder that touches the private methods of TRL and transformers;
`tests/test_trl_contract.py` watches each of them. `trainer.py` tells what happens to a generation
batch, from its prompts to the loss; `run.py` what a run resumes. All else are collaborators of that
class, each with its own state.
"""

from .trainer import MinerGRPOTrainer as MinerGRPOTrainer
