"""The backends that sample: transformers, vLLM in this process, or a server with OpenAI's completions protocol.

All three get the same prompts, token by token: chat templates are applied here, never by a server. Each sample has its
own seed. With transformers a sample is a function of that seed (see `seeded_sampling.py`). vLLM and servers promise
less: their kernels may round differently when other requests share the batch.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..errors import first_line
from ..precision import warn_of_slow_bf16
from ..runs.files import read_object
from ..runs.models import ADAPTER
from ..runs.records import RANK
from ..threads import fitting_threads

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Request:
    """One sample to draw."""

    key: tuple[str, int]  # problem id, number of the sample
    seed: int
    text: str  # the prompt without the special tokens that the tokenizer adds
    ids: tuple[int, ...]  # the same as token ids, with the special tokens
    budget: int  # tokens that may be sampled; backends get at least 1
    is_text_enough: bool = True  # whether a server's tokenizer makes these ids of the text


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


class ServerBackend:
    """A running server with OpenAI's `/v1/completions`. A request that fails is repeated for about two minutes.

    It gets `api_key` and no other key of the environment: it may be anybody's.
    """

    name = "server"
    RETRIES = 18  # with pauses of 0.5, 1, 2, 4, 8, 8, ... seconds
    TIMEOUT = 3600.0  # for one completion, in seconds

    def __init__(
        self, base_url: str, model: str | None = None, concurrency: int = 64, api_key: str | None = None
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise ValueError("--base-url needs the package openai. Run: pip install 'trl_miner[server]'") from error
        _show_retries()
        base_url = base_url.rstrip("/")
        self.url = base_url if base_url.endswith("/v1") else f"{base_url}/v1"
        self.concurrency, self.has_key = concurrency, bool(api_key)
        timeout = openai.Timeout(self.TIMEOUT, connect=10)
        self.client = openai.OpenAI(
            base_url=self.url, api_key=api_key or "none", timeout=timeout, max_retries=self.RETRIES
        )
        # openai sends these of the environment by itself; Omit leaves a header out
        own = [line.partition(":")[0].strip() for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")]
        left_out = filter(None, ("OpenAI-Organization", "OpenAI-Project", *own))
        self.headers: dict[str, Any] = {name: openai.Omit() for name in left_out}
        self.headers["Authorization"] = f"Bearer {api_key}" if api_key else openai.Omit()
        try:  # the first contact fails at once: usually the address is wrong
            once = self.client.with_options(max_retries=0)
            served = self._ask("GET models", lambda: list(once.models.list(extra_headers=self.headers).data))
        except ConnectionError:
            if model is None:  # not every server lists its models
                raise
            served = []
        names = [entry.id for entry in served]
        if model is None and len(names) != 1:
            raise ValueError(
                f"--served-model must say which model to ask: {self.url} serves {', '.join(names) or 'none'}."
            )
        self.model = model or names[0]
        entry = next((entry for entry in served if entry.id == self.model), None)
        # vLLM states it, and refuses requests for more
        self.context: int | None = getattr(entry, "max_model_len", None)
        # vLLM takes what a request leaves out from the model's own settings, such as top_k 20.
        is_vllm = getattr(entry, "owned_by", None) == "vllm"
        self.extra = {"top_k": -1, "repetition_penalty": 1.0} if is_vllm else {}

    def sample(self, requests: Sequence[Request], temperature: float, top_p: float) -> Iterator[Completion]:
        """See `Backend.sample`."""
        executor = ThreadPoolExecutor(self.concurrency)
        try:
            running = [executor.submit(self._complete, request, temperature, top_p) for request in requests]
            for future in as_completed(running):
                yield future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _complete(self, request: Request, temperature: float, top_p: float) -> Completion:
        def complete() -> Completion:
            answer = self.client.completions.create(
                model=self.model,
                prompt=request.text if request.is_text_enough else list(request.ids),
                max_tokens=request.budget,
                temperature=temperature,
                top_p=top_p,
                seed=request.seed,
                extra_body=self.extra,
                extra_headers=self.headers,
            )
            choice = answer.choices[0]
            tokens = answer.usage.completion_tokens if answer.usage else 0
            return Completion(request, choice.text, tokens, choice.finish_reason == "length")

        return self._ask("POST completions", complete)

    def _ask(self, what: str, call: Callable[[], Answer]) -> Answer:
        """Return what a call makes of the answer, or say what went wrong and what to do."""
        import openai

        try:
            return call()
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            asked = "Check the key in the variable that --api-key-env names"
            given = "If it wants a key, name the variable that holds it: --api-key-env OPENAI_API_KEY"
            raise PermissionError(
                f"The server at {self.url} must accept the request: {what} gave status {error.status_code}: "
                f"{error.response.text[:500]}. {asked if self.has_key else given}."
            ) from error
        except openai.APIStatusError as error:
            problem = f"status {error.status_code}: {error.response.text[:500]}"
        except openai.APIError as error:
            problem = str(error.__cause__ or error)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"no answer in OpenAI's format ({first_line(error)})"
        raise ConnectionError(
            f"The server at {self.url} must answer: {what} gave {problem}. Check --base-url and the server's log; the "
            f"same command goes on where this one stopped."
        )


def _show_retries() -> None:
    """Show openai's message of a repeated request, which it logs as information, as a warning every ten seconds."""
    shown = float("-inf")

    def is_shown(record: logging.LogRecord) -> bool:
        nonlocal shown
        if "Retrying" not in record.getMessage() or time.monotonic() - shown < 10:
            return False
        shown = time.monotonic()
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = f"The server does not answer. {record.msg}"
        return True

    log = logging.getLogger("openai._base_client")
    log.setLevel(logging.INFO)
    log.filters[:] = [is_shown]
