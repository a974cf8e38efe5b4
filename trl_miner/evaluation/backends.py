"""What samples: transformers, vLLM in this process, or a server with OpenAI's completions protocol.

All get the same prompts as token ids, and a seed for each sample. With transformers a sample is a
function of it (see `seeded.py`). vLLM and servers promise less: their kernels may round otherwise
when other requests share the batch.

`sample` yields each prompt's place with its `Completion` as it is done, in any order. `context` is
how many tokens prompt and completion may have together; None: not known.
"""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import Any, NamedTuple

from .seeded import sample_tokens


class Completion(NamedTuple):
    """What was sampled."""

    text: str  # without special tokens
    tokens: int | None  # their number, where it is known
    truncated: bool  # cut off at the limit


Completions = Iterator[tuple[int, Completion]]
Prompts = Sequence[list[int]]  # tokens


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
        self.context = getattr(self.model.config, "max_position_embeddings", None)

    def sample(self, prompts: Prompts, seeds: list[int], limit: int) -> Completions:
        args = self.args
        for place, ids, is_cut in sample_tokens(
            self.model, self.tokenizer, prompts, seeds, max_new_tokens=limit,
            temperature=args.temperature, top_p=args.top_p, batch_size=args.batch_size,
        ):  # fmt: skip
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            yield place, Completion(text, len(ids), is_cut)


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
        self.context = self.llm.model_config.max_model_len

    def sample(self, prompts: Prompts, seeds: list[int], limit: int) -> Completions:
        from vllm import SamplingParams

        args, engine = self.args, self.llm.llm_engine
        waiting = iter(enumerate(zip(prompts, seeds, strict=True)))
        while True:
            room = self.IN_FLIGHT - engine.get_num_unfinished_requests()
            for place, (ids, seed) in islice(waiting, room):
                params = SamplingParams(
                    temperature=args.temperature, top_p=args.top_p, max_tokens=limit, seed=seed
                )
                prompt = {"prompt_token_ids": ids}
                engine.add_request(str(place), prompt, params, lora_request=self.lora)
            if not engine.has_unfinished_requests():
                return
            for output in filter(lambda output: output.finished, engine.step()):
                (found,) = output.outputs
                is_cut = found.finish_reason == "length"
                place = int(output.request_id.split("-")[0])
                yield place, Completion(found.text, len(found.token_ids), is_cut)


class Server:
    """A running server with OpenAI's `/v1/completions`. It gets the key that `--api-key-env` names
    and no other of the environment: it may be anybody's. A request that fails is repeated for about
    two minutes.

    Raises:
        ValueError: It serves several models and none is named.
        ConnectionError: It does not answer.
    """

    AT_ONCE = 64  # requests

    def __init__(self, args: Namespace) -> None:
        import requests
        from requests.adapters import HTTPAdapter, Retry

        self.args, self.url = args, args.base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self.session = requests.Session()
        self.session.trust_env = False  # else a .netrc may have a key
        if args.api_key_env:
            self.session.headers["Authorization"] = f"Bearer {os.environ[args.api_key_env]}"
        # the first contact is not repeated: usually the address is wrong
        served = {entry["id"]: entry for entry in self._ask("models", "data")}
        if args.served_model is None and len(served) != 1:
            raise ValueError(f"{self.url} serves {[*served]}. Name one with --served-model.")
        retry = Retry(
            8, backoff_factor=0.5, status_forcelist=[408, 409, 429, 500, 502, 503, 504],
            allowed_methods=None, raise_on_status=False,
        )  # fmt: skip
        self.session.mount(self.url, HTTPAdapter(pool_maxsize=self.AT_ONCE, max_retries=retry))
        self.model = args.served_model or next(iter(served))
        about = served.get(self.model, {})
        # vLLM states it, and refuses requests for more
        self.context = about.get("max_model_len")
        # vLLM takes what a request leaves out from the model's own settings, such as top_k 20
        self.extra = {"top_k": -1, "min_p": 0, "repetition_penalty": 1} if self.context else {}

    def sample(self, prompts: Prompts, seeds: list[int], limit: int) -> Completions:
        executor = ThreadPoolExecutor(self.AT_ONCE)
        try:
            futures = {
                executor.submit(self._complete, ids, seed, limit): place
                for place, (ids, seed) in enumerate(zip(prompts, seeds, strict=True))
            }
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _complete(self, ids: list[int], seed: int, limit: int) -> Completion:
        choices = self._ask(
            "completions", "choices", model=self.model, prompt=ids, seed=seed, max_tokens=limit,
            temperature=self.args.temperature, top_p=self.args.top_p, **self.extra,
        )  # fmt: skip
        # null in the place of a text is an empty completion: asked again, it would be another draw
        choice = (choices or [None])[0] or {}
        text, is_cut = choice.get("text") or "", choice.get("finish_reason") == "length"
        return Completion(text, None, is_cut)

    def _ask(self, path: str, key: str, **sent: Any) -> Any:
        """Return a part of the server's answer, or say what went wrong and what to do."""
        try:
            method = "POST" if sent else "GET"
            answer = self.session.request(
                method, f"{self.url}/{path}", json=sent or None, timeout=(10, 3600)
            )
            answer.raise_for_status()
            return answer.json()[key]
        except (OSError, ValueError, LookupError, TypeError) as error:  # requests' are OSErrors
            raise ConnectionError(
                f"{self.url}/{path} must answer in OpenAI's format: got {error!r:.300}. Check"
                " --base-url, --api-key-env and its log; the same command goes on from here."
            ) from error
