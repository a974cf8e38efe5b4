"""`prompt_selection: temperature`: rollouts that are sampled hotter, and scored at the temperature of their sampling.

TRL has one temperature. The `heat` of a rollout is a factor on it, so its logits are divided by that too. The sampler
does so in a logits processor (transformers) or by the temperature of its requests (vLLM). The forwards of the loss, of
the old policy and of the reference divide the hidden states that go into the head: logits are linear in them.

# B rows of this process or of one forward, N of all processes, G = num_generations rollouts per prompt
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..methods import TEMPERATURE
from .replaced import replaced
from .row_layout import uses_liger_loss

HEAT = "miner_heat"  # (B,) in a batch of TRL's, from the generation to the loss


def check_heat(trainer: Any) -> None:
    """Raise ValueError where a trainer cannot sample or score rollouts of one batch at several temperatures."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    columns = set(getattr(trainer.train_dataset, "column_names", None) or ())
    head = model.get_output_embeddings()
    readers = [method.name for method in args.estimators if method.reads_logits]
    obstacles = {
        "tools or environments": trainer.tools or getattr(trainer, "environment_factories", None),
        "a rollout_func": trainer.rollout_func,
        "images": columns & {"image", "images"},
        "generation_kwargs with a temperature": "temperature" in (args.generation_kwargs or {}),
        "use_transformers_continuous_batching": trainer.use_transformers_continuous_batching,
        "use_liger_kernel with TRL below 1.14": uses_liger_loss(trainer),
        f"advantage_estimator {', '.join(readers)}, which reads logits": readers,
        "a model that names no decoder": model.get_decoder() is model,
        "a model whose head has a bias": getattr(head, "bias", None) is not None,
        "a model that caps its logits": getattr(model.config.get_text_config(), "final_logit_softcapping", None),
    }
    if found := [name for name, is_there in obstacles.items() if is_there]:
        raise ValueError(
            f"prompt_selection={TEMPERATURE.name} needs a model with a linear head that answers text in one turn: got "
            f"{found[0]}. Leave that out, or choose another prompt_selection."
        )


@contextmanager
def dividing(model: Any, heat_B: Tensor | None) -> Iterator[None]:
    """Divide the logits of a model's rows by their heat, in forwards that take these rows in turn, some at a time."""
    if heat_B is None or bool((heat_B == 1).all()):
        yield
        return
    place = 0

    def divide(module: Any, args: Any, output: Any) -> Any:
        nonlocal place
        hidden = output[0]
        heat_b = heat_B[place : place + len(hidden)].to(hidden.device)
        place += len(hidden)
        divided = (hidden / heat_b.view(-1, *[1] * (hidden.dim() - 1))).to(hidden.dtype)
        if isinstance(output, tuple):
            return (divided, *output[1:])
        output["last_hidden_state"] = divided
        return output

    handle = model.get_decoder().register_forward_hook(divide)
    try:
        yield
    finally:
        handle.remove()
    if place != len(heat_B):
        raise RuntimeError(f"A forward over {len(heat_B)} rows went through the model with {place}.")


class _Heating(LogitsProcessor):
    """Divides the logits of each row by its heat, before all that samplers do to them."""

    def __init__(self, heats: list[float]) -> None:
        self._heats = heats

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if len(scores) != len(self._heats):
            raise RuntimeError(f"{len(self._heats)} rollouts must be sampled in one call, not {len(scores)}.")
        return scores / scores.new_tensor(self._heats).unsqueeze(1)


@contextmanager
def sampling(trainer: Any, heats: list[float] | None) -> Iterator[None]:
    """Have TRL's next generation sample each of its rows at its own temperature. Every process must call it."""
    if heats is None:
        yield
        return
    generating: Callable[..., Any]
    if not trainer.use_vllm:
        sampler, generating = trainer.accelerator.unwrap_model(trainer.model_wrapped), _generate_with_processor
    elif trainer.vllm_mode == "server":
        heats = gather_object(heats)
        if not trainer.accelerator.is_main_process:  # which alone asks the server
            yield
            return
        sampler, generating = trainer.vllm_generation.vllm_client, _generate_by_request
    else:
        heats = _of_engine(trainer.vllm_generation, heats)
        sampler, generating = trainer.vllm_generation.llm, _generate_by_prompt
    with replaced(sampler, "generate", partial(generating, sampler.generate, heats)):
        yield


def _generate_with_processor(
    generate: Callable[..., Any], heats: list[float], *args: Any, logits_processor: Sequence[Any] = (), **kwargs: Any
) -> Any:
    """Have transformers divide the logits of each row."""
    processors = LogitsProcessorList([_Heating(heats), *logits_processor])
    return generate(*args, logits_processor=processors, **kwargs)


def _generate_by_request(
    generate: Callable[..., Any],
    heats: list[float],
    prompts: Sequence[Any],
    *,
    n: int = 1,
    temperature: float = 1.0,
    **kwargs: Any,
) -> dict[str, Any]:
    """Ask a server once for each temperature, and put its answers in the order of the prompts, of n rows each."""
    heat_P = heats[::n]
    merged: dict[str, Any] = {}
    for heat in sorted({*heat_P}):
        places = [place for place, own in enumerate(heat_P) if own == heat]
        asked = [prompts[place] for place in places]
        for name, values in generate(prompts=asked, n=n, temperature=temperature * heat, **kwargs).items():
            if values is None:
                merged[name] = None
                continue
            of_each = merged.setdefault(name, [[] for _ in prompts])
            per_prompt = len(values) // len(places)
            for i, place in enumerate(places):
                of_each[place] = values[i * per_prompt : (i + 1) * per_prompt]
    return {name: None if of_each is None else [*itertools.chain(*of_each)] for name, of_each in merged.items()}


def _generate_by_prompt(
    generate: Callable[..., Any], heats: list[float], prompts: Sequence[Any], *, sampling_params: Any, **kwargs: Any
) -> Any:
    """Give vLLM's engine in this process the sampling settings of each prompt."""
    of_each = [sampling_params.clone() for _ in heats]
    for settings, heat in zip(of_each, heats, strict=True):
        settings.temperature *= heat
    return generate(prompts, sampling_params=of_each, **kwargs)


def _of_engine(link: Any, heats: list[float]) -> list[float]:
    """Return the heat of all prompts that vLLM's engine gets: those of the processes that share it."""
    if link.tensor_parallel_size == 1:
        return heats
    of_each: list[Any] = [None] * link.tensor_parallel_size
    torch.distributed.all_gather_object(of_each, heats, group=link.tp_group)
    return [heat for own in of_each for heat in own]
