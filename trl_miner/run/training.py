"""A run: a recipe's data, their preview, the trainer, `train()`, and the folder."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import AutoTokenizer, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils import find_adapter_config_file
from transformers.utils.logging import disable_progress_bar
from trl import get_peft_config, get_quantization_config

from ..common.errors import describe, tell
from ..common.progress import be_quiet, finish, is_quiet
from ..data.base_model import find_model
from ..data.own import TrainingData, load_training_data
from ..data.preview import show_preview
from ..data.prompts import save_form
from ..evaluation.in_training import EvaluationCallback
from ..recipe.functions import load_rewards, load_tools
from ..recipe.reading import OWN_FILE, Recipe
from ..trainer.trainer import MinerGRPOTrainer
from . import folder as folders
from .lines import LogLines
from .own_recipe import recipe_text
from .record import check_resume, make_record, read_record, write_record
from .token_credit import TokenCredit

_MOST_SCORED = 100  # problems of a file of one's own, where `held_out` is not given
_GRADERS = {"math_reward", "choice_reward"}  # by a reference answer


class _NoStepLeft(Exception):
    """A checkpoint is the run's last: transformers would make a step more."""


class _StopAtTheEnd(TrainerCallback):
    """Ends a training that resumes from its last step, once the checkpoint is loaded."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < state.max_steps:
            return
        if args.load_best_model_at_end:
            raise ValueError(
                f"All {state.max_steps} steps are done. The best model is in"
                f" {state.best_model_checkpoint}: push or evaluate that, or raise max_steps."
            )
        raise _NoStepLeft


@dataclass
class Parts:
    """What a trainer is made of."""

    tokenizer: Any
    data: TrainingData
    rewards: list[Callable[..., Any]]


class Run:
    """A training that is ready to begin: whatever can be a mistake of the user's is found by making
    it. Every process makes one.

    Raises:
        ValueError: The folder is in use, data or model cannot be read, settings are wrong.
    """

    def __init__(self, recipe: Recipe) -> None:
        config = recipe.config
        if recipe.run.quiet:
            be_quiet()
        self.recipe, self.folder = recipe, Path(str(config.output_dir))
        self.is_main = PartialState().is_main_process
        self.pushes, config.push_to_hub = config.push_to_hub, False  # at the end, by `hub.push`
        check(recipe)
        take_secrets(config)
        # theirs goes by the clock
        keep, config.save_total_limit = config.save_total_limit, None
        if self.is_main:
            resumes = bool(config.resume_from_checkpoint)
            model = recipe.model.model_name_or_path
            self.lock = folders.claim(self.folder, resumes=resumes, model=model)
        self.checkpoint = self._choose_checkpoint()
        parts = load_parts(recipe, is_shown=self.is_main and not is_quiet())
        self.trainer, self.data = make_trainer(recipe, parts), parts.data
        self.evaluation = self._add_callbacks(keep)
        if self.is_main:
            self._write_record()

    def go(self) -> None:
        """Score, train, score, and save. Every process must call it."""
        trainer = self.trainer
        with suppress(_NoStepLeft):
            trainer.train(resume_from_checkpoint=self.checkpoint)
        if self.evaluation:
            self.evaluation.record("after")
        trainer.save_model()
        trainer.save_state()
        if self.is_main:  # the others need not wait for a push
            save_form(self.folder, self.data.form)
            self._finish()
            self.lock.release()
        trainer.accelerator.end_training()  # trackers, and the group of processes

    def _choose_checkpoint(self) -> str | None:
        """Return the checkpoint that all processes go on from: the first one looks."""
        found: list[str | None] = [None]
        if self.is_main:
            wanted = self.recipe.config.resume_from_checkpoint
            chosen = folders.choose_checkpoint(self.folder, wanted)
            found = [str(chosen) if chosen else None]
        [checkpoint] = broadcast_object_list(found)
        return checkpoint

    def _add_callbacks(self, keep: int | None) -> EvaluationCallback | None:
        """Add what shows, scores and keeps the run; return what scores it."""
        trainer, run, problems = self.trainer, self.recipe.run, self.data.problems
        for each in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(each)
        if not is_quiet():
            trainer.add_callback(LogLines())
        evaluation = None
        if problems is not None:
            evaluation = EvaluationCallback(
                trainer,
                problems,
                run.score_samples,
                run.score_steps,
                batch_size=run.score_batch_size,
            )
            trainer.add_callback(evaluation)
        if run.log_token_credit:
            TokenCredit(trainer, run.log_token_credit)
        trainer.add_callback(_StopAtTheEnd())
        trainer.add_callback(folders.WholeCheckpoints(keep, self.data.form))
        return evaluation

    def _write_record(self) -> None:
        """Write what the run is, and the recipe of a file of one's own."""
        recipe = self.recipe
        record = make_record(self.trainer, recipe, dataset_of(recipe))
        if self.checkpoint:
            old = read_record(Path(self.checkpoint).parent)
            if changes := check_resume(old, record):
                print(changes, flush=True)
        write_record(self.folder, record)
        if recipe.path is None:
            path, text = self.folder / folders.RECIPE, recipe_text(recipe)
            path.write_text(text, "utf-8")
            if not is_quiet():
                print(f"{path}:\n{text}", flush=True)

    def _finish(self) -> None:
        """Write the card, push where that is wanted, and say what to do next. The model is saved:
        what fails here is told, and the run has still succeeded."""
        from ..hub.card import write_card
        from ..hub.push import push

        folder, config = self.folder, self.recipe.config
        try:
            write_card(folder)
            if self.pushes:
                name = config.hub_model_id or folder.resolve().name
                push(folder, name, private=bool(config.hub_private_repo))
        except Exception as error:
            tell("train", f"the model is saved, but not its card or its push: {describe(error)}")
        finish([folder], [f"trl-miner report {folder}"])


def check(recipe: Recipe) -> None:
    """Raise ValueError for settings with which nothing can be trained, before anything is
    loaded."""
    config = recipe.config
    gpus = torch.cuda.device_count()
    if gpus > 1 and "LOCAL_RANK" not in os.environ and not config.use_cpu:
        raise ValueError(
            f"{gpus} GPUs found, and this is one process. Use trl-miner launch"
            " for all of them, or set CUDA_VISIBLE_DEVICES=0 for one."
        )
    if config.learning_rate == 0:
        raise ValueError(
            "learning_rate is 0, with which nothing is learned. Choose a positive one."
        )
    if config.reward_weights and not any(config.reward_weights):
        raise ValueError(
            f"reward_weights are {config.reward_weights}, with which nothing is learned. Choose at"
            " least one that is not 0."
        )


def take_secrets(config: Any) -> None:
    """Move tokens from the settings, which transformers pickles with each checkpoint, to where
    huggingface_hub reads them."""
    token = (config.model_init_kwargs or {}).pop("token", None) or config.hub_token
    if token:
        os.environ["HF_TOKEN"], config.hub_token = str(token), None


def load_parts(recipe: Recipe, *, is_shown: bool = True) -> Parts:
    """Load tokenizer, data and reward functions of a recipe, and preview them.

    Raises:
        ValueError: One cannot be read, or nothing could be learned with them.
    """
    datasets.disable_progress_bars()
    disable_progress_bar()  # transformers'
    name = find_model(str(recipe.model.model_name_or_path))
    tokenizer = load_tokenizer(recipe, name)
    config: Any = recipe.config
    names = recipe.run.reward_funcs
    data = load_training_data(
        recipe.data,
        name,
        tokenizer,
        recipe.run.held_out,
        recipe.mixture,
        needs_answers=not names or not _GRADERS.isdisjoint(names),
        template_kwargs=config.chat_template_kwargs,
    )
    is_guessed = recipe.path is None and recipe.run.held_out == OWN_FILE["held_out"]
    if is_guessed and data.problems is not None and len(data.problems) > _MOST_SCORED:
        data.problems = data.problems.select(range(_MOST_SCORED))
    rewards = load_rewards(recipe, has_options=data.kind == "choice")
    show_preview(data, tokenizer, rewards, recipe.data, is_shown=is_shown)
    return Parts(tokenizer, data, rewards)


def load_tokenizer(recipe: Recipe, name: str) -> Any:
    """Return the tokenizer of a model.

    Raises:
        ValueError: There is no such model, it is an adapter alone, or no token ends a completion.
    """
    where = {"revision": recipe.model.model_revision}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name,
            trust_remote_code=recipe.config.trust_remote_code,
            padding_side="left",
            truncation_side="left",
            **where,
        )
        adapter = find_adapter_config_file(name, **where)
    except (OSError, ValueError) as error:
        cause = str(error).strip().partition("\n")[0]
        raise ValueError(f"The model {name!r} cannot be loaded: {cause}") from error
    if adapter is not None:
        raise ValueError(
            f"{name} is a LoRA adapter. Merge it into its base model (peft's merge_and_unload) and"
            " train that, or start from the base model."
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"The tokenizer of {name} has no token that ends a completion. Set eos_token in its"
            " tokenizer_config.json."
        )
    return tokenizer


def make_trainer(recipe: Recipe, parts: Parts) -> MinerGRPOTrainer:
    """Make the trainer of a recipe: its model is loaded. It has no callbacks of a run.

    Raises:
        ValueError: As TRL and `MinerGRPOTrainer` do.
    """
    model = recipe.model
    config: Any = recipe.config  # some of TRL's fields are a dict or its JSON
    own = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }
    config.model_init_kwargs = own | (config.model_init_kwargs or {})
    if is_quiet():
        config.disable_tqdm, config.num_completions_to_print = True, 0
    if config.eval_strategy != "no" and parts.data.problems is None:
        raise ValueError(
            f"eval_strategy is {config.eval_strategy}, and there are no problems to evaluate on."
            " Set held_out."
        )
    count, wanted = len(parts.data.train), config.generation_batch_size // config.num_generations
    if count < wanted:  # TRL leaves out the rest of a batch, here all
        raise ValueError(
            f"There are {count} problems to train on, fewer than the {wanted} of one batch:"
            " no step would be trained. Lower --per_device_train_batch_size or"
            " --gradient_accumulation_steps."
        )
    return MinerGRPOTrainer(
        find_model(str(model.model_name_or_path)),
        parts.rewards,
        config,
        parts.data.train,
        eval_dataset=parts.data.problems,
        processing_class=parts.tokenizer,
        peft_config=get_peft_config(model),
        quantization_config=get_quantization_config(model),
        **load_tools(recipe),
    )


def dataset_of(recipe: Recipe) -> str:
    """Return the name of the data set, or those of a mixture."""
    if recipe.mixture is None:
        return str(recipe.data.dataset_name)
    return " + ".join(each.path for each in recipe.mixture.datasets)
