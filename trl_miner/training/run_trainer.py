"""`RunTrainer`: `MinerGRPOTrainer` with a run folder: a lock, checkpoints, records, a card,
pushes."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ..common.heartbeat import phase
from ..common.progress import is_quiet
from ..data.prompt_form import form_of_rows, write_form
from ..data.prompts import PromptForm
from ..evaluation.seeded_sampling import can_share, sample_shared
from ..hub.model_card import make_card
from ..hub.training import open_repo, push_trained
from ..launching.server import free_port, served_at, wait_for_server
from ..runs.locks import hold_run
from ..runs.models import CARD
from ..runs.training_record import add_to_record
from ..trainer.base import TrainerBase
from ..trainer.config import RunConfig
from ..trainer.observers import ScoredBatch
from ..trainer.shared_rollouts import SharedRollouts
from ..trainer.swaps import holding
from ..trainer.trainer import MinerGRPOTrainer
from .best_model import num_checkpoints
from .checkpointing import Checkpointing, NothingLeft
from .ledger import LedgerFile
from .token_records import TokenRecords

logger = logging.getLogger(__name__)


class RunFolder(TrainerBase):
    """The run folder of a trainer: who may use it, what is kept in it, how its model is saved.

    A class before a trainer of `trl_miner.trainer`.

    Attributes:
        prompt_form: The form of the prompts, which goes into the folder of every model; None: not
            known yet.
        about: What `training.json` says beside what the trainer knows.
    """

    def _add_run(self) -> None:
        """Add what a run keeps: its checkpoints and its records."""
        self.about: Mapping[str, Any] = {}
        self.prompt_form: PromptForm | None = None
        if isinstance(self.train_dataset, Dataset):  # a stream's is seen in its first batch
            self.take_form(form_of_rows(self.train_dataset, self.args.chat_template_kwargs))
        several = len(self.reward_funcs) > 1 and self.args.correct_reward_func is None
        if several and not self.verifier.is_guess and not is_quiet():
            self.accelerator.print(self.verifier.reason)
        self._checkpoints = Checkpointing(self)
        self.observers.append(TokenRecords(self))

    # A training: from a checkpoint, step by step.

    def find_checkpoint(self, wanted: str | bool | None) -> str | None:
        """Return the checkpoint that `wanted` means, for `train`, with the errors that it would
        raise before its first step. Every process must call it.
        """
        return self._checkpoints.prepare(wanted)

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint that the training in progress has gone on from."""
        return self._checkpoints.resumed_from

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as transformers does; `resume_from_checkpoint` may also be "latest": the newest
        whole checkpoint, or none. A checkpoint that has done all steps is loaded, and no more are
        made.

        Raises:
            ValueError: Another training holds the run folder or has used it, there is no whole
                checkpoint to resume from, or it has other settings.
        """
        limit = num_checkpoints(self.args)
        with hold_run(str(self.args.output_dir)), holding(self.args, save_total_limit=limit):
            checkpoint = self._checkpoints.resume(resume_from_checkpoint)
            try:
                return super().train(checkpoint, *args, **kwargs)
            except NothingLeft:
                return self._checkpoints.end_at_once()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as transformers does; the metrics have the held-out scores of this step, too,
        so that `metric_for_best_model` may name one."""
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        scores = self.evaluation.get(self.moment, {})
        return metrics | {f"eval_{name}": value for name, value in scores.items()}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with phase(name, self.state.global_step):
            yield

    def write_checkpoint(self, folder: Path, write: Callable[[], None]) -> None:
        self._checkpoints.save(folder, partial(super().write_checkpoint, folder, write))

    # Its model: the form of its prompts, its card, pushes.

    def take_form(self, form: PromptForm | None) -> None:
        """Keep the form of the prompts; None: it is not known."""
        # tools and environments add words of their own
        if form is not None and self.generates_in_turns:
            form = replace(form, is_known=False)
        self.prompt_form = form

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as transformers does, and beside it the form of its prompts. Every process
        must call it."""
        # `training_args.bin` holds them
        with holding(self, args=self.args.without_secrets()):
            super().save_model(output_dir, _internal_call=True)
        if self.args.should_save:
            write_form(Path(output_dir or str(self.args.output_dir)), self.prompt_form)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    def create_model_card(  # type: ignore[override]  # of TRL's signature
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
    ) -> None:
        """Write our own card in the place of TRL's."""
        if not self.is_world_process_zero():
            return
        folder = Path(str(self.args.output_dir))
        record = add_to_record(
            folder, dataset_name, [tags] if isinstance(tags, str) else tags or ()
        )
        name = (
            (self.args.hub_model_id if self.args.push_to_hub else None)
            or model_name
            or folder.resolve().name
        )
        text = make_card(folder, record, name=name, evaluation=self.evaluation)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CARD).write_text(text, encoding="utf-8")

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        open_repo(self, partial(super().init_hf_repo, *args, **kwargs))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> bool:  # type: ignore[override]
        """Push the model and return whether it arrived: see
        `trl_miner.hub.training.push_trained`."""
        return push_trained(self, *args, **kwargs)


class RunTrainer(RunFolder, MinerGRPOTrainer, SharedRollouts):
    """`MinerGRPOTrainer` with a run folder, as `trl-miner train` makes it. It takes the same
    arguments, with a `trl_miner.trainer.config.RunConfig` as `args`.

    Only one training at a time writes into `output_dir`, and none over another run. The folder gets
    a model card, and the records that `trl-miner report`, `inspect` and `compare` show. A training
    resumes only from complete checkpoints, with the settings that they were made with. On a CPU,
    rollouts are drawn from the distribution that TRL draws them from, in less time and with other
    random numbers.
    """

    args: RunConfig
    _config = RunConfig
    can_share, share = staticmethod(can_share), staticmethod(sample_shared)

    if not TYPE_CHECKING:

        @functools.wraps(GRPOTrainer.__init__)
        def __init__(self, model, reward_funcs=None, args=None, *rest, **kwargs) -> None:
            args = self._settings(model, args)
            _set_group_port(args)
            if PartialState().is_main_process:
                wait_for_server(args)
            super().__init__(model, reward_funcs, args, *rest, **kwargs)
            self._add_run()
            ledger = LedgerFile(self)
            self.observers.append(ledger)
            self.resumable.add("ledger", ledger, follows_batches=True)
            self.add_callback(ledger)
            self.observers.append(self)

    def observe(self, batch: ScoredBatch) -> None:
        """See the form of the prompts of a stream."""
        if self.prompt_form is None:
            self.take_form(form_of_rows(batch.rows, self.args.chat_template_kwargs))


def _set_group_port(args: Any) -> None:
    """Choose a free `vllm_group_port` in the place of TRL's default, which any outgoing connection
    may have taken.

    With one that is taken, TRL's trainer and its server would wait forever.
    """
    if served_at(args) and args.vllm_group_port in (None, GRPOConfig.vllm_group_port):
        args.vllm_group_port = free_port()
