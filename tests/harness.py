"""What several test files and the worker scripts share: a policy, problems, rewards, a config."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from pathlib import Path

import psutil
import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.data import arithmetic

BASE_MODEL_STEPS = 50  # of 900: enough for a model that ends most answers and solves few problems
GOLDEN = Path(__file__).parent / "golden"


def golden_cases(name):
    cases = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases]


def assert_matches_golden(found, case, key="advantages"):
    expected = torch.tensor(case[key])
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert (found[(expected == 0).all(dim=1)] == 0).all()


def build_policy(folder: Path) -> str:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = arithmetic.build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def crc(text: str) -> int:
    return zlib.crc32(text.encode())


def problems(count: int = 48) -> Dataset:
    """Problems whose kinds under `mixed_reward` take turns, so that every batch of three prompts has one of each."""
    rows = list(arithmetic.load_dataset("train", size=4 * count))
    by_kind = [[row for row in rows if crc(row["prompt"]) % 3 == kind] for kind in range(3)]
    turns = [row for turn in zip(*by_kind, strict=False) for row in turn]
    return Dataset.from_list(turns[:count])


def mixed_reward(prompts, completions, **kwargs):
    """By prompt: a third all right, a third all wrong, a third by a coin that the completion tosses."""
    return by_thirds(prompts, [float(crc(completion) % 2) for completion in completions])


def by_thirds(prompts, coins):
    """1 for a third of the prompts, 0 for another, and a third's rows by their coins."""
    kinds = [crc(prompt) % 3 for prompt in prompts]
    return [[1.0, 0.0, coin][kind] for kind, coin in zip(kinds, coins, strict=True)]


def never_all_right(prompts, completions, **kwargs):
    """As `mixed_reward`, with the all-right third at 0.5: homogeneous, but not correct."""
    return [0.5 if crc(p) % 3 == 0 else r for p, r in zip(prompts, mixed_reward(prompts, completions), strict=True)]


def config(output_dir, cls=MinerGRPOConfig, **overrides):
    settings = dict(
        output_dir=str(output_dir),
        max_steps=5,
        per_device_train_batch_size=12,
        num_generations=4,
        max_completion_length=10,
        shuffle_dataset=False,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    return cls(**{**settings, **overrides})


# Every switch off that makes a training step other than TRL's, if only in the order of its sums.
AS_TRL = dict(
    length_aware_training=False, length_aware_scoring=False, skip_zero_advantages=False, reuse_sampling_logps=False
)


def metrics_of(trainer, without=("time", "seconds", "runtime", "per_second")):
    """The training log, less what a clock measured."""
    return [
        {key: value for key, value in log.items() if not any(word in key for word in without)}
        for log in trainer.state.log_history
        if "eval_pass@1" not in log
    ]


OWN_METRICS = (
    "groups/",
    "rollouts/",
    "miner/",
    "dynamic_sampling/",
    "clip_cov/",
    "kl_cov/",
    "bapo/",
    "ucas/",
    "entropy_adv/",
    "micro_batches/",
)


class Recording(MinerGRPOTrainer):
    """Keeps what TRL's loss is handed, and how many rows each no-grad forward had."""

    def __init__(self, *args, **kwargs):
        self.batches, self.forwarded = [], []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.batches.append({**batch, "is_training": self.model.training})
        return batch

    @property
    def token_advantages(self):
        """By batch, (B, T): what every token that counts in the loss gets, 0 at the others."""
        for batch in self.batches:
            mask = batch["completion_mask"] * batch.get("tool_mask", 1)
            advantages = batch["advantages"]
            yield (advantages if advantages.dim() == 2 else advantages.unsqueeze(1)) * mask

    def trl_forward(self, model, input_ids, *args, **kwargs):
        if not torch.is_grad_enabled():
            self.forwarded.append(len(input_ids))
        return super().trl_forward(model, input_ids, *args, **kwargs)


def trained(policy, tmp_path, cls=Recording, reward=mixed_reward, extra=None, config_cls=MinerGRPOConfig, **overrides):
    args = config(tmp_path, cls=config_cls, **overrides)
    trainer = cls(policy, reward, args, problems(), **(extra or {}))
    trainer.train()
    return trainer


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def assert_same_run(found, expected):
    for name, weight in weights(expected).items():
        assert torch.equal(weights(found)[name], weight), name
    assert trl_metrics(found) == trl_metrics(expected)


def trl_metrics(trainer):
    return [{k: v for k, v in log.items() if not k.startswith(OWN_METRICS)} for log in metrics_of(trainer)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def call_on_ranks(size, function, *arguments, seconds=300):
    """Call a function in `size` processes at once that find each other as those of torchrun do.

    They are forked from this process, which has imported TRL; a fresh one would need eight seconds for that.

    Args:
        size: Number of processes.
        function: Called in each; an error of one is raised here.
        arguments: Its arguments.
        seconds: Limit for them all.
    """
    group = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = torch.multiprocessing.start_processes(
        _call_on_rank, (group, function, arguments), nprocs=size, join=False, start_method="fork"
    )
    end = time.monotonic() + seconds
    try:
        while not ranks.join(timeout=1):
            assert time.monotonic() < end, f"{function.__name__} on {size} processes took more than {seconds} s"
    finally:
        for process in ranks.processes:
            process.kill()


def _call_on_rank(rank, group, function, arguments):
    AcceleratorState._reset_state(reset_partial_state=True)  # of the trainings that the parent has done
    GradientState._reset_state()
    environment = {**group, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    function(*arguments)


@contextlib.contextmanager
def serving(command, folder, env=None):
    """A real server in a process of its own, once it answers /health: its address and its process.

    `command` gets the port as its last argument, after `--port`; what the server prints goes to a log in `folder`.
    """
    port = free_port()
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(
            [*map(str, command), "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log, env=env
        )
    url = f"http://127.0.0.1:{port}"
    parts = []
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(url + "/health")
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()[-3000:]
                time.sleep(0.5)
        parts = psutil.Process(server.pid).children(recursive=True)  # known while they are: a test may kill the server
        yield url, server
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            parts += psutil.Process(server.pid).children(recursive=True)
        for process in (server, *parts):  # vLLM's engine outlives a server that is killed
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()


def wait_until(condition, process, seconds=180):
    """What the condition gives when it is true; the process must live until then."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)
    return found


def rollouts_by_place(prompts, trainer):
    """A `rollout_func` whose samples depend on the model, the step, and the place in the global batch: the same on one
    process and on two."""
    from trl_miner.evaluation.seeded_sampling import sample_tokens

    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    first = trainer.accelerator.process_index * len(prompts)
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    completion_ids = [None] * len(prompts)
    for row, ids, _ in sample_tokens(
        model,
        tokenizer,
        prompt_ids,
        [trainer.state.global_step * 2**20 + first + row for row in range(len(prompts))],
        max_new_tokens=trainer.max_completion_length,
        temperature=trainer.temperature,
    ):
        completion_ids[row] = ids
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}


def leave():
    """End a worker of several processes at once. A thread of gloo's may still have a tensor of Python's to free, and
    where it does so while Python ends, the process aborts (torch 2.13, seen under gdb: `AsyncAllgatherWork`)."""
    PartialState().destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
