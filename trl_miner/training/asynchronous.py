"""`AsyncRunTrainer`: `MinerAsyncGRPOTrainer` with a run folder."""

from typing import Any

from ..asynchronous.trainer import MinerAsyncGRPOTrainer
from .run_trainer import RunFolder


class AsyncRunTrainer(RunFolder, MinerAsyncGRPOTrainer):
    """`MinerAsyncGRPOTrainer` with a run folder, as `trl-miner train` makes it; it has no prompt
    ledger."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add_run()
