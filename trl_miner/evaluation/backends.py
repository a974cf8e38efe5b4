"""What samples: transformers, vLLM in this process, or a server with OpenAI's completions protocol.

All get the options of `trl-miner eval`, and for each sample the tokens of its prompt and a seed.
With transformers a sample is a function of these (see `seeded.py`). vLLM and servers promise less:
their kernels may round otherwise when other requests share the batch.

They yield the place of a prompt with its completion as it is done: `text` without special tokens,
and whether it was `truncated` at the limit.
"""

import os
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from .seeded import sample_tokens

Prompts = list[list[int]]
Completions = Iterator[tuple[int, dict[str, Any]]]


def by_transformers(args: Namespace, prompts: Prompts, seeds: list[int]) -> Completions:
    """Sample in batches, on the accelerator or the CPU."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        args.base, revision=args.revision, dtype=args.dtype
    )
    if args.adapter:
        model.load_adapter(args.adapter)
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    room = model.config.max_position_embeddings - max(map(len, prompts))
    for place, ids, is_cut in sample_tokens(
        model, args.tokenizer, prompts, seeds, limit=min(args.max_tokens, room),
        temperature=args.temperature, top_p=args.top_p, batch_size=args.batch_size,
    ):  # fmt: skip
        text = args.tokenizer.decode(ids, skip_special_tokens=True)
        yield place, {"text": text, "truncated": is_cut}


def by_vllm(args: Namespace, prompts: Prompts, seeds: list[int]) -> Completions:
    """Sample with an engine that gets new requests as others finish, so that samples arrive one by
    one."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        args.base, revision=args.revision, dtype=args.dtype, max_model_len=args.max_model_len,
        tensor_parallel_size=args.tensor_parallel_size,
        gpu_memory_utilization=args.gpu_memory_utilization,
        enable_lora=bool(args.adapter), max_lora_rank=512,  # the largest that vLLM takes
    )  # fmt: skip
    lora, engine = args.adapter and LoRARequest("adapter", 1, args.adapter), llm.llm_engine
    waiting = iter(enumerate(zip(prompts, seeds, strict=True)))
    while True:
        # enough to fill any GPU; 100,000 at once would be as fast, but hold all in the scheduler
        for place, (ids, seed) in islice(waiting, 1024 - engine.get_num_unfinished_requests()):
            params = SamplingParams(
                temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_tokens,
                seed=seed,
            )  # fmt: skip
            prompt = {"prompt_token_ids": ids}
            engine.add_request(str(place), prompt, params, lora_request=lora)
        if not engine.has_unfinished_requests():
            return
        for output in engine.step():
            if output.finished:
                (found,) = output.outputs
                is_cut = found.finish_reason == "length"
                yield (
                    int(output.request_id.split("-")[0]),
                    {"text": found.text, "truncated": is_cut},
                )


def by_server(args: Namespace, prompts: Prompts, seeds: list[int]) -> Completions:
    """Ask a running server, such as vLLM's, with the key that `--api-key-env` names.

    Raises:
        ConnectionError: It does not answer, or not in OpenAI's format.
    """
    import requests
    from requests.adapters import HTTPAdapter, Retry

    session, url = requests.Session(), args.base_url.rstrip("/").removesuffix("/v1")
    if args.api_key_env:
        session.headers["Authorization"] = f"Bearer {os.environ[args.api_key_env]}"
    # one that is not there is told at once; one that is busy or breaks off is asked for two minutes
    retry = Retry(8, connect=0, backoff_factor=0.5, status_forcelist=[429, 503],
                  allowed_methods=None)  # fmt: skip
    session.mount(url, HTTPAdapter(pool_maxsize=64, max_retries=retry))
    # what a request leaves out vLLM takes from the model's own settings, such as top_k 20
    common = {
        "model": args.served_model or args.model, "max_tokens": args.max_tokens,
        "temperature": args.temperature, "top_p": args.top_p,
        "top_k": -1, "min_p": 0, "repetition_penalty": 1,
    }  # fmt: skip

    def ask(ids: list[int], seed: int) -> dict[str, Any]:
        sent = common | {"prompt": ids, "seed": seed}
        try:
            answer = session.post(f"{url}/v1/completions", json=sent, timeout=3600)
            if not answer.ok:
                raise ValueError(f"{answer.status_code}: {answer.text}")
            choices = answer.json()["choices"]
        except (OSError, ValueError, LookupError, TypeError) as error:  # requests' are OSErrors
            raise ConnectionError(
                f"{url} must answer as OpenAI's completions: got {error!r:.300}. Check --base-url,"
                " --served-model and its log; the same command goes on from here."
            ) from error
        # null in the place of a text is an empty completion: asked again, it would be another draw
        choice = (choices or [None])[0] or {}
        is_cut = choice.get("finish_reason") == "length"
        return {"text": choice.get("text") or "", "truncated": is_cut}

    with ThreadPoolExecutor(64) as executor:
        yield from enumerate(executor.map(ask, prompts, seeds))
