"""`MinerGRPOTrainer`: TRL's `GRPOTrainer` with other advantages, and optimizer steps that compute
less.

The only folder that touches the private methods of TRL and transformers;
`tests/test_trl_contract.py` watches each of them. `trainer.py` tells what happens to a generation
batch, from its prompts to the loss; `base.py` what both trainers share; `state.py` what a checkpoint
keeps. All else are collaborators of these classes, each with its own state.
"""
