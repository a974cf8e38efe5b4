"""What samples: transformers, vLLM in this process, or a server with OpenAI's completions protocol.

All get the options of `trl-miner eval`, and for each sample the tokens of its prompt and a seed.
They yield the completions in order: the text without special tokens, and whether it was cut off at
the limit.
"""

from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from .sampling import Tokens, sample_tokens

Completions = Iterator[tuple[str, bool]]


def by_transformers(args: Namespace, prompts: Tokens, seeds: list[int]) -> Completions:
    """Sample in batches, on the accelerator or the CPU."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        args.found, revision=args.revision, dtype=args.dtype, device_map="auto"
    )
    # a chat model has several; a number alone
    ends = torch.tensor(model.generation_config.eos_token_id or []).flatten().tolist()
    room = model.config.max_position_embeddings - max(map(len, prompts))
    config = GenerationConfig(
        max_new_tokens=min(args.max_tokens, room), eos_token_id=[*ends, args.tokenizer.eos_token_id],
        pad_token_id=args.tokenizer.pad_token_id, do_sample=args.temperature > 0,
        temperature=args.temperature or None, top_p=args.top_p, top_k=0,
    )  # fmt: skip
    # `generate` takes from the model's own settings, such as its repetition_penalty, the others
    model.generation_config = GenerationConfig()
    for start in range(0, len(prompts), args.batch_size):
        some = prompts[start : start + args.batch_size]
        # A batch has the seed of its first sample: what is drawn later has others.
        sampled = sample_tokens(model, args.tokenizer, some, config, seeds[start])
        for ids in sampled:
            text = args.tokenizer.decode(ids, skip_special_tokens=True)
            yield text, ids[-1] not in config.eos_token_id


def by_vllm(args: Namespace, prompts: Tokens, seeds: list[int]) -> Completions:
    """Sample 2,048 completions at a time, enough to fill a GPU."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        args.found, revision=args.revision, dtype=args.dtype, max_model_len=args.max_model_len,
        tensor_parallel_size=args.tensor_parallel_size,
    )  # fmt: skip
    for start in range(0, len(prompts), 2048):
        some = slice(start, start + 2048)
        asked = [{"prompt_token_ids": ids} for ids in prompts[some]]
        params = [SamplingParams(**args.sampling, seed=seed) for seed in seeds[some]]
        for [one] in (each.outputs for each in llm.generate(asked, params, use_tqdm=False)):
            yield one.text, one.finish_reason == "length"


def by_server(args: Namespace, prompts: Tokens, seeds: list[int]) -> Completions:
    """Ask a running server, such as vLLM's.

    Raises:
        ConnectionError: It refuses.
    """
    from urllib3 import PoolManager, Retry

    # one that is not there is told at once; one that breaks off is asked for two minutes
    retry = Retry(8, connect=0, backoff_factor=0.5, allowed_methods=None)
    pool = PoolManager(maxsize=64, retries=retry, timeout=3600)
    # what a request leaves out vLLM takes from the model's own settings, such as top_k 20
    common = {"model": args.served_model or args.model, **args.sampling}
    common |= {"top_k": -1, "min_p": 0, "repetition_penalty": 1}

    def ask(ids: list[int], seed: int) -> tuple[str, bool]:
        sent = common | {"prompt": ids, "seed": seed}
        answer = pool.request("POST", f"{args.base_url}/completions", json=sent)
        if answer.status != 200 or b'"choices"' not in answer.data:
            raise ConnectionError(
                f"{args.base_url} must answer as OpenAI's completions: got {answer.data!r:.300}."
                " Check --base-url and --served-model; the same command goes on from here."
            )
        # null in the place of a text is an empty completion: asked again, it would be another draw
        choice = (answer.json()["choices"] or [None])[0] or {}
        return choice.get("text") or "", choice.get("finish_reason") == "length"

    with ThreadPoolExecutor(64) as executor:
        yield from executor.map(ask, prompts, seeds)
