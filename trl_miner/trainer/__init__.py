"""`MinerGRPOTrainer`: TRL's `GRPOTrainer` with other advantages, and optimizer steps that compute
less.

The only folder that touches TRL's private side; `trl_names.py` lists it. `trainer.py` tells what
happens to a generation batch, from its rewards to the loss.
"""
