"""What samples: transformers, vLLM in this process, or a server with OpenAI's completions protocol.

All get the same prompts as tokens, and a seed for each sample. With transformers a sample is a
function of it (see `seeded.py`). vLLM and servers promise less: their kernels may round otherwise
when other requests share the batch.

`sample` yields the place of a prompt with its completion as it is done, in any order: `text`
without special tokens, and whether it was `truncated` at the limit.
"""

import os
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import Any

from .seeded import sample_tokens

Completions = Iterator[tuple[int, dict[str, Any]]]


class Transformers:
    """transformers' generation, in batches, on the accelerator or the CPU."""

    def __init__(self, args: Namespace, tokenizer: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            args.base, revision=args.revision, dtype=args.dtype
        )
        if args.adapter:
            self.model.load_adapter(args.adapter)
        if torch.accelerator.is_available():
            self.model.to(torch.accelerator.current_accelerator())
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        self.args, self.tokenizer = args, tokenizer

    def sample(self, prompts: list[list[int]], seeds: list[int]) -> Completions:
        args = self.args
        room = self.model.config.max_position_embeddings - max(map(len, prompts))
        for place, ids, is_cut in sample_tokens(
            self.model, self.tokenizer, prompts, seeds, limit=min(args.max_tokens, room),
            temperature=args.temperature, top_p=args.top_p, batch_size=args.batch_size,
        ):  # fmt: skip
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            yield place, {"text": text, "truncated": is_cut}


class VLLM:
    """vLLM in this process. Its engine gets new requests as others finish, so that samples arrive
    one by one."""

    # Enough to fill any GPU's batch; 100,000 at once would be as fast, but hold all prompts in the
    # scheduler.
    IN_FLIGHT = 1024

    def __init__(self, args: Namespace) -> None:
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        names = ["tensor_parallel_size", "gpu_memory_utilization", "max_model_len"]
        engine = {name: getattr(args, name) for name in names if getattr(args, name)}
        if args.adapter:  # 512 is the largest rank that vLLM takes
            engine |= {"enable_lora": True, "max_lora_rank": 512}
        self.args, self.lora = args, args.adapter and LoRARequest("adapter", 1, args.adapter)
        self.llm = LLM(args.base, revision=args.revision, dtype=args.dtype, **engine)

    def sample(self, prompts: list[list[int]], seeds: list[int]) -> Completions:
        from vllm import SamplingParams

        args, engine = self.args, self.llm.llm_engine
        waiting = iter(enumerate(zip(prompts, seeds, strict=True)))
        while True:
            room = self.IN_FLIGHT - engine.get_num_unfinished_requests()
            for place, (ids, seed) in islice(waiting, room):
                params = SamplingParams(
                    temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_tokens,
                    seed=seed,
                )  # fmt: skip
                engine.add_request(
                    str(place), {"prompt_token_ids": ids}, params, lora_request=self.lora
                )
            if not engine.has_unfinished_requests():
                return
            for output in engine.step():
                if output.finished:
                    (found,) = output.outputs
                    place, is_cut = output.request_id.split("-")[0], found.finish_reason == "length"
                    yield int(place), {"text": found.text, "truncated": is_cut}


class Server:
    """A running server with OpenAI's `/v1/completions`, such as vLLM's. It gets the key that
    `--api-key-env` names and no other of the environment: it may be anybody's. A request to a busy
    server is repeated for about two minutes."""

    AT_ONCE = 64  # requests

    def __init__(self, args: Namespace) -> None:
        import requests
        from requests.adapters import HTTPAdapter, Retry

        self.args, self.url = args, args.base_url.rstrip("/").removesuffix("/v1")
        self.session = requests.Session()
        self.session.trust_env = False  # else a .netrc may have a key
        if args.api_key_env:
            self.session.headers["Authorization"] = f"Bearer {os.environ[args.api_key_env]}"
        retry = Retry(8, connect=0, backoff_factor=0.5, status_forcelist=[429, 503],
                      allowed_methods=None)  # fmt: skip
        self.session.mount(self.url, HTTPAdapter(pool_maxsize=self.AT_ONCE, max_retries=retry))

    def sample(self, prompts: list[list[int]], seeds: list[int]) -> Completions:
        executor = ThreadPoolExecutor(self.AT_ONCE)
        try:
            pairs = enumerate(zip(prompts, seeds, strict=True))
            futures = {executor.submit(self._ask, *pair): place for place, pair in pairs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _ask(self, ids: list[int], seed: int) -> dict[str, Any]:
        args = self.args
        # what a request leaves out vLLM takes from the model's own settings, such as top_k 20
        sent = {
            "model": args.served_model or args.model, "prompt": ids, "seed": seed,
            "max_tokens": args.max_tokens, "temperature": args.temperature, "top_p": args.top_p,
            "top_k": -1, "min_p": 0, "repetition_penalty": 1,
        }  # fmt: skip
        try:
            answer = self.session.post(f"{self.url}/v1/completions", json=sent, timeout=3600)
            if not answer.ok:
                raise ValueError(f"{answer.status_code}: {answer.text}")
            choices = answer.json()["choices"]
        except (OSError, ValueError, LookupError, TypeError) as error:  # requests' are OSErrors
            raise ConnectionError(
                f"{self.url} must answer as OpenAI's completions: got {error!r:.300}. Check"
                " --base-url, --served-model and its log; the same command goes on from here."
            ) from error
        # null in the place of a text is an empty completion: asked again, it would be another draw
        choice = (choices or [None])[0] or {}
        return {
            "text": choice.get("text") or "",
            "truncated": choice.get("finish_reason") == "length",
        }
