"""A training with a run folder, as `trl-miner train` makes it: the trainer, with a lock,
checkpoints that are marked when they are whole, records, a card, and pushes.

`RunTrainer` is `MinerGRPOTrainer` with all of that.
"""

from .run_trainer import RunTrainer as RunTrainer
