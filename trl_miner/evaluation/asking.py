"""Ask a trained model single questions, in the form of its training."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from ..data import reasoning_gym
from ..data.prompts import Kind, build_prompt, token_ids
from ..data.worlds import WORLDS
from ..runs.training_record import read_run_record
from .backends import Completion, ModelOptions, Request
from .evaluate import load_model
from .generate import Sampling, sample_seed


class Asked:
    """A model with its tokenizer and the form of its prompts.

    Args:
        name: A run folder, a checkpoint, a Hub id, or an embedded world.

    Raises:
        ValueError: There is no such model.
    """

    def __init__(self, name: str) -> None:
        self._backend, self._tokenizer, self._form = load_model(ModelOptions(name))
        dataset = ""
        for folder in (Path(name), Path(name).parent):
            dataset = dataset or str(read_run_record(folder).get("dataset") or "")
        self._kind: Kind = "task" if reasoning_gym.is_task(dataset) else "math"
        # a world's questions end with a line
        self._end = "\n" if name in WORLDS or dataset in WORLDS else ""
        self._number = count()

    def answers(self, question: str, samples: int, sampling: Sampling) -> Iterator[Completion]:
        """Yield so many answers to a question."""
        prompt = build_prompt(self._kind, question + self._end, form=self._form)
        ids = tuple(token_ids(prompt, self._tokenizer, self._form.template_kwargs))
        context = self._backend.context
        if context is not None and len(ids) >= context:
            raise ValueError(
                f"A question must leave room for an answer: got {len(ids)} tokens, and the model has"
                f" {context} positions. Ask a shorter one."
            )
        room = (
            sampling.max_tokens if context is None else min(sampling.max_tokens, context - len(ids))
        )
        asked = [
            Request((question, number), sample_seed(sampling.seed, question, number), ids, room)
            for number in (next(self._number) for _ in range(samples))
        ]
        yield from self._backend.sample(asked, sampling.temperature, sampling.top_p)
