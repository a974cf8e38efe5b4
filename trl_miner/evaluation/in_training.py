"""Score a model on held-out problems while it trains."""

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import Trainer, TrainerCallback
from trl.models import unwrap_model_for_generation

from ..common.progress import is_quiet
from ..common.text import one_line
from ..rewards import text_of
from ..runs.checkpoints import last_step
from ..runs.held_out import HeldOut, Moment, read_held_out, write_held_out
from ..runs.prompt_ledger import digest_of
from ..trainer.reward_functions import KNOWN_VERIFIERS, check_rewards, reward_list
from ..trainer.trl_names import disable_gradient_checkpointing
from .generate import sample_seed
from .seeded_sampling import DEFAULT_BATCH_SIZE, sample_all


class EvaluationCallback(TrainerCallback):
    """Scores held-out problems at intervals during training, after the last step, and whenever
    `record` is called.

    The scores (Pass@1 and Pass@k) go to the log and its trackers (`eval_pass@1`, `eval_pass@8`),
    into `evaluation`, and, as the number of right samples of each problem, into `held_out.json` of
    the run folder.

    Every process samples its share. A sample depends only on the seed, its problem and its number,
    so the scores do not depend on the number of processes. Where the training generates with vLLM,
    the samples are vLLM's, each with the same seed; its kernels may round otherwise in another
    batch. Scoring changes neither the model nor the random state.

    Args:
        trainer: The trainer whose model is scored.
        problems: A data set with the column `prompt` (plain text or messages) and those that the
            reward function needs, such as `solution`; None scores nothing.
        num_samples: Completions per problem, sampled at the temperature of the training.
        every: Optimizer steps between two scores during training; 0 for none.
        reward_func: The reward function that grades the completions, at `correct_threshold` (a
            known verifier at 1); by default those of the trainer that decide what is correct there.
            Answers for which it returns None are left out of the scores, and Pass@k is over the
            problems with k verdicts.
        batch_size: Completions per call of `generate`.
        final_samples: Completions per problem after training, for a larger K of Pass@K;
            `num_samples` by default.
    """

    def __init__(
        self,
        trainer: Any,
        problems: Any,
        num_samples: int = 8,
        every: int = 0,
        *,
        reward_func: Callable[..., Any] | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        final_samples: int | None = None,
    ) -> None:
        self.trainer, self.problems, self.num_samples, self.every = (
            trainer,
            problems,
            num_samples,
            every,
        )
        self.reward_func = reward_func  # None: the trainer's own
        deciding = [trainer.reward_funcs[column] for column in trainer.verifier.columns]
        self._reward_funcs = deciding if reward_func is None else [reward_func]
        self._names = trainer.verifier.names if reward_func is None else ["reward_func"]
        # The run's threshold is in units of its own rewards, and a benchmark's verifier may be
        # another.
        is_known = getattr(reward_func, "__name__", None) in KNOWN_VERIFIERS
        self.threshold = 1.0 if is_known else trainer.args.correct_threshold
        if problems is not None and any(
            isinstance(function, torch.nn.Module) for function in self._reward_funcs
        ):
            raise ValueError(
                "Held-out problems need a reward function that grades text: got the reward model"
                f" {' and '.join(trainer.verifier.names)}. Pass reward_func, or name another in"
                " correct_reward_func."
            )
        self.batch_size = batch_size
        self.final_samples = num_samples if final_samples is None else final_samples
        if problems is not None:
            trainer.held_out_metrics |= {"pass@1"}
            trainer.held_out_metrics |= {f"pass@{num_samples}"} & {f"pass@{self.final_samples}"}
        self.folder = Path(trainer.args.output_dir)
        self.evaluation: dict[str, dict[str, float]] = trainer.evaluation  # for the model card
        self.held_out: dict[str, Moment] = {}
        self._answers: list[str] = []  # the first that this process has sampled last
        self._is_training, self._result = False, ""  # a line of scores that is to be printed

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the scores before training."""
        self._is_training = True
        if (scores := self.evaluation.get("before")) and state.global_step == 0:
            self._log(scores)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score every `every` steps, after the last, and where the score chooses the best model."""
        is_last = state.global_step >= state.max_steps
        if is_last or (self.every and state.global_step % self.every == 0):
            self.record(self.trainer.moment)
        else:
            self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score before an evaluation whose score chooses the best model."""
        metric = str(args.metric_for_best_model).removeprefix("eval_")
        moment = self.trainer.moment
        is_asked = control.should_evaluate and metric in self.trainer.held_out_metrics
        if is_asked and moment not in self.held_out:
            self.record(moment)

    def record(self, moment: str) -> None:
        """Score the model as it is now. Every process must call it.

        Args:
            moment: Its name in `held_out.json`: "before", "after", or "step 100".
        """
        if self.problems is None:
            return
        trainer = self.trainer
        num_samples = self.final_samples if moment == "after" else self.num_samples
        num_correct, num_scored = self.count_correct(num_samples)
        found = self.held_out[moment] = Moment(
            trainer.state.global_step,
            num_samples,
            tuple(num_correct.tolist()),
            tuple(num_scored.tolist()) if (num_scored < num_samples).any() else None,
        )
        scores = self.evaluation[moment] = found.scores
        title = moment if moment.startswith("step") else f"{moment} training"
        shown = ", ".join(f"{name.capitalize()} {value:.3f}" for name, value in scores.items())
        shown = shown or "n/a"
        if missing := int((num_samples - num_scored).sum()):
            of = f"{missing} of {num_samples * len(num_scored)} completions"
            shown += f" ({of} unscored, as the reward is None: left out)"
        self._result = f"{title}, on {len(self.problems)} held-out problems: {shown}"
        if moment != "after" or not self._is_training:
            self._say_result()
        if moment == "before" and self._answers and not is_quiet():
            trainer.accelerator.print(self._say_first())
        if scores and moment != "before":  # the trackers have not started yet: see `on_train_begin`
            self._log(scores)
        if trainer.is_world_process_zero():
            write_held_out(self.folder, HeldOut(self.held_out, **self._about_problems))

    def _say_result(self) -> None:
        if self._result:
            self.trainer.accelerator.print(self._result)
        self._result = ""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print the last scores, below all lines of the training."""
        self._is_training = False
        self._say_result()

    def _say_first(self) -> str:
        """Return the first problem as the model sees it, what it answers, and the reference answer:
        does all of it look right?"""
        first, prompt = self.problems[0], self.problems[0]["prompt"]
        asked = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        lines = {
            "Example problem": asked,
            "Model's answer": self._answers[0],
            "Reference answer": first.get("solution"),
        }
        return "\n".join(
            f"  {name}: {one_line(text, 300)}" for name, text in lines.items() if text is not None
        )

    def count_correct(self, num_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample the trainer's model and grade the completions. Every process must call it, and all
        get the result.

        Args:
            num_samples: Completions per problem.

        Returns:
            (P,) right completions of each problem, and (P,) those that were scored, right or wrong.
        """
        accelerator, size = self.trainer.accelerator, len(self.problems)
        # Weights in shards are gathered by all processes at once: one with fewer problems samples
        # the last once more.
        with accelerator.split_between_processes([*range(size)], apply_padding=True) as indices:
            rewards_N = self._score(indices, num_samples)
        is_right_N = rewards_N >= self.threshold  # NaN is not right
        judged_N2 = torch.stack([is_right_N, ~rewards_N.isnan()], dim=1)
        counts = judged_N2.view(len(indices), num_samples, 2).sum(dim=1).tolist()
        by_index = dict(gather_object([*zip(indices, counts, strict=True)]))
        counts_P2 = torch.tensor([by_index[index] for index in range(size)])
        return counts_P2[:, 0], counts_P2[:, 1]

    def _score(self, indices: Sequence[int], num_samples: int) -> torch.Tensor:
        """Return (len(indices) * num_samples,) the rewards that decide what is correct, of samples
        of problems."""
        trainer = self.trainer
        # Environments are used again for the next batch, so it is graded first. Else all rows are
        # sampled at once: a sample does not depend on those that are drawn with it.
        at_once = (
            max(1, self.batch_size // num_samples) if trainer.generates_in_turns else len(indices)
        )
        rewards = []
        for first in range(0, len(indices), at_once):
            batch = indices[first : first + at_once]
            rows = [dict(self.problems[index]) for index in batch for _ in range(num_samples)]
            seeds = [
                sample_seed(trainer.args.seed, str(index), n)
                for index in batch
                for n in range(num_samples)
            ]
            with trainer.phase("scoring"):
                completions, ids, found = trainer.sample_held_out(
                    rows, num_samples, seeds[0], partial(self.sample, seeds)
                )
            columns = {name: [row[name] for row in rows] for name in self.problems.column_names}
            columns["prompts"] = columns.pop("prompt")
            for name, values in found.items():  # as TRL hands them to the reward functions
                columns[name] = values if isinstance(values, list) else [values] * len(rows)
            if first == 0:
                self._answers = [text_of(completion) for completion in completions[:1]]
            rewards.append(self.grade(columns, completions, ids))
        return torch.cat(rewards)

    def grade(
        self, columns: dict[str, list[Any]], completions: Sequence[Any], ids: Sequence[list[int]]
    ) -> torch.Tensor:
        """Return (N,) the rewards that decide what is correct, of texts or messages; NaN:
        unscorable."""
        trainer = self.trainer
        # TRL passes them too
        more: dict[str, Any] = {"completion_ids": ids, "trainer_state": trainer.state}
        more |= {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
        if environments := getattr(trainer, "environments", None):
            more["environments"] = environments
        rewards_ND = torch.full((len(completions), len(self._reward_funcs)), torch.nan)
        for place, function in enumerate(self._reward_funcs):
            rewards = function(completions=completions, **columns, **more)
            # in a thread of its own: a notebook's has a running loop
            if inspect.isawaitable(rewards):
                with ThreadPoolExecutor(1) as thread:
                    rewards = thread.submit(asyncio.run, _awaited(rewards)).result()
            rewards_ND[:, place] = torch.tensor(
                reward_list(self._names[place], rewards, len(completions))
            )
        check_rewards(self._names, rewards_ND)
        return trainer.verifier.smallest(rewards_ND)

    def sample(self, seeds: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return a completion of each prompt, in tokens: by the vLLM of the training where it has
        one, which takes a twentieth of the time."""
        trainer = self.trainer
        if getattr(trainer, "draws_held_out_with_vllm", False):
            completion_ids: list[list[int]] = trainer.sample_with_vllm(prompts, seeds)
            return completion_ids
        # The unwrapping would turn gradient checkpointing on again with other settings.
        checkpointing = trainer.args.gradient_checkpointing_kwargs
        with (
            trainer.casting_once(),
            disable_gradient_checkpointing(trainer.model, checkpointing),
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model,
        ):
            return sample_all(
                model,
                trainer.processing_class,
                prompts,
                seeds,
                max_new_tokens=trainer.max_completion_length,
                temperature=trainer.temperature,
                batch_size=self.batch_size,
                title="scoring",
                quiet=not trainer.is_world_process_zero(),
            )

    @cached_property
    def _about_problems(self) -> dict[str, Any]:
        """The fingerprint and the levels of the problems: whether two runs scored the same, and how
        hard they are."""
        levels, trained = (
            (
                list(rows["level"])
                if isinstance(rows, Dataset) and "level" in rows.column_names
                else None
            )
            # those of a stream are not known in advance
            for rows in (self.problems, self.trainer.train_dataset)
        )
        # in the spelling and the order of the problems' levels
        if levels is not None and trained is not None:
            known = {str(level) for level in trained}
            trained = sorted({level for level in levels if str(level) in known}, key=levels.index)
        return {
            "fingerprint": digest_of(self.problems),
            "levels": levels and tuple(levels),
            "trained_levels": tuple(trained) if levels and trained is not None else None,
        }

    def _log(self, scores: dict[str, float]) -> None:
        # Not TRL's own `log`: it would flush the metrics of the training step in progress. And
        # logging now must not count as the log that the step itself is due.
        due = self.trainer.control.should_log
        Trainer.log(self.trainer, {f"eval_{name}": value for name, value in scores.items()})
        self.trainer.control.should_log = due

    def restore(self, checkpoint: str | None) -> bool:
        """Take over the scores of an interrupted run up to a checkpoint; return whether there were
        any.

        Every process must call it. The main process reads and the others get its result, so that
        they agree even if only its node has the folder. Scores of other problems are left out, with
        a warning.
        """
        done = None if checkpoint is None else last_step(Path(checkpoint))
        restored = [
            self._read(done) if done is not None and self.trainer.is_world_process_zero() else None
        ]
        broadcast_object_list(restored)
        if restored[0] is None:  # a first start replaces the file
            return False
        self.held_out = restored[0]
        self.evaluation.update({moment: found.scores for moment, found in self.held_out.items()})
        return True

    def _read(self, done: int) -> dict[str, Moment] | None:
        """Return the counts up to an optimizer step; None: there are none."""
        known = read_held_out(self.folder)
        if known is None:
            return None
        if self.problems is not None and known.fingerprint != self._about_problems["fingerprint"]:
            text = (
                f"{self.folder}: the held-out problems are others now, and the scores of those"
                " before are left out."
            )
            warnings.warn(text, stacklevel=2)
            known = None
        until = known and known.until(done)
        return dict(until.moments) if until else {}


async def _awaited(rewards: Awaitable[Any]) -> Any:
    return await rewards
