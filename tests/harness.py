"""Shared by test files and worker scripts: a policy, problems, rewards, settings, trainings, ranks
and servers."""

import contextlib
import functools
import http.server
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from pathlib import Path

import accelerate.utils.imports
import psutil
import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from transformers import TrainerCallback

from trl_miner.data import arithmetic
from trl_miner.launching.server import free_port
from trl_miner.trainer.config import RunConfig
from trl_miner.training import RunTrainer

# At every step accelerate asks whether PEFT is installed, and reads its metadata anew: a tenth of a
# short training.
accelerate.utils.imports._is_package_available = functools.cache(
    accelerate.utils.imports._is_package_available
)

GOLDEN = Path(__file__).parent / "golden"


def golden_cases(name):
    """Return the cases of `golden/NAME.json` as parameters of a test."""
    cases = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases]


def assert_matches_golden(found, case, key="advantages"):
    """Compare to six digits of the largest value; rows that are 0 must be exactly 0."""
    expected = torch.tensor(case[key])
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert (found[(expected == 0).all(dim=1)] == 0).all()


def build_policy(folder: Path) -> str:
    """Save a 2-layer, hidden-32 Qwen3 with random weights and the world's tokenizer; return the
    folder."""
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


@functools.cache
def problems(count: int = 48) -> Dataset:
    """Return problems whose kinds under `mixed_reward` alternate: every batch of three prompts has
    one of each."""
    rows = list(arithmetic.load_dataset("train", size=4 * count))
    by_kind = [[row for row in rows if crc(row["prompt"]) % 3 == kind] for kind in range(3)]
    turns = [row for turn in zip(*by_kind, strict=False) for row in turn]
    return Dataset.from_list(turns[:count])


def mixed_reward(prompts, completions, **kwargs):
    """Reward a third of the prompts always, a third never, and a third by the parity of the
    completion's checksum."""
    return by_thirds(prompts, [float(crc(completion) % 2) for completion in completions])


def by_thirds(prompts, coins):
    """Return 1 for a third of the prompts, 0 for another third, and the given coins for the
    rest."""
    kinds = [crc(prompt) % 3 for prompt in prompts]
    return [[1.0, 0.0, coin][kind] for kind, coin in zip(kinds, coins, strict=True)]


def never_all_right(prompts, completions, **kwargs):
    """Return the rewards of `mixed_reward`, with 0.5 for the all-right third: homogeneous, but not
    correct."""
    return [
        0.5 if crc(p) % 3 == 0 else r
        for p, r in zip(prompts, mixed_reward(prompts, completions), strict=True)
    ]


def config(output_dir, cls=RunConfig, **overrides):
    """Return settings for five steps of 12 rollouts, 3 prompts of 4, on the CPU."""
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
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
    )
    if issubclass(cls, RunConfig):
        settings["overwrite_output_dir"] = True  # a test may train several times into its folder
    return cls(**{**settings, **overrides})


def write_recipe(path, **settings):
    """Write a recipe of two small steps in the embedded world on a CPU, with changes, and return
    its path."""
    small = dict(
        dataset_name="trl_miner/arithmetic", use_cpu=True, bf16=False, gradient_checkpointing=False
    )
    small |= dict(
        per_device_train_batch_size=8, num_generations=4, max_completion_length=8, max_steps=2
    )
    small |= dict(save_strategy="no", logging_steps=1, disable_tqdm=True, report_to="none")
    path.write_text(json.dumps(small | settings, default=str))  # JSON is YAML
    return str(path)


# Turns off what changes a training step of TRL, if only the order of its sums.
AS_TRL = dict(compute_less=False)
# The methods of a study, beside its recipes.
OF_FORKS = "trl_miner.data.forks_methods."


def metrics_of(trainer, without=("time", "seconds", "runtime", "per_second")):
    """Return the logs of the training, without times and held-out scores."""
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
    "dose/",
    "selection/",
)


class Recording(RunTrainer):
    """Record the batches that TRL's loss gets, and the number of rows of each forward without
    gradients."""

    def __init__(self, *args, **kwargs):
        self.batches, self.forwarded = [], []
        super().__init__(*args, **kwargs)

    def _may_share(self, model):
        return False  # rollouts of TRL's `generate`, so that runs compare with TRL's trainer

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.batches.append({**batch, "is_training": self.model.training})
        return batch

    @property
    def advantages(self):
        return [batch["advantages"] for batch in self.batches]

    @property
    def token_advantages(self):
        """Yield the advantages of each batch by token, (B, T); 0 where a token does not count in
        the loss."""
        for batch in self.batches:
            yield batch["advantages"] * batch["completion_mask"] * batch.get("tool_mask", 1)

    @property
    def has_credit(self):
        """Whether MINER has given a rollout an advantage."""
        return any(
            log.get("miner/tau_pos", 0) > 0 and log["miner/scale"] > 0
            for log in self.state.log_history
        )

    def trl_forward(self, model, input_ids, *args, **kwargs):
        if not torch.is_grad_enabled():
            self.forwarded.append(len(input_ids))
        return super().trl_forward(model, input_ids, *args, **kwargs)


class At(TrainerCallback):
    """Do something when a step has ended, before it is saved."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action(control)


def stop_training(control):
    control.should_training_stop = True


def trained(
    policy,
    tmp_path,
    cls=Recording,
    reward=mixed_reward,
    extra=None,
    config_cls=RunConfig,
    num_problems=48,
    **overrides,
):
    """Train on `problems()` and return the trainer; `extra` goes to the trainer, `overrides` to its
    config."""
    args = config(tmp_path, cls=config_cls, **overrides)
    trainer = cls(policy, reward, args, problems(num_problems), **(extra or {}))
    trainer.train()
    return trainer


def weights(trainer):
    """Return copies of the model's parameters by name."""
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def assert_same_run(found, expected):
    """Compare all weights, and all metrics that TRL logs too, bit for bit."""
    for name, weight in weights(expected).items():
        assert torch.equal(weights(found)[name], weight), name
    assert trl_metrics(found) == trl_metrics(expected)


def trl_metrics(trainer):
    """Return the logs without the metrics that this package adds."""
    return [
        {k: v for k, v in log.items() if not k.startswith(OWN_METRICS)}
        for log in metrics_of(trainer)
    ]


def call_on_ranks(size, function, *arguments, seconds=300):
    """Call a function in several processes at once, with the environment that torchrun would give
    them.

    They are forked from this process, which has imported TRL. A fresh process would need eight
    seconds for that.

    Args:
        size: Number of processes.
        function: Called in each. The error of one is raised here.
        arguments: Arguments of the function.
        seconds: Time limit.
    """
    ranks = start_on_ranks(size, function, *arguments)
    end = time.monotonic() + seconds
    try:
        while not ranks.join(timeout=1):
            assert time.monotonic() < end, (
                f"{function.__name__} on {size} processes took more than {seconds} s"
            )
    finally:
        for process in ranks.processes:
            process.kill()


def start_on_ranks(size, function, *arguments):
    """Start what `call_on_ranks` waits for, and return the processes as torch's
    `ProcessContext`."""
    group = {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    return torch.multiprocessing.start_processes(
        _call_on_rank, (group, function, arguments), nprocs=size, join=False, start_method="fork"
    )


def in_a_fork(function, *arguments, seconds=300):
    """Call a function in a fork of this process, which has imported TRL, and return how that ended
    and what it said.

    Args:
        function: Called in the fork. An error ends the fork with exit code 1 and a traceback.
        arguments: Arguments of the function.
        seconds: Time limit.

    Returns:
        The exit code, negative for a signal, and the text of standard error.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = multiprocessing.get_context("fork").Process(
            target=_call_in_fork, args=(said, function, arguments)
        )
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        said.seek(0)
        return process.exitcode, said.read()


def _call_in_fork(said, function, arguments):
    os.dup2(said.fileno(), 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # pytest's own would keep it
    function(*arguments)


def _call_on_rank(rank, group, function, arguments):
    # of the trainings that the parent has done
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    environment = {**group, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    function(*arguments)


@contextlib.contextmanager
def answering(respond):
    """Run a server here and yield its address. `respond` gets the path, what was sent, or None, and
    the headers, and returns a status and a text."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self, sent=None):  # noqa: N802
            status, text, *more = respond(self.path, sent, self.headers)
            if not status:  # closes the connection
                return
            self.send_response(status)
            self.send_header("Location", "/elsewhere")  # for a status that redirects
            self.send_header("Content-Type", "text/html" if text[:1] == "<" else "application/json")
            self.send_header("Content-Length", str(len(text)))
            for name, value in (more[0] if more else {}).items():
                self.send_header(name, value)
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


@contextlib.contextmanager
def serving(command, folder, env=None):
    """Start a server, wait until it answers /health, and yield its address and its process.

    `--host` and `--port` are added to the command. The server's output goes to `folder/log`.
    """
    port = free_port()
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(
            [*map(str, command), "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=log,
            env=env,
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
        # known while they are: a test may kill the server
        parts = psutil.Process(server.pid).children(recursive=True)
        yield url, server
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            parts += psutil.Process(server.pid).children(recursive=True)
        for process in (server, *parts):  # vLLM's engine outlives a server that is killed
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()


def wait_until(condition, process=None, seconds=180):
    """Wait until the condition holds and return its value. Fail if the process ends before."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    return found


def gone(pids):
    """Return whether the processes have ended, whoever still has to be told."""

    def ended(pid):
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(ended, pids))


def rollouts_by_place(prompts, trainer):
    """Sample as a `rollout_func` by the model, the step, and the place in the global batch.

    The samples are the same on one process and on two.
    """
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


@torch.no_grad()
def logps_of(model, rollouts, temperature=1.0):
    """Return the log-probs of a `rollout_func`'s completions under a model, row by row, as a
    sampler has them."""
    rows = []
    for prompt, completion in zip(rollouts["prompt_ids"], rollouts["completion_ids"], strict=True):
        logits = (
            model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
        )
        rows.append(
            logits.log_softmax(dim=1).gather(1, torch.tensor([completion]).T)[:, 0].tolist()
        )
    return rows


def leave():
    """End this rank at once, without the cleanup of a Python that ends.

    A thread of gloo may still have to free a tensor of Python. If it does so during that cleanup,
    the process aborts (torch 2.13, seen under gdb: `AsyncAllgatherWork`).
    """
    PartialState().destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
