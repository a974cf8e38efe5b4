"""The backends that sample: transformers, vLLM in this process, or a server with OpenAI's completions protocol.

All three get the same prompts, token by token: chat templates are applied here, never by a server. Each sample has its
own seed. With transformers a sample is a function of that seed (see `seeded_sampling.py`). vLLM and servers promise
less: their kernels may round differently when other requests share the batch.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ..precision import warn_of_slow_bf16
from ..redaction import redact
from ..runs.files import read_object
from ..runs.models import ADAPTER
from ..runs.records import RANK
from ..threads import fitting_threads

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """One sample to draw."""

    key: tuple[str, int]  # problem id, number of the sample
    seed: int
    text: str  # the prompt without the special tokens that the tokenizer adds, and what was sampled before
    ids: tuple[int, ...]  # the same as token ids, with the special tokens
    offset: int  # how many of the ids, at the end, were sampled before
    budget: int  # tokens that may still be sampled; backends get at least 1
    is_text_enough: bool = True  # whether a server's tokenizer makes these ids of the text


@dataclass(frozen=True)
class Completion:
    """What a backend has sampled for a request."""

    request: Request
    text: str  # the new text, without special tokens
    tokens: int  # new ones
    truncated: bool  # cut off at its budget
    ids: tuple[int, ...] | None = None  # new ones, where the backend returns them


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
            offsets=[request.offset for request in requests],
            batch_size=self.batch_size,
        )
        with fitting_threads(self.model):
            for index, ids, truncated in sampled:
                text = self.tokenizer.decode(ids, skip_special_tokens=True)
                yield Completion(requests[index], text, len(ids), truncated, tuple(ids))


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
                    ids = tuple(done.token_ids)
                    yield Completion(request, done.text, len(ids), done.finish_reason == "length", ids)


class ServerBackend:
    """A running server with OpenAI's `/v1/completions`. A request that fails is repeated for about two minutes.

    It gets `api_key` and no other key of the environment: it may be anybody's.
    """

    name = "server"
    PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

    TIMEOUT = 3600.0  # for one completion, in seconds

    def __init__(
        self, base_url: str, model: str | None = None, concurrency: int = 64, api_key: str | None = None
    ) -> None:
        import requests

        base_url = base_url.rstrip("/")
        self.url = base_url if base_url.endswith("/v1") else f"{base_url}/v1"
        self.concurrency = concurrency
        self._warned = float("-inf")
        self.session = requests.Session()
        self.session.mount("http", requests.adapters.HTTPAdapter(pool_maxsize=concurrency))
        if api_key:
            self.session.headers["Authorization"] = f"Bearer {api_key}"
        try:
            served = self._request("GET", "models", None)["data"]
        except ConnectionError:
            if model is None:  # not every server lists its models
                raise
            served = []
        names = [entry["id"] for entry in served]
        if model is None and len(names) != 1:
            raise ValueError(
                f"--served-model must say which model to ask: {self.url} serves {', '.join(names) or 'none'}."
            )
        self.model = model or names[0]
        entry: dict[str, Any] = next((entry for entry in served if entry["id"] == self.model), {})
        self.context: int | None = entry.get("max_model_len")  # vLLM states it, and refuses requests for more
        # vLLM takes what a request leaves out from the model's own settings, such as top_k 20.
        self.extra = {"top_k": -1, "repetition_penalty": 1.0} if entry.get("owned_by") == "vllm" else {}

    def sample(self, requests: Sequence[Request], temperature: float, top_p: float) -> Iterator[Completion]:
        """See `Backend.sample`."""
        waiting = iter(requests)
        running: set[Future[Completion]] = set()
        executor = ThreadPoolExecutor(self.concurrency)
        try:
            while True:
                for request in islice(waiting, self.concurrency - len(running)):
                    running.add(executor.submit(self._complete, request, temperature, top_p))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                failed = [future for future in done if future.exception() is not None]
                # Keep what has finished, even if others have failed.
                yield from (future.result() for future in done if future not in failed)
                for future in failed:
                    future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _complete(self, request: Request, temperature: float, top_p: float) -> Completion:
        prompt = request.text if request.is_text_enough else list(request.ids)
        body = {"model": self.model, "prompt": prompt, "max_tokens": request.budget, "temperature": temperature}
        body |= {"top_p": top_p, "seed": request.seed, **self.extra}
        answer = self._request("POST", "completions", body)
        choice = answer["choices"][0]
        tokens = (answer.get("usage") or {}).get("completion_tokens", 0)
        return Completion(request, choice["text"], tokens, choice["finish_reason"] == "length")

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        import requests

        url = f"{self.url}/{path}"
        for pause in (*self.PAUSES, None):
            try:
                answer = self.session.request(method, url, json=body, timeout=(10, self.TIMEOUT))
            except requests.RequestException as error:
                problem = str(error)
            else:
                if answer.ok:
                    return answer.json()
                problem = f"status {answer.status_code}: {answer.text[:500]}"
                if answer.status_code in (401, 403):
                    asked = "Check the key in the variable that --api-key-env names"
                    given = "If it wants a key, name the variable that holds it: --api-key-env OPENAI_API_KEY"
                    raise PermissionError(
                        f"The server at {self.url} must accept the request: {method} {path} gave {problem}. "
                        f"{asked if 'Authorization' in self.session.headers else given}."
                    )
                if answer.status_code < 500 and answer.status_code != 429:
                    break
            if pause is None or body is None:  # the first contact fails at once: usually the address is wrong
                break
            self._warn(problem)
            time.sleep(pause)
        raise ConnectionError(
            f"The server at {self.url} must answer: {method} {path} gave {problem}. Check --base-url and the server's "
            f"log; the same command goes on where this one stopped."
        )

    def _warn(self, problem: str) -> None:
        """Warn that requests are being repeated, for all threads together and at most every ten seconds."""
        now = time.monotonic()
        if now - self._warned > 10:
            self._warned = now
            message = f"The server at {self.url} does not answer ({problem}); trying again for two minutes."
            logger.warning("%s", redact(message))
