"""`prompt_selection: temperature`: rollouts that are sampled hotter, and scored at the temperature of their sampling.

TRL has one temperature. The `heat` of a rollout is a factor on it, so its logits are divided by that too. The sampler
does so in a logits processor (transformers) or by the temperature of its requests (vLLM). The forwards of the loss, of
the old policy and of the reference divide the hidden states that go into the head: logits are linear in them.

# B rows of this process or of one forward, N of all processes, G = num_generations rollouts per prompt
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..methods import TEMPERATURE
from .row_layout import uses_liger_loss
from .sampled_logps import replacing

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

    def __init__(self, heat_B: Tensor) -> None:
        self._heat_B1 = heat_B.unsqueeze(1)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if len(scores) != len(self._heat_B1):
            raise RuntimeError(f"{len(self._heat_B1)} rollouts must be sampled in one call, not {len(scores)}.")
        return scores / self._heat_B1.to(scores)


@contextmanager
def sampling(trainer: Any, heat_B: Tensor | None) -> Iterator[None]:
    """Have TRL's next generation sample each of its rows at its own temperature. Every process must call it."""
    if heat_B is None:
        yield
        return
    # As they are set: in float32 a product with the temperature may be above vLLM's limit.
    heats = [trainer.args.prompt_selection_heat if heat > 1 else 1.0 for heat in heat_B.tolist()]
    if not trainer.use_vllm:
        model, make = trainer.accelerator.unwrap_model(trainer.model_wrapped), _with_processor(heat_B)
    elif trainer.vllm_mode == "server":
        heat_N = gather_object(heats)
        if not trainer.accelerator.is_main_process:
            yield
            return
        model, make = trainer.vllm_generation.vllm_client, _by_request(heat_N)
    else:
        model, make = trainer.vllm_generation.llm, _by_prompt(_of_engine(trainer.vllm_generation, heats))
    with replacing(model, "generate", make):
        yield


def _with_processor(heat_B: Tensor) -> Callable[..., Any]:
    def make(generate: Callable[..., Any]) -> Callable[..., Any]:
        def generating(*args: Any, logits_processor: Sequence[Any] = (), **kwargs: Any) -> Any:
            processors = LogitsProcessorList([_Heating(heat_B), *logits_processor])
            return generate(*args, logits_processor=processors, **kwargs)

        return generating

    return make


def _by_request(heat_N: list[float]) -> Callable[..., Any]:
    """Ask a server once for each temperature, and put its answers in the order of the prompts."""

    def make(generate: Callable[..., Any]) -> Callable[..., Any]:
        def generating(prompts: Sequence[Any], *, n: int = 1, temperature: float = 1.0, **kwargs: Any) -> Any:
            heat_P = heat_N[::n]
            places = {heat: [place for place, own in enumerate(heat_P) if own == heat] for heat in sorted({*heat_P})}
            merged: dict[str, Any] = {}
            for heat, its in places.items():
                asked = [prompts[place] for place in its]
                answer = generate(prompts=asked, n=n, temperature=temperature * heat, **kwargs)
                for name, values in answer.items():
                    if values is None:
                        merged[name] = None
                        continue
                    of_each = merged.setdefault(name, [[] for _ in prompts])
                    per_prompt = len(values) // len(its)
                    for i, place in enumerate(its):
                        of_each[place] = values[i * per_prompt : (i + 1) * per_prompt]
            return {
                name: None if of_each is None else [*itertools.chain(*of_each)] for name, of_each in merged.items()
            }

        return generating

    return make


def _by_prompt(heats: list[float]) -> Callable[..., Any]:
    """Give vLLM's engine in this process the sampling settings of each prompt."""

    def make(generate: Callable[..., Any]) -> Callable[..., Any]:
        def generating(prompts: Sequence[Any], *, sampling_params: Any, **kwargs: Any) -> Any:
            of_each = [sampling_params.clone() for _ in heats]
            for settings, heat in zip(of_each, heats, strict=True):
                settings.temperature *= heat
            return generate(prompts, sampling_params=of_each, **kwargs)

        return generating

    return make


def _of_engine(link: Any, heats: list[float]) -> list[float]:
    """Return the heat of all prompts that vLLM's engine gets: those of the processes that share it."""
    if link.tensor_parallel_size == 1:
        return heats
    of_each: list[Any] = [None] * link.tensor_parallel_size
    torch.distributed.all_gather_object(of_each, heats, group=link.tp_group)
    return [heat for own in of_each for heat in own]
