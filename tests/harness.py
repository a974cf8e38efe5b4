"""What test files share: a tiny policy, problems with rewards of every kind, settings, one
training, processes, and a small HTTP server."""

import contextlib
import functools
import http.server
import json
import os
import random
import socket
import sys
import threading
import time
import zlib
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from transformers import PrinterCallback

GOLDEN = Path(__file__).parent / "golden"
AS_TRL = {"compute_less": False}  # turns off what changes the order of sums in a training step
# The environment as `accelerate launch` makes it from recipes/accelerate/fsdp2.yaml.
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}


def golden_cases(name):
    """Return the cases of `golden/NAME.json`, as parameters of a test."""
    import pytest

    cases = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases]


def assert_matches_golden(found, case, key="advantages"):
    """Compare to six digits of the largest value; rows that are 0 must be exactly 0."""
    expected = torch.tensor(case[key])
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert (found[(expected == 0).all(dim=1)] == 0).all()


def build_tokenizer():
    """Build a tokenizer with a token for each number up to 99 and for each other character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<unk>"]
    tokens = [*special, *map(str, range(100)), "\n", *map(chr, range(32, 127))]
    ids = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"[1-9][0-9]|[\s\S]"), behavior="isolated")
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template="{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}",
    )


def build_policy(folder):
    """Save a 2-layer, hidden-32 Qwen3 with random weights and a tokenizer; return the folder."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer()
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
    model = Qwen3ForCausalLM(config)
    # a tenth of the tokens ends a completion: lengths differ
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(40, 60)]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def crc(text):
    return zlib.crc32(str(text).encode())


@functools.cache
def problems(count=48):
    """Return problems (prompt, solution, level) whose kinds under `mixed_reward` alternate: of each
    three prompts one is all right, one all wrong, and one mixed."""
    rng, kinds = random.Random(0), [{}, {}, {}]
    while min(map(len, kinds)) < -(-count // 3):
        numbers = [rng.randint(1, 30) for _ in range(rng.randint(2, 4))]
        prompt = f"Compute {' + '.join(map(str, numbers))}.\n"
        row = {"prompt": prompt, "solution": str(sum(numbers)), "level": len(numbers)}
        kinds[crc(prompt) % 3][prompt] = row
    turns = zip(*(kind.values() for kind in kinds), strict=False)
    return Dataset.from_list([row for turn in turns for row in turn][:count])


def by_thirds(prompts, coins):
    """Return 1 for a third of the prompts, 0 for another third, and the given coins for the
    rest."""
    kinds = [crc(prompt) % 3 for prompt in prompts]
    return [[1.0, 0.0, coin][kind] for kind, coin in zip(kinds, coins, strict=True)]


def mixed_reward(prompts, completions, **kwargs):
    """Reward a third of the prompts always, a third never, and a third by the parity of the
    completion's checksum."""
    return by_thirds(prompts, [float(crc(completion) % 2) for completion in completions])


def fixed_rollouts(prompts, trainer, *, shortest=1, spread=9, **extra):
    """Return completions as a `rollout_func`, which depend on the prompt, the optimizer step and
    the place in the global batch alone: the same on any number of processes."""
    first = trainer.accelerator.process_index * len(prompts) + 100 * trainer.state.global_step
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    seeds = [crc(f"{prompt}{first + row}") for row, prompt in enumerate(prompts)]
    completion_ids = [
        [
            3 + crc(f"{seed} {place}") % (len(tokenizer) - 3)
            for place in range(shortest + seed % spread)
        ]
        for seed in seeds
    ]
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, **extra}


def settings(output_dir, **overrides):
    """Return settings of five steps of 12 completions, 3 prompts of 4, on a CPU."""
    small = dict(
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
    return {**small, **overrides}


def config(output_dir, cls=None, **overrides):
    """Return `settings` as a `MinerGRPOConfig`, or as another class of settings."""
    if cls is None:
        from trl_miner.trainer.config import MinerGRPOConfig as cls
    return cls(**settings(output_dir, **overrides))


def write_recipe(path, **overrides):
    """Write a recipe of two small steps in the embedded world on a CPU; return its path."""
    small = settings(path.parent / "run", max_steps=2, per_device_train_batch_size=8)
    del small["output_dir"], small["shuffle_dataset"], small["learning_rate"]
    small |= {"dataset_name": "trl_miner/arithmetic", "max_completion_length": 8}
    path.write_text(json.dumps(small | overrides, default=str))  # JSON is YAML
    return str(path)


def build_trainer(policy, output_dir, *, reward=mixed_reward, cls=None, config_cls=None,
                  data=None, more=None, **overrides):  # fmt: skip
    """Build a trainer on `problems()`; `more` goes to it, `overrides` to its settings.

    Its list `batches` gets each scored batch of the training, where the class has observers.
    """
    if cls is None:
        from trl_miner.trainer.trainer import MinerGRPOTrainer as cls
    args = config(output_dir, config_cls, **overrides)
    trainer = cls(policy, reward, args, problems() if data is None else data, **(more or {}))
    trainer.remove_callback(PrinterCallback)
    trainer.batches = []
    if hasattr(trainer, "observers"):
        trainer.observers.append(trainer.batches.append)
    return trainer


def train(policy, output_dir, **kwargs):
    """Build a trainer as `build_trainer` does, train, and return it."""
    trainer = build_trainer(policy, output_dir, **kwargs)
    trainer.train()
    return trainer


def weights(trainer):
    """Return copies of the model's parameters by name."""
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def largest_difference(found, expected):
    """Return the largest difference of two dictionaries of weights, and refuse NaN."""
    found, expected = ({n: w.double() for n, w in each.items()} for each in (found, expected))
    assert found.keys() == expected.keys()
    assert not any(weight.isnan().any() for weight in found.values())
    return max((found[name] - expected[name]).abs().max().item() for name in expected)


def logs(trainer, without=("time", "seconds", "runtime", "per_second")):
    """Return the logged metrics of the training, without times."""
    return [
        {key: value for key, value in log.items() if not any(word in key for word in without)}
        for log in trainer.state.log_history
    ]


def free_port():
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


def call_on_ranks(size, function, *arguments, seconds=300):
    """Call `function(*arguments)` in `size` forks of this process, with the environment that
    torchrun would give them. The error of one is raised here."""
    group = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = torch.multiprocessing.start_processes(
        _call_on_rank, (group, function, arguments), nprocs=size, join=False, start_method="fork"
    )
    end = time.monotonic() + seconds
    try:
        while not ranks.join(timeout=1):
            assert time.monotonic() < end, f"{function.__name__} took more than {seconds} s"
    finally:
        for process in ranks.processes:
            process.kill()


def _call_on_rank(rank, group, function, arguments):
    AcceleratorState._reset_state(reset_partial_state=True)  # of trainings that the parent has done
    GradientState._reset_state()
    environment = {**group, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    function(*arguments)


def leave():
    """End this rank without Python's cleanup, in which a thread of gloo may abort the process."""
    PartialState().destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def answering(respond):
    """Run a server here and yield its address. `respond` gets the path, what was sent, or None, and
    the headers, and returns a status and a text."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self, sent=None):  # noqa: N802
            status, text = respond(self.path, sent, self.headers)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(text.encode())

        def do_POST(self):  # noqa: N802
            self.do_GET(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
