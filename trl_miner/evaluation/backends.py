"""The backends that sample: transformers, or vLLM in this process.

Both get the same prompts as token ids, and each sample has its own seed. With transformers a sample is a function of
that seed (see `seeded_sampling.py`). vLLM promises less: its kernels may round differently when other requests share
the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ..precision import warn_of_slow_bf16
from ..runs.files import read_object
from ..runs.models import ADAPTER
from ..runs.records import RANK
from ..threads import fitting_threads


@dataclass(frozen=True)
class Request:
    """One sample to draw."""

    key: tuple[str, int]  # problem id, number of the sample
    seed: int
    ids: tuple[int, ...]  # the prompt's tokens, with the special ones
    budget: int  # tokens that may be sampled; backends get at least 1


@dataclass(frozen=True)
class Completion:
    """What a backend has sampled for a request."""

    request: Request
    text: str  # without special tokens
    tokens: int
    truncated: bool  # cut off at its budget


@dataclass(frozen=True)
class ModelSource:
    """Which model to load."""

    model: str  # Hub id or folder of the complete model
    revision: str | None = None
    adapter: str | None = None  # Hub id or folder of a LoRA adapter on top of it
    dtype: str = "auto"  # as stored


class Backend(Protocol):
    """The interface of a backend."""

    name: str
    context: int | None  # the model's limit of prompt and completion, in tokens; None: not known

    def sample(self, requests: Sequence[Request], temperature: float, top_p: float) -> Iterator[Completion]:
        """Sample the requests, and yield each completion as it finishes, in any order. Temperature 0 is greedy."""


class TransformersBackend:
    """transformers' generation, in batches, on the accelerator or the CPU."""

    name = "transformers"

    def __init__(self, source: ModelSource, tokenizer: Any, batch_size: int = 32) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(source.model, revision=source.revision, dtype=source.dtype)
        if source.adapter:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, source.adapter)
        if torch.accelerator.is_available():
            model.to(torch.accelerator.current_accelerator())
        warn_of_slow_bf16(model, model.device, weights="--dtype float32")
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.context = getattr(model.config, "max_position_embeddings", None)

    def sample(self, requests: Sequence[Request], temperature: float, top_p: float) -> Iterator[Completion]:
        """See `Backend.sample`."""
        from .seeded_sampling import sample_tokens

        sampled = sample_tokens(
            self.model,
            self.tokenizer,
            [request.ids for request in requests],
            [request.seed for request in requests],
            max_new_tokens=[request.budget for request in requests],
            temperature=temperature,
            top_p=top_p,
            batch_size=self.batch_size,
        )
        with fitting_threads(self.model):
            for index, ids, truncated in sampled:
                text = self.tokenizer.decode(ids, skip_special_tokens=True)
                yield Completion(requests[index], text, len(ids), truncated)


class VLLMBackend:
    """vLLM in this process. Its engine gets new requests as others finish, so that samples arrive one by one."""

    name = "vllm"
    # Enough to fill any GPU's batch; 100,000 at once would be as fast, but hold all prompts in the scheduler.
    IN_FLIGHT = 1024

    def __init__(self, source: ModelSource, options: dict[str, Any] | None = None) -> None:
        from huggingface_hub import snapshot_download
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        lora: dict[str, Any] = {}
        self.adapter = None
        if source.adapter:
            folder = Path(source.adapter)
            folder = folder if folder.is_dir() else Path(snapshot_download(source.adapter))
            rank = read_object(folder / ADAPTER, record=RANK)["r"]
            # the ranks that vLLM supports
            fitting = next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)
            lora = {"enable_lora": True, "max_lora_rank": fitting}
            self.adapter = LoRARequest("adapter", 1, str(folder))
        self.llm = LLM(source.model, revision=source.revision, dtype=source.dtype, **lora, **(options or {}))
        self.context = self.llm.model_config.max_model_len

    def sample(self, requests: Sequence[Request], temperature: float, top_p: float) -> Iterator[Completion]:
        """See `Backend.sample`."""
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        waiting = iter(enumerate(requests))
        while True:
            room = self.IN_FLIGHT - engine.get_num_unfinished_requests()
            for index, request in islice(waiting, room):
                params = SamplingParams(
                    temperature=temperature,
                    top_p=top_p,
                    max_tokens=request.budget,
                    seed=request.seed,
                    skip_special_tokens=True,
                )
                prompt = {"prompt_token_ids": list(request.ids)}
                engine.add_request(str(index), prompt, params, lora_request=self.adapter)
            if not engine.has_unfinished_requests():
                return
            for output in engine.step():
                if output.finished:
                    done = output.outputs[0]
                    request = requests[int(output.request_id.split("-")[0])]
                    yield Completion(request, done.text, len(done.token_ids), done.finish_reason == "length")
