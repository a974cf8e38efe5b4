"""Trains the asynchronous trainer beside a vLLM server, and compares the server's log-probs with the
trained policy's. Run by test_asynchronous_server.py: async_worker.py MODEL URL FOLDER
"""

import json
import sys
from pathlib import Path

import requests
import torch
from harness import logps_of, mixed_reward, problems
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner import MinerAsyncGRPOConfig, MinerAsyncGRPOTrainer


def sampled_by(url, model, prompts):
    """Return what the server samples for the prompts, in the form of a `rollout_func`."""
    rollouts = {"prompt_ids": prompts, "completion_ids": [], "logprobs": []}
    for prompt in prompts:
        asked = {"model": model, "prompt": prompt, "max_tokens": 8, "logprobs": 0}
        asked |= {"return_token_ids": True, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
        choice = requests.post(f"{url}/v1/completions", json=asked, timeout=60).json()["choices"][0]
        rollouts["completion_ids"].append(choice["token_ids"])
        rollouts["logprobs"].append(choice["logprobs"]["token_logprobs"])
    return rollouts


def difference(url, name, model, prompts):
    """Return the largest difference of the server's log-probs from a model's."""
    rollouts = sampled_by(url, name, prompts)
    rows = zip(rollouts["logprobs"], logps_of(model, rollouts), strict=True)
    return max(abs(a - b) for own, other in rows for a, b in zip(own, other, strict=True))


def main(model, url, folder):
    torch.set_num_threads(1)
    args = MinerAsyncGRPOConfig(
        folder,
        max_steps=6,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        per_device_train_batch_size=12,
        num_generations=4,
        max_completion_length=10,
        max_inflight_tasks=24,
        queue_maxsize=24,
        token_budget=0,
        vllm_server_base_url=url,
        dtype="float32",
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = MinerAsyncGRPOTrainer(model, mixed_reward, args, problems(48))
    trainer.train()
    trainer.model.save_pretrained(f"{folder}/trained")
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in problems(48)["prompt"][:8]]
    trained, start = (
        difference(url, model, AutoModelForCausalLM.from_pretrained(path), prompts)
        for path in (f"{folder}/trained", model)
    )
    steps = [log for log in trainer.state.log_history if "loss" in log]
    result = {"steps": steps, "from_trained": trained, "from_start": start}
    Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
