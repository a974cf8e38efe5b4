"""What samples: transformers, vLLM in this process, or a server that speaks OpenAI's completions protocol.

All three get the same prompts, token by token: chat templates are applied here, never by a server. Each sample has a
seed of its own. With transformers a sample is a function of that seed (see `sampler.py`); vLLM and servers promise
less: their kernels may round differently when other requests share the batch.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Draw:
    """One sample to be drawn.

    Attributes:
        key: (problem id, number of the sample).
        seed: Its own.
        text: Prompt text, without the special tokens that the tokenizer adds, and with what was sampled before.
        ids: The same as token ids, with those tokens.
        offset: How many of the ids, at the end, were sampled before.
        budget: Tokens that may still be sampled, at least 1.
    """

    key: tuple[str, int]
    seed: int
    text: str
    ids: tuple[int, ...]
    offset: int
    budget: int


@dataclass(frozen=True)
class Drawn:
    """What came of it: text without special tokens, number of new tokens, and their ids where the backend tells."""

    draw: Draw
    text: str
    tokens: int
    truncated: bool
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModelSource:
    """Which model to load.

    Attributes:
        model: Hub id or folder of the whole model.
        revision: Branch, tag or commit on the Hub.
        adapter: Hub id or folder of a LoRA adapter on top of it.
        dtype: Of the weights; "auto": as stored.
    """

    model: str
    revision: str | None = None
    adapter: str | None = None
    dtype: str = "auto"


class Backend(Protocol):
    """Draws samples and yields each as it finishes, in any order."""

    name: str
    context: int | None  # tokens of prompt and completion that the model can hold; None: not known

    def sample(self, draws: Sequence[Draw], temperature: float, top_p: float) -> Iterator[Drawn]:
        """Sample the draws, and yield each as it finishes.

        Args:
            draws: What to sample, each with its seed.
            temperature: 0: greedy.
            top_p: Probability mass of the nucleus.

        Returns:
            As many as there are draws, in any order.
        """


class TransformersBackend:
    """transformers' own generation, in batches, on the accelerator or the CPU."""

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
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.context = getattr(model.config, "max_position_embeddings", None)

    def sample(self, draws: Sequence[Draw], temperature: float, top_p: float) -> Iterator[Drawn]:
        """As `Backend.sample` says."""
        from .seeded_sampling import eos_token_ids, pad_token_id, sample_tokens

        ends = eos_token_ids(self.model, self.tokenizer)
        sampled = sample_tokens(
            self.model,
            [draw.ids for draw in draws],
            [draw.seed for draw in draws],
            pad_token_id=pad_token_id(self.tokenizer, ends),
            eos_token_ids=ends,
            max_new_tokens=[draw.budget for draw in draws],
            temperature=temperature,
            top_p=top_p,
            offsets=[draw.offset for draw in draws],
            batch_size=self.batch_size,
        )
        for index, ids, truncated in sampled:
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            yield Drawn(draws[index], text, len(ids), truncated, tuple(ids))


class VLLMBackend:
    """vLLM in this process. Requests are fed to its engine as others finish, so that samples arrive one by one.

    Args:
        source: The model.
        options: More of vLLM's `LLM`: tensor_parallel_size, gpu_memory_utilization, max_model_len.
    """

    name = "vllm"
    # Enough to fill any GPU's batch; 100,000 at once would be as quick, but hold all prompts in the scheduler.
    IN_FLIGHT = 1024

    def __init__(self, source: ModelSource, options: dict[str, Any] | None = None) -> None:
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        lora: dict[str, Any] = {}
        self.adapter = None
        if source.adapter:
            folder = Path(local_folder(source.adapter))
            rank = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"]
            # vLLM knows these ranks only
            fitting = next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)
            lora = {"enable_lora": True, "max_lora_rank": fitting}
            self.adapter = LoRARequest("adapter", 1, str(folder))
        self.llm = LLM(source.model, revision=source.revision, dtype=source.dtype, **lora, **(options or {}))
        self.context = self.llm.model_config.max_model_len

    def sample(self, draws: Sequence[Draw], temperature: float, top_p: float) -> Iterator[Drawn]:
        """As `Backend.sample` says."""
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        waiting = iter(enumerate(draws))
        while True:
            room = self.IN_FLIGHT - engine.get_num_unfinished_requests()
            for index, draw in islice(waiting, room):
                params = SamplingParams(
                    temperature=temperature,
                    top_p=top_p,
                    max_tokens=draw.budget,
                    seed=draw.seed,
                    skip_special_tokens=True,
                )
                prompt = {"prompt_token_ids": list(draw.ids)}
                engine.add_request(str(index), prompt, params, lora_request=self.adapter)
            if not engine.has_unfinished_requests():
                return
            for output in engine.step():
                if output.finished:
                    done = output.outputs[0]
                    draw = draws[int(output.request_id.split("-")[0])]
                    ids = tuple(done.token_ids)
                    yield Drawn(draw, done.text, len(ids), done.finish_reason == "length", ids)


class ServerBackend:
    """A running server with OpenAI's `/v1/completions`: vLLM's, `transformers serve`, or any other.

    A request that fails for reasons of the network or the server is repeated, for about two minutes.

    Args:
        base_url: Such as http://localhost:8000/v1.
        model: The name under which the server knows the model; None: the only one it has.
        concurrency: Requests in flight.
        timeout: Seconds for one completion.
    """

    name = "server"
    PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

    def __init__(
        self, base_url: str, model: str | None = None, concurrency: int = 64, timeout: float = 3600.0
    ) -> None:
        import requests

        base_url = base_url.rstrip("/")
        self.url = base_url if base_url.endswith("/v1") else f"{base_url}/v1"
        self.concurrency, self.timeout = concurrency, timeout
        self._complained = float("-inf")
        self.session = requests.Session()
        self.session.mount("http", requests.adapters.HTTPAdapter(pool_maxsize=concurrency))
        if os.environ.get("OPENAI_API_KEY"):
            self.session.headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
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
        self.context: int | None = entry.get("max_model_len")  # vLLM tells, and refuses requests that ask for more
        # vLLM fills what a request leaves out from the model's own settings, such as top_k 20.
        self.extra = {"top_k": -1, "repetition_penalty": 1.0} if entry.get("owned_by") == "vllm" else {}

    def sample(self, draws: Sequence[Draw], temperature: float, top_p: float) -> Iterator[Drawn]:
        """As `Backend.sample` says."""
        waiting = iter(draws)
        running: set[Future[Drawn]] = set()
        executor = ThreadPoolExecutor(self.concurrency)
        try:
            while True:
                for draw in islice(waiting, self.concurrency - len(running)):
                    running.add(executor.submit(self._complete, draw, temperature, top_p))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                failed = [future for future in done if future.exception() is not None]
                # What has finished is kept, whatever became of the others.
                yield from (future.result() for future in done if future not in failed)
                for future in failed:
                    future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _complete(self, draw: Draw, temperature: float, top_p: float) -> Drawn:
        body = {"model": self.model, "prompt": draw.text, "max_tokens": draw.budget, "temperature": temperature}
        body |= {"top_p": top_p, "seed": draw.seed, **self.extra}
        answer = self._request("POST", "completions", body)
        choice = answer["choices"][0]
        tokens = (answer.get("usage") or {}).get("completion_tokens", 0)
        return Drawn(draw, choice["text"], tokens, choice["finish_reason"] == "length")

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        import requests

        url = f"{self.url}/{path}"
        for pause in (*self.PAUSES, None):
            try:
                answer = self.session.request(method, url, json=body, timeout=(10, self.timeout))
            except requests.RequestException as error:
                problem = str(error)
            else:
                if answer.ok:
                    return answer.json()
                problem = f"status {answer.status_code}: {answer.text[:500]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    break
            if pause is None or body is None:  # the first contact fails at once: most often the address is wrong
                break
            self._complain(problem)
            time.sleep(pause)
        raise ConnectionError(
            f"The server at {self.url} must answer: {method} {path} gave {problem}. Check --base-url and the server's "
            f"log; the same command goes on where this one stopped."
        )

    def _complain(self, problem: str) -> None:
        """Say that requests are being repeated: one voice for all threads, every ten seconds at most."""
        now = time.monotonic()
        if now - self._complained > 10:
            self._complained = now
            logger.warning("The server at %s does not answer (%s); trying again for two minutes.", self.url, problem)


def local_folder(name: str, revision: str | None = None) -> str:
    """The folder of a model or adapter: itself, or the Hub's files, downloaded once."""
    if Path(name).is_dir():
        return name
    from huggingface_hub import snapshot_download

    return snapshot_download(name, revision=revision)
