"""The backends that sample: transformers, vLLM in this process, or a server with OpenAI's
completions protocol.

All three get the same prompts as token ids. Each sample has its own seed. With transformers a
sample is a function of that seed (see `seeded_sampling.py`). vLLM and servers promise less: their
kernels may round differently when other requests share the batch.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import requests
from requests.adapters import HTTPAdapter, Retry

from ..common.errors import first_line
from ..runs.files import read_object
from ..runs.models import ADAPTER
from ..runs.records import RANK
from ..trainer.on_cpu import tuned_for_cpu

Answer = TypeVar("Answer")
# Servers of vLLM and SGLang take what a request leaves out from the model's own settings, such as
# top_k 20.
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}


@dataclass(frozen=True)
class ModelOptions:
    """The model that samples, and how it runs; the fields are the options of `trl-miner eval`."""

    # Hub id, folder or embedded world; where a server samples, its tokenizer and its form of
    # prompts
    model: str
    revision: str | None = None
    adapter: str | None = None  # Hub id or folder of a LoRA adapter on top of it
    style: str = "auto"
    system_prompt: str | None = None
    prompt_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    backend: str = "auto"
    base_url: str | None = None
    served_model: str | None = None
    api_key_env: str | None = None
    batch_size: int = 32
    dtype: str = "auto"  # as stored
    tensor_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None


@dataclass(frozen=True)
class Request:
    """One sample to draw."""

    key: tuple[str, int]  # problem id, number of the sample
    seed: int
    ids: tuple[int, ...]  # the tokens of the prompt
    budget: int  # tokens that may be sampled; backends get at least 1


@dataclass(frozen=True)
class Completion:
    """What a backend has sampled for a request."""

    request: Request
    text: str  # without special tokens
    tokens: int
    truncated: bool  # cut off at its budget


class TransformersBackend:
    """transformers' generation, in batches, on the accelerator or the CPU."""

    def __init__(self, options: ModelOptions, tokenizer: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            options.model, revision=options.revision, dtype=options.dtype
        )
        if options.adapter:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, options.adapter)
        if torch.accelerator.is_available():
            model.to(torch.accelerator.current_accelerator())
        self.model, self.tokenizer, self.batch_size = model, tokenizer, options.batch_size
        self.context = getattr(model.config, "max_position_embeddings", None)

    def sample(
        self, asked: Sequence[Request], temperature: float, top_p: float
    ) -> Iterator[Completion]:
        """Yield a completion of each request as it finishes, in any order. Temperature 0 is
        greedy."""
        from .seeded_sampling import sample_tokens

        sampled = sample_tokens(
            self.model,
            self.tokenizer,
            [request.ids for request in asked],
            [request.seed for request in asked],
            max_new_tokens=[request.budget for request in asked],
            temperature=temperature,
            top_p=top_p,
            batch_size=self.batch_size,
        )
        with tuned_for_cpu(self.model):
            for index, ids, truncated in sampled:
                text = self.tokenizer.decode(ids, skip_special_tokens=True)
                yield Completion(asked[index], text, len(ids), truncated)


class VLLMBackend:
    """vLLM in this process. Its engine gets new requests as others finish, so that samples arrive
    one by one."""

    # Enough to fill any GPU's batch; 100,000 at once would be as fast, but hold all prompts in the
    # scheduler.
    IN_FLIGHT = 1024

    def __init__(self, options: ModelOptions) -> None:
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        names = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len")
        settings = {
            name: getattr(options, name) for name in names if getattr(options, name) is not None
        }
        self.adapter = None
        if options.adapter:
            rank = read_object(Path(options.adapter) / ADAPTER, record=RANK)["r"]
            # the ranks that vLLM supports
            fitting = next(
                (size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank
            )
            settings |= {"enable_lora": True, "max_lora_rank": fitting}
            self.adapter = LoRARequest("adapter", 1, options.adapter)
        self.llm = LLM(options.model, revision=options.revision, dtype=options.dtype, **settings)
        self.context = self.llm.model_config.max_model_len

    def sample(
        self, asked: Sequence[Request], temperature: float, top_p: float
    ) -> Iterator[Completion]:
        """Yield a completion of each request as it finishes, in any order. Temperature 0 is
        greedy."""
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        waiting = iter(enumerate(asked))
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
                    request = asked[int(output.request_id.split("-")[0])]
                    yield Completion(
                        request, done.text, len(done.token_ids), done.finish_reason == "length"
                    )


class ServerBackend:
    """A running server with OpenAI's `/v1/completions`. A request that fails is repeated for about
    two minutes.

    It gets `api_key` and no other key of the environment: it may be anybody's.
    """

    CONCURRENCY = 64  # requests in flight
    RETRIES = 8  # with pauses of 0, 1, 2, 4, ... 64 seconds
    TIMEOUT = (10, 3600)  # to connect, and for one completion, in seconds

    def __init__(self, options: ModelOptions, api_key: str | None = None) -> None:
        self.url = f"{str(options.base_url).rstrip('/').removesuffix('/v1')}/v1"
        self.session = requests.Session()
        self.session.auth = functools.partial(_authorize, api_key)  # else a .netrc may have a key
        # the first contact is not repeated: usually the address is wrong
        served = self._ask(
            "GET", "models", lambda answer: {entry["id"]: entry for entry in answer["data"]}
        )
        if options.served_model is None and len(served) != 1:
            raise ValueError(
                f"Name the model with --served-model: {self.url} serves"
                f" {', '.join(served) or 'none'}."
            )
        busy = (408, 409, 429, 500, 502, 503, 504)
        retry = Retry(
            self.RETRIES,
            backoff_factor=0.5,
            status_forcelist=busy,
            allowed_methods=None,
            raise_on_status=False,
        )
        self.session.mount(self.url, HTTPAdapter(pool_maxsize=self.CONCURRENCY, max_retries=retry))
        self.model = options.served_model or next(iter(served))
        about = served.get(self.model, {})
        # vLLM states it, and refuses requests for more
        self.context: int | None = about.get("max_model_len")
        self.extra = _NEUTRAL if about.get("owned_by") in ("vllm", "sglang") else {}

    def sample(
        self, asked: Sequence[Request], temperature: float, top_p: float
    ) -> Iterator[Completion]:
        """Yield a completion of each request as it finishes, in any order. Temperature 0 is
        greedy."""
        executor = ThreadPoolExecutor(self.CONCURRENCY)
        try:
            running = [
                executor.submit(self._complete, request, temperature, top_p) for request in asked
            ]
            for future in as_completed(running):
                yield future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _complete(self, request: Request, temperature: float, top_p: float) -> Completion:
        def read(answer: Any) -> Completion:
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            is_cut = choice.get("finish_reason") == "length"
            return Completion(request, choice["text"], usage.get("completion_tokens", 0), is_cut)

        sent = {
            "model": self.model,
            "prompt": request.ids,
            "max_tokens": request.budget,
            "seed": request.seed,
        }
        return self._ask(
            "POST",
            "completions",
            read,
            {**sent, "temperature": temperature, "top_p": top_p, **self.extra},
        )

    def _ask(
        self, method: str, path: str, read: Callable[[Any], Answer], sent: Any = None
    ) -> Answer:
        """Return what `read` makes of the answer, or say what went wrong and what to do."""
        try:
            answer = self.session.request(
                method, f"{self.url}/{path}", json=sent, timeout=self.TIMEOUT
            )
            if answer.ok:
                return read(answer.json())
            problem = f"status {answer.status_code}: {answer.text[:500]}"
        except requests.ConnectionError as error:
            raise ConnectionError(
                f"No server answers at {self.url}. Start it, or check --base-url. If you run the"
                " same command again, it goes on from here."
            ) from error
        except (
            requests.RequestException,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            problem = first_line(error)
        raise ConnectionError(
            f"The server at {self.url} does not answer in OpenAI's format: {method} {path} gave"
            f" {problem}. Check --base-url, --api-key-env and the server's log. If you run the same"
            " command again, it goes on from here."
        )


def _authorize(key: str | None, request: requests.PreparedRequest) -> requests.PreparedRequest:
    if key:
        request.headers["Authorization"] = f"Bearer {key}"
    return request


Backend = TransformersBackend | VLLMBackend | ServerBackend
