"""Measures on a GPU what a few minutes allow: see run.sh. Each part runs in a process of its own, and
the results are written after each, so that a part that fails or takes too long stops no other.

    python tests/gpu/kit.py [--dry] [--seconds 460] [--only PART ...] [--out FOLDER]
    python tests/gpu/kit.py pack [MODEL]
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KIT = ROOT / ".gpu"
PACKED, RESTORED, START = KIT / "model", KIT / "restored", KIT / "start"
# What a machine with a GPU has, with all that it needs; and what most of them have, too.
THERE = ("torch", "transformers", "accelerate", "peft")
USUAL = ("matplotlib", "pandas", "pyarrow", "scipy")
MOST_OF_A_PART = 52 * 10**6  # bytes
LEAST_SECONDS = 15  # that a part is begun with


class Part(NamedTuple):
    name: str
    command: Callable[[argparse.Namespace], list[str]]
    seconds: int  # that are kept for it; what other parts leave comes on top
    needs: tuple[str, ...] = ()  # packages
    folder: Path | None = None  # that it needs
    makes: Path | None = None  # a folder, which is deleted before
    is_beside: bool = False  # it runs at the same time as the part before: its time is no result


def python(*words: object) -> list[str]:
    return [sys.executable, *map(str, words)]


def bench(table: str) -> Callable[[argparse.Namespace], list[str]]:
    def command(options: argparse.Namespace) -> list[str]:
        size = ["--tiny"] if options.dry else ["--gpu"]
        return python(ROOT / "tests/bench/step.py", *size, "--pairs", 2, "--tables", table)

    return command


def itself(name: str) -> Callable[[argparse.Namespace], list[str]]:
    """A part that this file is: `measure_NAME`."""
    return lambda options: python(__file__, *["--dry"] * options.dry, "--part", name)


def command_line(
    *words: object, dry: Sequence[object] = (), **settings: object
) -> Callable[[argparse.Namespace], list[str]]:
    """A command of `trl-miner` with settings of its recipe, and `dry` behind them in a dry run."""

    def command(options: argparse.Namespace) -> list[str]:
        given = {"use_cpu": options.dry, "bf16": not options.dry, "report_to": "none", **settings}
        pairs = [word for name, value in given.items() for word in (f"--{name}", value)]
        code = "import sys; from trl_miner.cli import main; sys.exit(main())"
        return python("-c", code, *words, *pairs, *(dry if options.dry else ()))

    return command


def train(recipe: str, **settings: object) -> Callable[[argparse.Namespace], list[str]]:
    few = dict(
        max_steps=2, held_out=8, score_samples=2, per_device_train_batch_size=32, logging_steps=1
    )
    return command_line(
        "train", ROOT / "recipes" / recipe, dry=[w for k, v in few.items() for w in (f"--{k}", v)],
        output_dir=KIT / "runs" / Path(recipe).with_suffix(""), **settings,
    )  # fmt: skip


TRAINING = ("trl", "datasets", "pyarrow", "math_verify", "pydantic", "scipy", "matplotlib")
TASKS = (*TRAINING, "reasoning_gym")
SMOLLM = "SmolLM2-135M-Instruct"
SMALL = {"model_name_or_path": START}
QUICK = ROOT / "recipes/arithmetic/quick.yaml"
PARTS = [
    Part("cure", itself("cure"), 35),
    Part("step gradient", bench("gradient"), 45, TRAINING),
    Part("step lengths", bench("lengths"), 105, TRAINING),
    Part("step method", bench("method"), 35, TRAINING),
    Part("step kl", bench("kl"), 50, TRAINING),
    Part("micro-batch", itself("micro_batch"), 25),
    Part("model", itself("model"), 20, folder=PACKED, makes=RESTORED),
    Part(
        "model start",
        command_line(
            "sft", "--config", ROOT / f"recipes/{SMOLLM}/miner.yaml", "--model", RESTORED, "--steps",
            20, dry=("--steps", 1), **SMALL,
        ), 35, TASKS, RESTORED, START,
    ),
    Part("model grpo", train(f"{SMOLLM}/grpo.yaml", **SMALL), 110, TASKS, START),
    Part("model miner", train(f"{SMOLLM}/miner.yaml", **SMALL), 110, TASKS, START, is_beside=True),
    Part("world", train("arithmetic/quick.yaml"), 110, TRAINING, is_beside=True),
    Part(
        "probe",
        command_line(
            "probe", QUICK, "--prompts", 24, "--problems", 8, "--samples", 8,
            "--output", KIT / "runs/probe",
        ), 110, TRAINING, is_beside=True,
    ),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry", action="store_true", help="on a CPU, with small sizes")
    parser.add_argument(
        "--seconds", type=int, help="for all parts together: 460, or 3600 with --dry"
    )
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="PART")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT", KIT / "out"))
    parser.add_argument("--part", help="measure this one here")
    options = parser.parse_args()
    if options.part:
        print(json.dumps(globals()[f"measure_{options.part}"](options.dry)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for folder in ("logs", "runs"):
        shutil.rmtree(KIT / folder, ignore_errors=True)
    (KIT / "logs").mkdir(parents=True)
    end = time.monotonic() + (options.seconds or (3600 if options.dry else 460))
    predictions = json.loads((HERE / "predictions.json").read_text())
    results: dict[str, Any] = {"machine": machine(), "parts": {}}
    parts = [part for part in PARTS if part.name in (options.only or [part.name])]
    rounds = [[part] for part in parts if not part.is_beside] or [[]]
    for part in parts:
        if part.is_beside:
            rounds[-1].append(part)
    for number, of_round in enumerate(rounds):
        later = sum(max(part.seconds for part in parts) for parts in rounds[number + 1 :])
        for part, result in run(of_round, options, end, end - later):
            results["parts"][part.name] = {
                "predicted": predictions.get(part.name, ""),
                "kept_seconds": part.seconds,
                **result,
            }
        write(results, options.out)
    print(table(results))


def write(results: dict[str, Any], folder: Path) -> None:
    """Write three files, as a machine may hand back few: numbers, a table, and what the parts
    said."""
    (folder / "results.json").write_text(json.dumps(results, indent=1))
    (folder / "table.md").write_text(table(results))
    logs = sorted((KIT / "logs").iterdir(), key=lambda path: path.stat().st_mtime)
    texts = (f"== {path.stem}\n{path.read_text(errors='replace')}\n" for path in logs)
    (folder / "logs.txt").write_text("".join(texts))


def run(
    parts: Sequence[Part], options: argparse.Namespace, end: float, soft_end: float
) -> list[tuple[Part, dict[str, Any]]]:
    """Run parts at the same time, and return how each ended and what it said.

    They may take until `soft_end`, at which later parts begin to lack time, and at least as long as
    is kept for them; but nothing runs on after `end`.
    """
    results: dict[str, dict[str, Any]] = {}
    running, start = {}, time.monotonic()
    for part in parts:
        if part.makes is not None:
            shutil.rmtree(part.makes, ignore_errors=True)
        if reason := skipped(part, end - start):
            results[part.name] = {"skipped": reason}
            continue
        path = KIT / "logs" / f"{part.name.replace(' ', '_')}.log"
        with path.open("w") as log:
            running[part] = path, subprocess.Popen(
                part.command(options), stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
    while running:
        time.sleep(0.2)
        now = time.monotonic()
        for part, (path, process) in list(running.items()):
            kept = start + part.seconds * (5 if options.dry else 1)
            if process.poll() is None and now < min(end, max(soft_end, kept)):
                continue
            code, text = process.poll(), path.read_text(errors="replace")
            ended = "stopped at its limit" if code is None else f"exit code {code}"
            with contextlib.suppress(ProcessLookupError):  # with all that it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            results[part.name] = {
                "ended": "done" if code == 0 else ended, "seconds": round(now - start, 1),
                "found": findings(text) if code == 0 else last_lines(text),
            }  # fmt: skip
            del running[part]
    return [(part, results[part.name]) for part in parts]


def skipped(part: Part, left: float) -> str:
    """Return why a part cannot run; nothing: it can."""
    if missing := [name for name in part.needs if importlib.util.find_spec(name) is None]:
        return f"{', '.join(missing)} is not there"
    if part.folder is not None and not part.folder.is_dir():
        return f"{part.folder.relative_to(ROOT)} is not there"
    return "" if left > LEAST_SECONDS else "no time was left"


def findings(text: str) -> list[str]:
    """Return the lines that say something: a table with its header, scores, or what `--part` found."""
    with contextlib.suppress(ValueError, IndexError):
        found = json.loads(last_lines(text, 1)[0])
        return [f"{name}: {' '.join(str(value).split())}" for name, value in found.items()]
    is_row = re.compile(r"\|(?! ---)|.*(pass@1|train_loss)", re.IGNORECASE)
    return [line[:300] for line in text.splitlines() if is_row.match(line)][-10:] or last_lines(
        text
    )


def last_lines(text: str, count: int = 3) -> list[str]:
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return [line[-600:] for line in lines[-count:]]


def table(results: dict[str, Any]) -> str:
    lines = [f"# On a GPU\n\n{results['machine']}\n", "| Part | Predicted | Found | Seconds |"]
    lines.append("| --- | --- | --- | --- |")
    for name, part in results["parts"].items():
        found = [f"skipped: {part['skipped']}"] if "skipped" in part else list(part["found"])
        if part.get("ended", "done") != "done":
            found.insert(0, f"**{part['ended']}**; it said last:")
        text = "<br>".join(line.strip("| ").replace("|", "·") for line in found)
        lines.append(f"| {name} | {part['predicted']} | {text} | {part.get('seconds', '')} |")
    return "\n".join(lines) + "\n"


def machine() -> str:
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{gpu}; torch {torch.__version__}, transformers {transformers.__version__}"


# The parts that need nothing but torch and transformers


def small_model(size: dict[str, int], device: str, dtype: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.device(device):
        return Qwen3ForCausalLM(Qwen3Config(**size, pad_token_id=0, eos_token_id=1)).to(dtype)


def measure_cure(dry: bool) -> dict[str, Any]:
    """Are the gradients of padded rows finite, with cuDNN's attention and without?"""
    import torch

    device = "cpu" if dry else "cuda"
    size = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, vocab_size=512)
    size |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    model = small_model(size, device, torch.bfloat16)
    found: dict[str, Any] = {}
    for name, is_on in (("off", False), ("on", True)):
        torch.backends.cuda.enable_cudnn_sdp(is_on)
        for length in (64, 128, 192, 320):
            ids = torch.randint(2, 512, (4, length), device=device)
            mask = torch.ones_like(ids)
            mask[1:, : length // 2] = 0  # padded on the left
            model.zero_grad()
            logits = model(input_ids=ids, attention_mask=mask).logits[:, length // 2 :].float()
            logits.log_softmax(-1)[..., 1].mean().backward()
            is_finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
            kind = f"cuDNN {name}, {'finite' if is_finite else 'NaN'}"
            found[kind] = ", ".join([*found.get(kind, "").split(", "), str(length)]).strip(", ")
    return found


def measure_micro_batch(dry: bool) -> dict[str, Any]:
    """Where does the time of a micro-batch go: the host that launches, the GPU, or cuDNN's attention,
    which prepares for a new shape?"""
    import torch

    size = dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, vocab_size=151936)
    size |= dict(num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    device, dtype = ("cpu", torch.float32) if dry else ("cuda", torch.bfloat16)
    if dry:
        size |= dict(num_hidden_layers=2, hidden_size=64, intermediate_size=128, vocab_size=512)
    model = small_model(size, device, dtype)
    model.gradient_checkpointing_enable()
    model.train()

    def step(rows: int, length: int) -> None:
        ids = torch.randint(2, 500, (rows, length), device=device)
        mask = torch.ones_like(ids)
        mask[1:, : length // 2] = 0
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=32).logits.float()
        logits.log_softmax(-1)[..., 1].mean().backward()
        if not dry:
            torch.cuda.synchronize()

    step(2, 16)  # loads what all shapes need
    found: dict[str, Any] = {}
    shapes = ((8, 64), (8, 512), (8, 2048), (32, 512)) if not dry else ((2, 24),)
    for is_on in (False, True):
        torch.backends.cuda.enable_cudnn_sdp(is_on)
        for rows, length in shapes:
            seconds = []
            for _ in range(4):  # the first prepares for its shape
                start = time.perf_counter()
                step(rows, length)
                seconds.append(time.perf_counter() - start)
            activities = [torch.profiler.ProfilerActivity.CPU]
            activities += [] if dry else [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profiler:
                step(rows, length)
            events = profiler.key_averages()
            on_gpu = sum(getattr(event, "self_device_time_total", 0) for event in events) / 1e6
            found[f"{rows} x {length}, cuDNN {'on' if is_on else 'off'}"] = (
                f"first {seconds[0]:.3f} s, then {min(seconds[1:]):.3f} s,"
                f" of which the GPU computes {on_gpu:.3f} s"
            )
    return found


# What is carried


def pack(model: str = "") -> None:
    """Download the wheels that the package and its recipes need, in the versions that are installed
    here, and write a model in parts."""
    needed = requirements("trl_miner[tasks]")
    there, usual = requirements(*THERE), requirements(*USUAL)
    for name in requirements("pydantic"):  # old versions of what is there do without it
        there.pop(name, None)
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    words = ["--no-deps", "--only-binary=:all:", "--implementation=cp"]
    words += [f"--python-version={os.environ.get('PYTHON_VERSION', '3.12')}"]
    words += [f"--platform={platform}" for platform in platforms]
    for name in sorted(needed.keys() - there.keys()):
        folder = KIT / ("usual_wheels" if name in usual else "wheels")
        wanted = f"{name}=={needed[name]}"
        pip = python("-m", "pip", "-qq", "download", *words, "--dest", folder, wanted)
        if subprocess.run(pip, check=False).returncode and not made_here(wanted, folder):
            print(f"not packed, as it has no wheel: {wanted}")
    if model:
        pack_model(model)


def made_here(wanted: str, folder: Path) -> bool:
    """Make the wheel of a package that has none, and return whether it is of Python alone."""
    with tempfile.TemporaryDirectory() as new:
        pip = python("-m", "pip", "-qq", "wheel", "--no-deps", "--wheel-dir", new, wanted)
        subprocess.run(pip, check=False)
        paths = list(Path(new).glob("*-none-any.whl"))
        for path in paths:
            shutil.copy(path, folder)
    return bool(paths)


def requirements(*names: str) -> dict[str, str]:
    """Return the packages that some need, with themselves but the first, and their versions here."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, str] = {}
    waiting = [Requirement(name) for name in names]
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        needed = waiting.pop()
        key = canonicalize_name(needed.name), frozenset(needed.extras)
        if key in done:
            continue
        done.add(key)
        try:
            package = importlib.metadata.distribution(needed.name)
        except importlib.metadata.PackageNotFoundError:
            print(f"not packed, as it is not installed here: {needed}")
            continue
        found[key[0]] = package.version.partition("+")[0]
        for line in package.requires or ():
            other, extras = Requirement(line), needed.extras or {""}
            if other.marker is None or any(other.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(other)
    found.pop("trl-miner", None)
    return found


def pack_model(model: str) -> None:
    """Write a model's weights in 8 bits a number, each row with a scale, in parts; and its settings
    and tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    shutil.rmtree(PACKED, ignore_errors=True)
    settings = PACKED / "settings"
    settings.mkdir(parents=True)
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tied = "lm_head.weight" if weights.config.tie_word_embeddings else None
    parts: list[dict[str, Any]] = [{}]
    size = 0
    for name, weight in weights.state_dict().items():
        if name == tied:
            continue
        stored = {name: weight.half()}
        if weight.dim() == 2:
            scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
            stored = {name: (weight / scale).round().to(torch.int8), f"{name}.scale": scale.half()}
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
        if size + num_bytes > MOST_OF_A_PART and parts[-1]:
            parts.append({})
            size = 0
        parts[-1] |= stored
        size += num_bytes
    for number, part in enumerate(parts, start=1):
        save_file(part, PACKED / f"part-{number}-of-{len(parts)}.safetensors")
    for path in Path(model).iterdir():
        if path.suffix in (".json", ".txt", ".model", ".jinja") and "index" not in path.name:
            shutil.copy(path, settings)


def measure_model(dry: bool) -> dict[str, Any]:
    """Put the parts together again, and say how the model goes on with a text."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    paths, settings = sorted(PACKED.glob("part-*.safetensors")), PACKED / "settings"
    num_parts = int(paths[0].stem.rpartition("-")[2]) if paths else 1
    if len(paths) != num_parts:
        sys.exit(f"Of the model's parts, {len(paths)} of {num_parts} are there: carry all")
    stored = {name: value for path in paths for name, value in load_file(path).items()}
    weights = {
        name: value.float() * stored[f"{name}.scale"].float()
        if value.dtype == torch.int8
        else value.float()
        for name, value in stored.items()
        if not name.endswith(".scale")
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(settings)).float()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        sys.exit(f"The parts are of another model: {missing} are missing, {unexpected} are unknown")
    model.tie_weights()
    model.save_pretrained(RESTORED)
    tokenizer = AutoTokenizer.from_pretrained(settings)
    tokenizer.save_pretrained(RESTORED)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    said = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    return {"parts": num_parts, "said": tokenizer.decode(said)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        pack(*sys.argv[2:])
    else:
        main()
