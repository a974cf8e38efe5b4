"""Score a model on held-out problems while it trains."""

# P problems, n samples of each, N samples of a batch; every process has as many batches

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback
from trl.models import unwrap_model_for_generation

from ..data.preview import rewards_of
from ..data.prompts import token_ids
from .held_out import BEFORE, Moment, read_held_out, write_held_out
from .sampling import Tokens, sample_seed, sample_tokens


class EvaluationCallback(TrainerCallback):
    """Scores held-out problems every so many steps, and whenever `record` is called.

    Pass@1 and Pass@n go to the log (`eval_pass@1`, `eval_pass@8`) and, as the number of correct
    samples of each problem, into `held_out.json` of `output_dir`.

    Every process samples its share, as the training does: with transformers, or with vLLM. A
    scoring changes nothing in the training: neither the model nor a random state. With transformers
    the scores do not depend on the number of processes, and two runs of one seed are scored with
    the same noise.

    Args:
        trainer: The trainer whose model is scored, and whose reward functions say what is correct.
        problems: A data set with the columns `prompt` and those that the reward functions need,
            such as `solution`.
        samples: n, completions per problem, at the temperature of the training.
        every_steps: Optimizer steps between two scorings; 0: none in between.
        batch_size: Completions that transformers generates at a time; another number draws others.
    """

    def __init__(
        self,
        trainer: Any,
        problems: Any,
        samples: int = 8,
        every_steps: int = 0,
        batch_size: int = 256,
    ) -> None:
        self.trainer, self.problems, self.samples = trainer, [*problems], samples
        self.every_steps, self.batch_size = every_steps, batch_size
        if trainer.tools or trainer.environment_factories or trainer.rollout_func:
            raise ValueError(
                "Held-out problems are scored by one completion each, without tools, environments"
                " or a rollout_func. Set held_out: 0, and eval_strategy for TRL's own evaluation."
            )
        self.fingerprint = hashlib.sha256(repr(self.problems).encode()).hexdigest()
        self.moments: dict[str, Moment] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score before the first step, and then between two steps every `every_steps`."""
        step, every = state.global_step, self.every_steps
        if step == 0 or (every and step % every == 0):
            self.record(f"step {step}" if step else BEFORE)

    def record(self, moment: str) -> dict[str, float]:
        """Score the model as it is, and return {"pass@1": 0.5, "pass@8": 0.75}. Every process must
        call it.

        Args:
            moment: Its name in `held_out.json`: "before", "after", or "step 100".
        """
        trainer, counts = self.trainer, self.count_correct()
        step, folder = trainer.state.global_step, trainer.args.output_dir
        self.moments[moment] = found = Moment(step, self.samples, counts, self.fingerprint)
        shown = ", ".join(f"{name.title()} {value:.3f}" for name, value in found.scores.items())
        trainer.accelerator.print(f"{moment}, {len(counts)} held-out problems: {shown}")
        # not TRL's own `log`, which would flush metrics of the training
        Trainer.log(trainer, {f"eval_{name}": value for name, value in found.scores.items()})
        if trainer.is_world_process_zero():
            earlier = {  # an interrupted run's, too
                name: one
                for name, one in read_held_out(folder).items()
                if one.problems == found.problems and one.step <= step
            }
            write_held_out(folder, earlier | {moment: found})
        return found.scores

    def count_correct(self) -> list[int]:
        """Sample the model, and return (P,) the correct completions of each problem; one without a
        verdict is wrong. Every process must call it, and all get the same."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        size = max(1, self.batch_size // self.samples)
        if trainer.use_vllm:  # has batches of its own
            size = -(-len(self.problems) // accelerator.num_processes)
        starts, counts = [*range(0, len(self.problems), size)], {}
        # Weights in shards are gathered by all processes at once: one with fewer batches samples
        # the last once more.
        split = accelerator.split_between_processes(starts, apply_padding=True)
        with split as own, kept_random_states():
            for start in own:
                some = self.problems[start : start + size]
                rows = [row for row in some for _ in range(self.samples)]
                _, ids = self.sample(rows, sample_seed(trainer.args.seed, "", start))
                rewards_NF = self.rewards(rows, ids, trainer.verifier.columns)
                is_correct_N = trainer.verifier.is_correct(rewards_NF) == 1
                counts[start] = is_correct_N.view(-1, self.samples).sum(dim=1).tolist()
        found = dict(gather_object([*counts.items()]))
        return [count for start in starts for count in found[start]]

    def sample(self, rows: list[Any], seed: int) -> tuple[Tokens, Tokens]:
        """Return the tokens of the rows' prompts, and those of a completion of each; one batch. A
        row stands there `samples` times in a row. Every process must call it, as often."""
        trainer, tokenizer, args = self.trainer, self.trainer.processing_class, self.trainer.args
        prompts = [token_ids(row["prompt"], tokenizer, args.chat_template_kwargs) for row in rows]
        if trainer.use_vllm:
            torch.manual_seed(seed)  # a colocated engine draws from it
            trainer.vllm_generation.sync_weights()
            return prompts, trainer.vllm_generation.generate(prompts, None, self.samples)[1]
        with unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        ) as model:
            was_training, synced = model.training, trainer.accelerator.num_processes > 1
            config = trainer.generation_config
            ids = sample_tokens(model.eval(), tokenizer, prompts, config, seed, synced)
            model.train(was_training)
        return prompts, ids

    def rewards(self, rows: list[Any], ids: Tokens, columns: Sequence[int]) -> torch.Tensor:
        """Return (N, F) the rewards of completions by the functions at these places; NaN by the
        others, and where a function gives none."""
        texts = self.trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        known = {"completion_ids": ids, "trainer_state": self.trainer.state}
        found = [
            rewards_of(function, rows, texts, **known) if column in columns else [None] * len(ids)
            for column, function in enumerate(self.trainer.reward_funcs)
        ]
        return torch.tensor(np.array(found, np.float32)).T  # None becomes NaN


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Give back the random states as they were: of Python, NumPy, PyTorch and all its devices."""
    python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(python)
    np.random.set_state(of_numpy)
