"""Samples of the vLLM that a training generates with, each with a seed of its own.

TRL asks its vLLM for a batch with one set of parameters. Here a request is made for each prompt,
with its seed; the weights, sleeping, tensor parallelism and the exchange between processes stay
TRL's.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from accelerate.utils import gather_object

from .swaps import holding

IN_FLIGHT = 64  # requests to a server at once
# Held-out samples are drawn from the distribution whose log-probs the loss takes.
NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "generation_kwargs": {},
}


@contextmanager
def seeding(generation: Any, seeds: Sequence[int]) -> Iterator[None]:
    """Have TRL's link to vLLM draw each of the next prompts by its own seed, from the model's own
    distribution at the temperature of the training. Every process must call it.

    Args:
        generation: TRL's link.
        seeds: One for each prompt of this process; as many on every process.
    """
    swap: Any = nullcontext()
    if generation.mode == "server":
        all_seeds = gather_object([*seeds])  # as TRL gathers the prompts
        client = getattr(generation, "vllm_client", None)  # the main process has it
        if client is not None:
            swap = patch.object(client, "generate", partial(_ask, client.generate, all_seeds))
    else:
        all_seeds = [*seeds]
        if generation.tensor_parallel_size > 1:
            shares: list[Any] = [None] * generation.tensor_parallel_size
            dist.all_gather_object(shares, all_seeds, group=generation.tp_group)
            all_seeds = [seed for share in shares for seed in share]
        llm = generation.llm
        swap = patch.object(llm, "generate", partial(_draw, llm.generate, all_seeds))
    with holding(generation, **NEUTRAL), swap:
        yield


def _draw(
    generate: Any, seeds: list[int], prompts: Any, *, sampling_params: Any, **more: Any
) -> Any:
    """Generate in this process, with parameters for each prompt."""
    seeded = []
    for seed in seeds:
        own = sampling_params.clone()
        own.seed = seed
        seeded.append(own)
    return generate(prompts, sampling_params=seeded, **more)


def _ask(
    generate: Any, seeds: list[int], prompts: list[list[int]], **settings: Any
) -> dict[str, Any]:
    """Ask a server for each prompt, and return the answers as TRL's client returns those of a
    batch."""

    def one(prompt: list[int], seed: int) -> dict[str, Any]:
        own = {**settings, "generation_kwargs": {"seed": seed}}
        answer: dict[str, Any] = generate([prompt], **own)
        return answer

    with ThreadPoolExecutor(IN_FLIGHT) as executor:
        answers = list(executor.map(one, prompts, seeds))
    return {
        name: None if answers[0][name] is None else [row for one in answers for row in one[name]]
        for name in answers[0]
    }
