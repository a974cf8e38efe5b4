"""Score a model on held-out problems while it trains."""

# P problems, n samples of each, N samples of this process; every process has as many

import hashlib
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import Trainer, TrainerCallback
from trl.models import unwrap_model_for_generation

from ..data.preview import rewards_of
from ..data.prompts import token_ids
from ..methods.groups import correctness
from .held_out import AFTER, BEFORE, Moment, read_held_out, write_held_out
from .seeded import sample_seed, sample_tokens


class EvaluationCallback(TrainerCallback):
    """Scores held-out problems every so many steps, and whenever `record` is called.

    Pass@1 and Pass@n go to the log (`eval_pass@1`, `eval_pass@8`) and, as the number of correct
    samples of each problem, into `held_out.json` of `output_dir`. Where `eval_strategy` is on they
    are metrics of each evaluation, too, so that `metric_for_best_model: pass@1` chooses the best
    checkpoint and can end the training early.

    Every process samples its share. A scoring changes nothing in the training: neither the model
    nor a random state. With transformers a sample depends on the training's seed, its problem and
    its number alone, so the scores do not depend on the number of processes, and two runs are
    scored with the same noise. Where the training generates with vLLM, vLLM draws the samples.

    Args:
        trainer: The trainer whose model is scored.
        problems: A data set with the columns `prompt` and those that the reward function needs,
            such as `solution`.
        samples: n, completions per problem, at the temperature of the training.
        every_steps: Optimizer steps between two scorings; 0: none in between.
        reward_func: Grades the completions: 1 is correct, None is no verdict. None: the trainer's
            own functions that decide what is correct, at `correct_threshold`.
        batch_size: Completions that transformers generates at a time.
    """

    def __init__(
        self,
        trainer: Any,
        problems: Any,
        samples: int = 8,
        every_steps: int = 0,
        reward_func: Callable[..., Any] | None = None,
        batch_size: int = 256,
    ) -> None:
        self.trainer, self.problems, self.samples = trainer, problems, samples
        self.every_steps, self.reward_func, self.batch_size = every_steps, reward_func, batch_size
        if trainer.tools or trainer.environment_factories or trainer.rollout_func:
            raise ValueError(
                "Held-out problems are scored by one completion each, without tools, environments"
                " or a rollout_func. Set held_out: 0, and eval_strategy for TRL's own evaluation."
            )
        self.fingerprint = hashlib.sha256(repr([*problems]).encode()).hexdigest()
        self.moments: dict[str, Moment] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the scores before the training: no tracker had started when they were made."""
        if BEFORE in self.moments and state.global_step == 0:
            self._log(self.moments[BEFORE].scores)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score every `every_steps`, but for the last: `record("after")` is its scoring."""
        step = state.global_step
        if self.every_steps and step % self.every_steps == 0 and step < state.max_steps:
            self.record(f"step {step}")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the scores of this step among the metrics of an evaluation."""
        moment = f"step {state.global_step}"
        scores = self.moments[moment].scores if moment in self.moments else self.record(moment)
        kwargs["metrics"] |= {f"eval_{name}": value for name, value in scores.items()}

    def record(self, moment: str) -> dict[str, float]:
        """Score the model as it is, and return {"pass@1": 0.5, "pass@8": 0.75}. Every process must
        call it.

        Args:
            moment: Its name in `held_out.json`: "before", "after", or "step 100".
        """
        trainer, counts = self.trainer, self.count_correct()
        found = Moment(trainer.state.global_step, self.samples, counts, self.fingerprint)
        self.moments[moment] = found
        shown = ", ".join(f"{name.title()} {value:.3f}" for name, value in found.scores.items())
        without = f" ({counts.count(None)} without a verdict)" if None in counts else ""
        trainer.accelerator.print(f"{moment}, {len(counts)} held-out problems{without}: {shown}")
        if moment != BEFORE:
            self._log(found.scores)
        if trainer.is_world_process_zero():
            write_held_out(trainer.args.output_dir, self.moments)
        return found.scores

    def _log(self, scores: dict[str, float]) -> None:
        # Not TRL's own `log`, which would flush the metrics of the training step in progress; and
        # it must not count as the log that the step itself is due.
        due = self.trainer.control.should_log
        Trainer.log(self.trainer, {f"eval_{name}": value for name, value in scores.items()})
        self.trainer.control.should_log = due

    def count_correct(self) -> list[int | None]:
        """Sample the model, and return (P,) the correct completions of each problem; None: one of
        them has no verdict. Every process must call it, and all get the same."""
        places, seed = [*range(len(self.problems))], self.trainer.args.seed
        # Weights in shards are gathered by all processes at once: one with fewer problems samples
        # the last once more.
        split = self.trainer.accelerator.split_between_processes(places, apply_padding=True)
        with split as own, kept_random_states():
            keys = [(place, number) for place in own for number in range(self.samples)]
            rows = [dict(self.problems[place]) for place, _ in keys]
            _, ids = self.sample(rows, [sample_seed(seed, str(place), i) for place, i in keys])
            is_correct_PN = self.grade(rows, ids).view(-1, self.samples)
        counts = dict(gather_object([*zip(own, is_correct_PN.sum(dim=1).tolist(), strict=True)]))
        return [None if math.isnan(counts[place]) else int(counts[place]) for place in places]

    def sample(
        self, rows: list[dict[str, Any]], seeds: list[int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the tokens of the rows' prompts, and those of a completion of each. A row stands
        there `samples` times in a row. Every process must call it, with as many rows."""
        trainer, tokenizer = self.trainer, self.trainer.processing_class
        chat = trainer.args.chat_template_kwargs
        each = [token_ids(row["prompt"], tokenizer, chat) for row in rows[:: self.samples]]
        prompts = [ids for ids in each for _ in range(self.samples)]
        if trainer.use_vllm:
            torch.manual_seed(trainer.args.seed)  # a colocated engine draws from it
            trainer.vllm_generation.sync_weights()
            return prompts, trainer.vllm_generation.generate(prompts, None, self.samples)[1]
        with unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model:
            sampled = sample_tokens(
                model, tokenizer, prompts, seeds, limit=trainer.max_completion_length,
                temperature=trainer.temperature, top_p=trainer.top_p, batch_size=self.batch_size,
            )  # fmt: skip
            return prompts, [ids for _, ids, _ in sorted(sampled)]

    def grade(self, rows: list[dict[str, Any]], ids: list[list[int]]) -> torch.Tensor:
        """Return (N,) whether each completion is correct: 1, 0, or NaN where it has no verdict."""
        verifier, threshold = self.trainer.verifier, self.trainer.args.correct_threshold
        functions = [self.trainer.reward_funcs[column] for column in verifier.columns]
        if self.reward_func is not None:
            functions, threshold = [self.reward_func], 1.0
        alone = replace(verifier, columns=range(len(functions)))
        return correctness(alone.rewards(self.rewards(functions, rows, ids)), threshold)

    def rewards(
        self, functions: list[Any], rows: list[dict[str, Any]], ids: list[list[int]]
    ) -> torch.Tensor:
        """Return (N, F) the rewards of completions; NaN: unscorable."""
        texts = self.trainer.processing_class.batch_decode(ids, skip_special_tokens=True)

        def ask(function: Any) -> list[float | None]:
            @wraps(function)
            def as_in_training(**columns: Any) -> Any:
                state = {"completion_ids": ids, "trainer_state": self.trainer.state}
                return function(**columns | state)

            return rewards_of(as_in_training, rows, texts)

        # None becomes NaN
        return torch.tensor(np.array([*map(ask, functions)], np.float32)).T

    def restore(self, checkpoint: str | None) -> bool:
        """Take over the scores of an interrupted run up to a checkpoint; return whether there were
        any. Every process must call it, and all take what the main one reads. Scores of other
        problems are left out."""
        found: list[dict[str, Moment]] = [{}]
        if checkpoint is not None and self.trainer.is_world_process_zero():
            step = int(checkpoint.rpartition("-")[2])
            found[0] = {
                name: moment
                for name, moment in read_held_out(self.trainer.args.output_dir).items()
                if moment.problems == self.fingerprint and moment.step <= step and name != AFTER
            }
        self.moments = broadcast_object_list(found)[0]
        return bool(self.moments)


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Give back the random states as they were: of Python, NumPy, PyTorch and all its devices."""
    python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
