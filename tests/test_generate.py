"""Sampling into folders: what a sample depends on, what a kill costs, how runs go on; with real
models and servers."""

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import random
import shutil
import time
from pathlib import Path

import harness
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
)

from trl_miner import cli
from trl_miner.commands import evaluate as evaluate_command
from trl_miner.data import arithmetic
from trl_miner.data.benchmarks import BENCHMARKS, load
from trl_miner.evaluation import evaluate as run
from trl_miner.evaluation import seeded_sampling
from trl_miner.evaluation.backends import ModelOptions, Request, ServerBackend
from trl_miner.evaluation.generate import ProblemSet, Sampling, sample_seed
from trl_miner.evaluation.score import score_folder
from trl_miner.evaluation.seeded_sampling import exponential_noise, sample_all, sample_tokens
from trl_miner.runs.eval_folder import SampleWriter, read_samples
from trl_miner.runs.locks import lock_folder


def sample(problem, number, text="x"):
    return {"problem": problem, "sample": number, "text": text, "tokens": 1, "truncated": False}


@pytest.fixture(scope="module")
def loaded(base_model_folder):
    return AutoModelForCausalLM.from_pretrained(base_model_folder), AutoTokenizer.from_pretrained(
        base_model_folder
    )


PROMPTS = [problem["prompt"] for problem in arithmetic.load_dataset("test", 12)]


def tokens_of(loaded, prompts, seeds, **kwargs):
    model, tokenizer = loaded
    kwargs = {"max_new_tokens": 30, "temperature": 1.0, **kwargs}
    found = sample_tokens(
        model, tokenizer, [tokenizer(p)["input_ids"] for p in prompts], seeds, **kwargs
    )
    return [(tokens, cut) for _, tokens, cut in sorted(found)]


# of tokens 0 and 49,999 in rows 0 to 2
NOISE = [0.98966809, 0.22777757, 0.80811851, 1.4632752, 0.49255837, 1.2489154]


def test_noise_is_a_hash_of_seed_position_and_token():
    """splitmix64, computed once with Python's integers. Rows of a large vocabulary are made a few
    at a time."""
    seeds, positions, vocabulary = (
        torch.tensor([5, -7, 2**62, 0, 5]),
        torch.tensor([0, 3, 1, 9, 0]),
        50_000,
    )
    noise = exponential_noise(seeds, positions, vocabulary)
    assert noise[:3, [0, 49_999]].flatten().tolist() == pytest.approx(NOISE, rel=1e-6)
    alone = [
        exponential_noise(seeds[row : row + 1], positions[row : row + 1], vocabulary)[0]
        for row in range(5)
    ]
    assert torch.equal(noise, torch.stack(alone)) and torch.equal(noise[0], noise[4])


def test_a_sample_depends_on_its_seed_alone(loaded):
    seeds = [sample_seed(0, str(i), 0) for i in range(12)]
    together = tokens_of(loaded, PROMPTS, seeds)
    assert len({tuple(tokens) for tokens, _ in together}) > 6
    assert tokens_of(loaded, PROMPTS, seeds, batch_size=5) == together
    assert tokens_of(loaded, PROMPTS[::-1], seeds[::-1], batch_size=1) == together[::-1]
    # nor on the caller's random state, which stays, as does the mode of the model
    loaded[0].train()
    torch.rand(3)
    before = torch.get_rng_state()
    assert tokens_of(loaded, PROMPTS, seeds) == together
    assert torch.equal(torch.get_rng_state(), before) and loaded[0].training
    assert tokens_of(loaded, PROMPTS, [seed + 1 for seed in seeds]) != together
    # of unlike lengths, and sampled by length
    ids = [loaded[1](prompt)["input_ids"] for prompt in PROMPTS]
    assert sample_all(*loaded, ids, seeds, max_new_tokens=30) == [tokens for tokens, _ in together]


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text"])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8), (0, 1.0)])
def test_samples_that_share_forwards_are_those_of_generate(
    loaded, monkeypatch, kind, temperature, top_p
):
    """Bit for bit: prompts of unlike lengths, one of them six times, some samples cut off; Gemma 3
    sees no farther than a window of 8 tokens."""
    model, tokenizer = loaded
    if kind == "gemma3_text":
        size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, head_dim=16)
        size |= dict(num_attention_heads=2, num_key_value_heads=1, sliding_window=8)
        config = AutoConfig.for_model(
            kind, vocab_size=len(tokenizer), **size,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )  # fmt: skip
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
    prompts = [
        tokenizer(text)["input_ids"] for text in [*PROMPTS[:2], *PROMPTS[2:3] * 6, PROMPTS[3][:4]]
    ]
    settings = dict(max_new_tokens=12, temperature=temperature, top_p=top_p)
    assert seeded_sampling.can_share(model)
    shared = seeded_sampling.sample_all(model, tokenizer, prompts, range(9), **settings)
    monkeypatch.setattr(seeded_sampling, "can_share", lambda model: False)
    assert shared == seeded_sampling.sample_all(model, tokenizer, prompts, range(9), **settings)
    assert temperature == 0 or len({*map(tuple, shared)}) > 3


def test_temperature_0_is_greedy_and_a_small_nucleus_too(loaded):
    """Whatever the model's own settings say."""
    model, tokenizer = loaded
    known, plain = model.generation_config, tokens_of(loaded, PROMPTS, range(12))
    own = dict(
        do_sample=True,
        top_k=1,
        repetition_penalty=5.0,
        temperature=0.1,
        suppress_tokens=[*range(5, 30)],
    )
    model.generation_config = GenerationConfig(
        **own, no_repeat_ngram_size=2, eos_token_id=known.eos_token_id
    )
    try:
        greedy = tokens_of(loaded, PROMPTS, range(12), temperature=0.0)
        assert tokens_of(loaded, PROMPTS, range(12), top_p=1e-6) == greedy
        assert tokens_of(loaded, PROMPTS, range(12)) == plain != greedy
        assert own.items() <= vars(model.generation_config).items()
    finally:
        model.generation_config = known
    with torch.no_grad():
        ids = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
        assert greedy[0][0][0] == model(ids).logits[0, -1].argmax()


def test_no_sample_leaves_the_context(loaded):
    """GPT-2 has no positions beyond it, also for a row that is sampled together with shorter
    prompts."""
    tokenizer, context = loaded[1], 40
    sizes = dict(
        n_positions=context, n_embd=16, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes))
    room = [context - len(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    assert len({*room}) > 1
    for (tokens, is_cut), most in zip(
        tokens_of((model, tokenizer), PROMPTS, room, max_new_tokens=room), room, strict=True
    ):
        assert len(tokens) == most if is_cut else len(tokens) <= most


def test_pass_1_agrees_with_transformers_own_sampling(loaded):
    """The shares of first tokens over 3,000 samples of one prompt, against softmax(logits / T),
    nucleus and all."""
    model, tokenizer = loaded
    with torch.no_grad():
        p = (
            model(tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]).logits[0, -1] / 0.7
        ).softmax(0)
    kept = p.sort(descending=True)
    inside = kept.indices[: int((kept.values.cumsum(0) < 0.95).sum()) + 1]
    expected = torch.zeros_like(p).index_put((inside,), p[inside] / p[inside].sum())
    found = tokens_of(
        loaded, PROMPTS[:1] * 3000, range(3000), max_new_tokens=1, temperature=0.7, top_p=0.95
    )
    shares = (
        torch.bincount(torch.tensor([tokens[0] for tokens, _ in found]), minlength=len(p)) / 3000
    )
    assert (shares - expected).abs().max() < 5 * (0.25 / 3000) ** 0.5
    assert set(shares.nonzero().flatten().tolist()) <= set(inside.tolist())


def evaluate(model, output, *options, number=30):
    """`trl-miner eval` of the first problems in this process; its exit status."""
    arguments = [
        "eval",
        "--model",
        str(model),
        "--benchmarks",
        f"arithmetic:{number}",
        "--output",
        str(output),
    ]
    return cli.main(
        [
            *arguments,
            *([] if "--base-url" in options else ["--backend", "transformers"]),
            *map(str, options),
        ]
    )


def lines(output, benchmark="arithmetic"):
    return [
        json.loads(line)
        for line in (Path(output) / benchmark / "samples.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def whole(base_model_folder, tmp_path_factory):
    """An uninterrupted run: 30 problems, 3 samples."""
    output = tmp_path_factory.mktemp("whole")
    assert evaluate(base_model_folder, output, "--samples", 3, "--max-tokens", 20) == 0
    return output


def test_a_sample_is_one_line_in_order(whole):
    samples = lines(whole)
    assert [(s["problem"], s["sample"]) for s in samples] == [
        (f"arithmetic-{i}", n) for i in range(30) for n in range(3)
    ]
    assert (
        samples[4]["seed"] == sample_seed(0, "arithmetic-1", 1)
        and len({s["seed"] for s in samples}) == 90
    )
    assert all(s["tokens"] <= 20 for s in samples) and 0 < sum(s["truncated"] for s in samples) < 90
    settings = json.loads((whole / "settings.json").read_text())
    assert (settings["temperature"], settings["top_p"], settings["style"]) == (0.7, 0.95, "plain")
    assert len(settings["fingerprint"]["model"]) == 64 and settings["versions"]["transformers"]


def size(path):
    return path.stat().st_size if path.is_file() else 0


@pytest.mark.slow
def test_killed_again_and_again_it_ends_as_if_never_killed(base_model_folder, whole, tmp_path):
    """SIGKILL eight times at random moments while it samples, each time from when it goes on
    writing."""
    output = tmp_path / "out"
    path = output / "arithmetic" / "samples.jsonl"
    rng, held = random.Random(0), []
    for _ in range(8):
        before, end = size(path), time.monotonic() + 60
        options = ("--samples", 3, "--max-tokens", 20, "--batch-size", 1)
        child = multiprocessing.get_context("fork").Process(
            target=evaluate, args=(base_model_folder, output, *options)
        )
        child.start()
        while size(path) <= before and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.08)
        child.kill()
        child.join()
        held.append(len(read_samples(path)[0]))
    # nothing that was written is ever lost, and the kills came in the middle
    assert held == sorted(held) and 0 < held[0] < 90 and len(set(held)) > 4, held
    assert evaluate(base_model_folder, output, "--samples", 3, "--max-tokens", 20) == 0
    assert path.read_bytes() == (whole / "arithmetic" / "samples.jsonl").read_bytes()


def test_a_finished_run_draws_nothing(base_model_folder, whole, monkeypatch):
    """Nor does it lose any when asked for fewer; another version of a package is no other kind of
    sample."""
    monkeypatch.setattr(run, "_load_backend", None)  # would be called
    settings = json.loads((whole / "settings.json").read_text())
    (whole / "settings.json").write_text(json.dumps({**settings, "versions": {"torch": "1.0"}}))
    before = (whole / "arithmetic" / "samples.jsonl").read_bytes()
    for samples in (3, 2):
        assert evaluate(base_model_folder, whole, "--samples", samples, "--max-tokens", 20) == 0
        assert (whole / "arithmetic" / "samples.jsonl").read_bytes() == before
        assert (
            json.loads((whole / "scores.json").read_text())["benchmarks"]["arithmetic"]["samples"]
            == 3
        )


def test_more_samples_equal_a_run_that_had_them_from_the_start(base_model_folder, tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    for output, samples in ((few, 2), (few, 4), (many, 4)):
        assert (
            evaluate(base_model_folder, output, "--samples", samples, "--max-tokens", 16, number=10)
            == 0
        )
    assert lines(few) == lines(many)
    assert json.loads((few / "arithmetic" / "benchmark.json").read_text())["samples"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", 1], "holds samples of one kind: .* has temperature 0.7, got 1.0"),
        (["--seed", 7], "has seed 0, got 7"),
        (["--max-tokens", 21], "has max_tokens 20, got 21"),
        (["--max-model-len", 99], "has max_model_len None, got 99"),
        (["--benchmarks", "arithmetic:29"], "must hold samples of one set of problems"),
    ],
)
def test_a_folder_is_not_mixed(base_model_folder, whole, options, message, capsys):
    import re

    arguments = ["--samples", 3, "--max-tokens", 20, *options]
    before = (whole / "arithmetic" / "samples.jsonl").read_bytes()
    assert evaluate(base_model_folder, whole, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert (whole / "arithmetic" / "samples.jsonl").read_bytes() == before


def test_a_model_that_changes_while_it_is_loaded_is_refused(
    tmp_path, base_model_folder, capsys, monkeypatch
):
    copy = tmp_path / "model"
    shutil.copytree(base_model_folder, copy)
    load = run._load_tokenizer

    def swap(source):  # as a training does that saves its next step
        tokenizer = load(source)
        weights = AutoModelForCausalLM.from_pretrained(copy)
        with torch.no_grad():
            next(weights.parameters()).add_(1e-3)
        weights.save_pretrained(copy)
        return tokenizer

    monkeypatch.setattr(run, "_load_tokenizer", swap)
    assert evaluate(copy, tmp_path / "out", "--samples", 1, "--max-tokens", 5, number=2) == 2
    assert f"the files of {copy} have changed meanwhile" in capsys.readouterr().err
    assert (tmp_path / "out" / "arithmetic" / "samples.jsonl").read_text() == ""


def test_another_chat_template_makes_another_model(tmp_path, base_model_folder):
    copy = shutil.copytree(base_model_folder, tmp_path / "model")
    before = run.identity(str(copy), None)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert run.identity(str(copy), None) != before


def test_two_at_once_are_refused(base_model_folder, whole, capsys, monkeypatch):
    monkeypatch.setattr("trl_miner.runs.locks.BEAT_SECONDS", 0.1)
    with lock_folder(whole):
        assert evaluate(base_model_folder, whole, "--samples", 3, "--max-tokens", 20) == 2
    assert "Only one process may write into a folder" in capsys.readouterr().err


def test_a_full_disk_loses_nothing(tmp_path):
    """/dev/full takes no byte: the error comes through, and what was there stays."""
    writer = SampleWriter(tmp_path / "samples.jsonl")
    writer.append(sample("a", 0))
    writer._file = open("/dev/full", "ab", buffering=0)
    with pytest.raises(OSError, match="No space left"):
        writer.append(sample("a", 1))
    assert list(read_samples(tmp_path / "samples.jsonl")[0]) == [("a", 0)]


@settings(max_examples=60, deadline=None)
@example(len(json.dumps(sample("p", 0, "eins"))), b"")  # whole but for its line end
@given(st.integers(0, 400), st.binary(max_size=8))
def test_a_file_cut_or_soiled_anywhere_is_repaired_and_reported(place, noise):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.jsonl"
        texts = ["eins", "zwei \n drei", "∑ ☃", ""]
        whole = b"".join(
            json.dumps(sample("p", n, text)).encode() + b"\n" for n, text in enumerate(texts)
        )
        path.write_bytes(whole[:place] + noise)
        writer = SampleWriter(path)
        for n, text in enumerate(texts):
            if ("p", n) not in writer:
                writer.append(sample("p", n, text))
        writer.finish(["p"])
        found, complaints = read_samples(path)
        assert complaints == [] and [found["p", n]["text"] for n in range(4)] == texts
        assert path.read_bytes().count(b"\n") == 4


def test_every_benchmark_of_the_table_goes_from_file_to_scores(base_model_folder, tmp_path):
    """Fixtures in the real formats; the model knows no such text, and half of the prompts are too
    long for it."""
    files = Path(__file__).parent / "benchmarks"
    tasks = []
    for benchmark in BENCHMARKS.values():
        path = (
            next(iter(files.glob(f"{benchmark.name}.*")), files / benchmark.name)
            if benchmark.hub
            else None
        )
        problems = load(dataclasses.replace(benchmark, problems=None), path)[0][:3]
        tasks.append(ProblemSet(benchmark, problems, 2))
    request = ModelOptions(str(base_model_folder), backend="transformers")
    count = run.evaluate(tmp_path, request, tasks, Sampling(max_tokens=3))
    assert count == sum(2 * len(task.problems) for task in tasks) and len(tasks) == 16
    scores = score_folder(tmp_path)
    assert sorted(scores["benchmarks"]) == sorted(BENCHMARKS)
    table = (tmp_path / "scores.md").read_text()
    assert all(benchmark.title in table for benchmark in BENCHMARKS.values())


def test_the_command_line_repeats_the_defaults_and_the_table_rightly(capsys):
    """It states them itself, so that --help needs no torch."""
    with pytest.raises(SystemExit):
        cli.main(["eval", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in BENCHMARKS)
    parser = argparse.ArgumentParser()
    evaluate_command.add(parser.add_subparsers())
    args = parser.parse_args(["eval", "--model", "x"])
    assert Sampling(args.temperature, args.top_p, args.max_tokens, args.seed) == Sampling()
    assert run.options_of(args) == ModelOptions("x")


def test_an_own_file_is_a_benchmark(tmp_path, base_model_folder, capsys):
    rows = [
        {"question": "Compute 1 + 1.\n", "gold": 2},
        {"question": "Compute 2 + 1.\n", "gold": r"\frac{6}{2}"},
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--benchmarks", f"own={tmp_path / 'own.jsonl'}", "--samples", 2, "--max-tokens", 20]
    assert evaluate(base_model_folder, tmp_path / "out", *options) == 0
    assert [s["problem"] for s in lines(tmp_path / "out", "own")] == [
        "own-0",
        "own-0",
        "own-1",
        "own-1",
    ]
    said = capsys.readouterr()
    assert (
        "\nown: Pass@1" in said.out
        and "own: questions are in the column question, answers in gold." in said.err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--benchmarks"], "No benchmark is named. Add --benchmarks"),
        (["--benchmarks", "aime"], "No benchmark named 'aime'. Did you mean 'aime25'"),
        (
            ["--benchmarks", "arithmetic", "--samples", "0"],
            "--samples: 0 is below 1. Give at least 1.",
        ),
        (["--benchmarks", "arithmetic", "--temperature", "-1"], "temperature must be at least 0"),
        (
            ["--benchmarks", "arithmetic", "--backend", "vllm", "--base-url", "http://x"],
            "exclude each other. Leave one out.",
        ),
        (
            ["--benchmarks", "arithmetic", "--chat-template-kwargs", "[1]"],
            "[1] is not a JSON object.",
        ),
        (["--benchmarks", "arithmetic", "--chat-template-kwargs", '{"a": 1}'], "got {'a': 1}, and"),
        (["--benchmarks", "arithmetic", "--style", "chat"], "chat_template is not set"),
        (
            ["--benchmarks", "arithmetic", "--model", "/not/there"],
            "Folder not found: /not/there.",
        ),
        (
            ["--benchmarks", "arithmetic", "--model", str(Path(__file__).parent)],
            "could not be loaded: ",
        ),
        (["--benchmarks", "aime24"], "--benchmarks aime24=PATH"),  # no network
        (["--benchmarks", "aime24=/not/there.jsonl"], "/not/there.jsonl"),
        (["--benchmarks", "own=/not/there.jsonl"], "/not/there.jsonl"),
    ],
)
def test_bad_input_is_named(tmp_path, base_model_folder, options, message, capsys, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    arguments = [
        "eval",
        "--model",
        str(base_model_folder),
        "--output",
        str(tmp_path / "out"),
        "--max-tokens",
        "5",
    ]
    assert cli.main([*arguments, *options]) == 2
    assert message in capsys.readouterr().err


def test_an_adapter_is_loaded_on_the_revision_of_its_base(tmp_path):
    about = {"base_model_name_or_path": "org/base", "revision": "abc"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(about))
    found = run._resolve(ModelOptions(str(tmp_path)))
    assert (found.model, found.revision, found.adapter) == ("org/base", "abc", str(tmp_path))
    assert run._resolve(ModelOptions(str(tmp_path), revision="other")).revision == "other"


def test_a_lora_adapter_is_found_with_its_base(tmp_path, base_model_folder, monkeypatch):
    """In a folder, and in the Hub's cache."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base_model_folder),
        LoraConfig(r=4, init_lora_weights=False),
    )
    model.save_pretrained(tmp_path / "adapter")
    settings = [
        "--benchmarks",
        "arithmetic:3",
        "--samples",
        1,
        "--max-tokens",
        12,
        "--temperature",
        0,
    ]
    assert evaluate(tmp_path / "adapter", tmp_path / "alone", *settings) == 0
    assert (
        evaluate(base_model_folder, tmp_path / "both", "--adapter", tmp_path / "adapter", *settings)
        == 0
    )
    assert evaluate(base_model_folder, tmp_path / "base", *settings) == 0
    alone, both, base = (lines(tmp_path / name) for name in ("alone", "both", "base"))
    assert alone == both != base
    assert (
        (tmp_path / "both" / "scores.md")
        .read_text()
        .startswith(f"# Scores of {tmp_path.name}/adapter\n")
    )
    cached, commit = tmp_path / "hub" / "models--me--adapter", "a" * 40
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    shutil.copytree(tmp_path / "adapter", cached / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert evaluate("me/adapter", tmp_path / "of_hub", *settings) == 0
    assert (
        evaluate(base_model_folder, tmp_path / "both_of_hub", "--adapter", "me/adapter", *settings)
        == 0
    )
    assert lines(tmp_path / "of_hub") == lines(tmp_path / "both_of_hub") == both


def models(owner):
    return json.dumps({"data": [{"id": "served", "max_model_len": 300, "owned_by": owner}]})


@pytest.fixture
def server(loaded, request):
    """A server of the model that answers greedily, what it was asked, and the statuses of its next
    answers."""
    asked, statuses = [], []

    def respond(path, sent, headers):
        if sent is None:
            return 200, models(getattr(request, "param", "vllm"))
        sent = json.loads(sent)
        asked.append(sent | {"authorization": headers["Authorization"]})
        if status := statuses and statuses.pop(0):
            return status, "busy"
        ((_, tokens, is_cut),) = sample_tokens(
            *loaded, [sent["prompt"]], [0], max_new_tokens=sent["max_tokens"], temperature=0.0
        )
        text, reason = (
            loaded[1].decode(tokens, skip_special_tokens=True),
            ("length" if is_cut else "stop"),
        )
        choice = {"text": text, "finish_reason": reason}
        return 200, json.dumps({"choices": [choice], "usage": {"completion_tokens": len(tokens)}})

    with harness.answering(respond) as url:
        yield url, asked, statuses


@pytest.mark.parametrize("server", ["vllm", "sglang"], indirect=True)
def test_a_server_and_transformers_give_the_same_greedy_answers(
    base_model_folder, server, tmp_path
):
    url, asked, _ = server
    options = ["--samples", 1, "--max-tokens", 20, "--temperature", 0]
    assert (
        evaluate(base_model_folder, tmp_path / "server", *options, "--base-url", url, number=10)
        == 0
    )
    assert evaluate(base_model_folder, tmp_path / "local", *options, number=10) == 0
    assert lines(tmp_path / "server") == lines(tmp_path / "local")
    assert {True, False} == {sample["truncated"] for sample in lines(tmp_path / "server")}
    assert {
        (sent["model"], sent["top_k"], sent["min_p"], sent["temperature"]) for sent in asked
    } == {("served", -1, 0, 0)}
    assert len({sent["seed"] for sent in asked}) == 10


def test_a_folder_is_not_mixed_with_what_the_server_serves_next(
    base_model_folder, tmp_path, capsys
):
    served = ["first", "first", "second"]

    def respond(path, sent, headers):
        choice = {"text": "8", "finish_reason": "stop"}
        answer = {"choices": [choice], "usage": {"completion_tokens": 1}}
        return 200, json.dumps({"data": [{"id": served.pop(0)}]} if sent is None else answer)

    with harness.answering(respond) as url:
        codes = [
            evaluate(base_model_folder, tmp_path, "--samples", samples, "--base-url", url, number=2)
            for samples in (1, 2, 3)
        ]
    assert codes == [0, 0, 2]
    assert (
        "has fingerprint {'served_model': 'first'}, got {'served_model': 'second'}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", [None, "MINE"])
def test_a_busy_server_is_asked_again_and_a_failing_one_costs_the_samples_in_flight(
    base_model_folder, server, tmp_path, capsys, monkeypatch, name
):
    """It gets a key only if its variable is named."""
    monkeypatch.setattr(ServerBackend, "RETRIES", 1)
    monkeypatch.setattr(ServerBackend, "CONCURRENCY", 1)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-another-server")
    monkeypatch.setenv("MINE", "key-of-this-one")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password of-another")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    url, asked, statuses = server
    statuses += [0, 429, *[0] * 8, 500, 500]
    served = ["--base-url", url, *(["--api-key-env", name] if name else [])]
    options = ["--samples", 1, "--max-tokens", 5]
    assert evaluate(base_model_folder, tmp_path / "out", *options, *served) == 2
    error = capsys.readouterr().err
    assert (
        "status 500: busy" in error and "run the same command again, it goes on from here" in error
    )
    assert len(lines(tmp_path / "out")) == 9
    assert evaluate(base_model_folder, tmp_path / "out", *options, *served) == 0
    # one may have been in flight
    assert len(lines(tmp_path / "out")) == 30 and 33 <= len(asked) <= 34
    assert {sent["authorization"] for sent in asked} == {name and "Bearer key-of-this-one"}


def test_a_server_that_is_not_there_or_wants_a_key_that_is_not_is_named(
    base_model_folder, tmp_path, capsys
):
    served = ["--base-url", "http://127.0.0.1:9"]
    assert evaluate(base_model_folder, tmp_path / "out", *served) == 2
    error = capsys.readouterr().err
    assert "No server answers at http://127.0.0.1:9/v1. Start it" in error and "--base-url" in error
    assert evaluate(base_model_folder, tmp_path / "out", *served, "--api-key-env", "NOT_THERE") == 2
    assert "NOT_THERE is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer", ["<html>", "{}", '{"choices": []}', '{"choices": [{"text": "8"}]}']
)
def test_a_server_that_answers_something_else_is_named(answer):
    with harness.answering(
        lambda path, sent, _: (200, models("vllm") if sent is None else answer)
    ) as url:
        backend = ServerBackend(ModelOptions("m", base_url=url))
        named = pytest.raises(ConnectionError, match="does not answer in OpenAI's format")
        with contextlib.nullcontext() if "8" in answer else named:
            (found,) = backend.sample([Request(("p", 0), 1, (1,), 5)], 0.7, 0.95)
            assert found.text == "8"
