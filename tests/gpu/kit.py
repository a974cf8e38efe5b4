"""Measures on a GPU what a few minutes allow: see run.sh. Each part runs in a process of its own, with
a limit, and the results are written after each.

    python tests/gpu/kit.py [--dry] [--seconds 460] [--only PART ...] --out FOLDER
    python tests/gpu/kit.py pack MODEL FOLDER
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KIT = ROOT / ".gpu"
MOST_BYTES = 55 * 2**20  # of a part of a model
# Behind all others: what the machine has is built for its GPU.
sys.path.append(os.environ.get("TRL_MINER_KIT_PACKAGES", str(KIT / "packages")))


class Part(NamedTuple):
    name: str
    command: Callable[[argparse.Namespace], list[str]]
    seconds: int  # at most
    needs: tuple[str, ...] = ()  # packages
    needs_model: bool = False


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


def recipe(
    command: str, path: str, **settings: object
) -> Callable[[argparse.Namespace], list[str]]:
    def words(options: argparse.Namespace) -> list[str]:
        given: dict[str, object] = {"use_cpu": options.dry, "bf16": not options.dry, **settings}
        if options.dry:
            given |= {"max_steps": 2, "held_out": 8, "score_samples": 2}
        if command == "train":
            folder = Path(options.out, "runs", Path(path).stem)
            given |= {"output_dir": folder, "overwrite_output_dir": True, "report_to": "none"}
        pairs = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        code = "import sys; from trl_miner.cli import main; sys.exit(main())"
        few = ["--prompts", 24, "--problems", 8, "--samples", 8] if command == "probe" else []
        return python("-c", code, command, ROOT / "recipes" / path, *pairs, *few)

    return words


TRAINING = ("trl", "datasets", "pyarrow", "math_verify", "pydantic", "scipy", "matplotlib")
SMALL_MODEL = dict(model_name_or_path=KIT / "restored", max_steps=15, held_out=100)
PARTS = [
    Part("cure", itself("cure"), 60),
    Part("step lengths", bench("lengths"), 100, TRAINING),
    Part("step method", bench("method"), 60, TRAINING),
    Part("step kl", bench("kl"), 70, TRAINING),
    Part("micro-batch", itself("micro_batch"), 40),
    Part("world", recipe("train", "arithmetic/quick.yaml"), 120, TRAINING),
    Part("model", itself("model"), 40, ("trl",), needs_model=True),
    Part(
        "model grpo", recipe("train", "SmolLM2-135M-Instruct/grpo.yaml", **SMALL_MODEL), 100,
        (*TRAINING, "reasoning_gym"), needs_model=True,
    ),
    Part(
        "model miner", recipe("train", "SmolLM2-135M-Instruct/miner.yaml", **SMALL_MODEL), 100,
        (*TRAINING, "reasoning_gym"), needs_model=True,
    ),
    Part("probe", recipe("probe", "arithmetic/quick.yaml"), 60, TRAINING),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry", action="store_true")
    parser.add_argument(
        "--seconds", type=int, help="for all parts together: 460, or 3600 with --dry"
    )
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--out", type=Path, default=KIT / "out")
    parser.add_argument("--part", help="measure this one here")
    options = parser.parse_args()
    if options.part:
        print(json.dumps(globals()[f"measure_{options.part}"](options.dry)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    predictions = json.loads((HERE / "predictions.json").read_text())
    results: dict[str, Any] = {"machine": machine(), "parts": {}}
    end = time.monotonic() + (options.seconds or (3600 if options.dry else 460))
    for part in PARTS:
        if options.only and part.name not in options.only:
            continue
        found = run(part, options, end - time.monotonic())
        results["parts"][part.name] = {"predicted": predictions.get(part.name, ""), **found}
        (options.out / "results.json").write_text(json.dumps(results, indent=1))
        (options.out / "table.md").write_text(table(results))
    print(table(results))


def run(part: Part, options: argparse.Namespace, left: float) -> dict[str, Any]:
    """Run a part, and return how it ended and what it said."""
    missing = [name for name in part.needs if importlib.util.find_spec(name) is None]
    if missing:
        return {"skipped": f"{', '.join(missing)} is not there"}
    if part.needs_model and not (KIT / "model").is_dir():
        return {"skipped": "no model is packed in .gpu/model"}
    if left < 15:
        return {"skipped": "no time is left"}
    start = time.monotonic()
    log = options.out / f"{part.name.replace(' ', '_')}.log"
    packages = os.environ.get("TRL_MINER_KIT_PACKAGES", str(KIT / "packages"))
    # `sitecustomize` of this folder puts the packages behind those of the machine.
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{HERE}", "TRL_MINER_KIT_PACKAGES": packages}
    try:
        with log.open("w") as said:
            code = subprocess.run(
                part.command(options), stdout=said, stderr=subprocess.STDOUT, env=environment,
                timeout=min(part.seconds * (5 if options.dry else 1), left), cwd=ROOT, check=False,
            ).returncode  # fmt: skip
        ended = "done" if code == 0 else f"exit code {code}"
    except subprocess.TimeoutExpired:
        ended = "stopped at its limit"
    text = log.read_text(errors="replace")
    return {
        "ended": ended,
        "seconds": round(time.monotonic() - start, 1),
        "found": findings(text) if ended == "done" else text.strip()[-600:],
    }


def findings(text: str) -> list[str]:
    """Return the lines that say something: rows of tables, scores, and the last JSON."""
    rows = [line for line in text.splitlines() if re.match(r"\|.*\d.*\||.*pass@1", line)]
    last = text.strip().rpartition("\n")[2]
    return rows or [last[:600]]


def table(results: dict[str, Any]) -> str:
    lines = [f"# On a GPU\n\n{results['machine']}\n", "| Part | Predicted | Found | Seconds |"]
    lines.append("| --- | --- | --- | --- |")
    for name, part in results["parts"].items():
        if "skipped" in part:
            found = f"skipped: {part['skipped']}"
        elif part["ended"] != "done":
            found = part["ended"]
        else:
            found = "<br>".join(row.strip("| ").replace("|", "·") for row in part["found"][-8:])
        cells = [name, part["predicted"], found, str(part.get("seconds", ""))]
        lines.append(f"| {' | '.join(cells)} |")
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
    for name, is_on in (("cuDNN off", False), ("cuDNN on", True)):
        torch.backends.cuda.enable_cudnn_sdp(is_on)
        for length in (64, 128, 192, 320):
            ids = torch.randint(2, 512, (4, length), device=device)
            mask = torch.ones_like(ids)
            mask[1:, : length // 2] = 0  # padded on the left
            model.zero_grad()
            logits = model(input_ids=ids, attention_mask=mask).logits[:, length // 2 :].float()
            logits.log_softmax(-1)[..., 1].mean().backward()
            is_finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
            found[f"{name}, {length}"] = "finite" if is_finite else "NaN"
    return found


def measure_micro_batch(dry: bool) -> dict[str, Any]:
    """Where does the time of a micro-batch go: the host that launches, or the GPU?"""
    import torch

    size = dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, vocab_size=151936)
    size |= dict(num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    device, dtype = ("cpu", torch.float32) if dry else ("cuda", torch.bfloat16)
    if dry:
        size |= dict(num_hidden_layers=2, hidden_size=64, intermediate_size=128, vocab_size=512)
    torch.backends.cuda.enable_cudnn_sdp(False)
    model = small_model(size, device, dtype)
    model.gradient_checkpointing_enable()
    model.train()

    def step(rows: int, length: int) -> None:
        ids = torch.randint(2, 500, (rows, length), device=device)
        logits = model(input_ids=ids, logits_to_keep=32).logits.float()
        logits.log_softmax(-1)[..., 1].mean().backward()
        if not dry:
            torch.cuda.synchronize()

    found: dict[str, Any] = {}
    for rows, length in ((8, 64), (8, 512), (8, 2048), (32, 512)) if not dry else ((2, 16),):
        seconds = []
        for _ in range(4):  # the first prepares for its shape
            start = time.perf_counter()
            step(rows, length)
            seconds.append(round(time.perf_counter() - start, 4))
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [] if dry else [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            step(rows, length)
        on_gpu = sum(
            getattr(event, "self_device_time_total", 0) for event in profiler.key_averages()
        )
        found[f"{rows} x {length}"] = {
            "first s": seconds[0],
            "then s": min(seconds[1:]),
            "on the GPU s": round(on_gpu / 1e6, 4),
        }
    return found


# A model in 8 bits, in parts


def pack(model: str, folder: str) -> None:
    """Write a model's weights in 8 bits a number, each row with a scale, in parts."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tied = "lm_head.weight" if weights.config.tie_word_embeddings else None
    parts: list[dict[str, Any]] = [{}]
    size = 0
    for name, weight in weights.state_dict().items():
        if name == tied:
            continue
        rows = weight.view(len(weight), -1)
        scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        one = {name: weight.half()}
        if weight.dim() == 2:
            one = {name: (rows / scale).round().to(torch.int8), f"{name}.scale": scale.half()}
        own = sum(tensor.numel() * tensor.element_size() for tensor in one.values())
        if size + own > MOST_BYTES and parts[-1]:
            parts.append({})
            size = 0
        parts[-1] |= one
        size += own
    for number, part in enumerate(parts):
        save_file(part, target / f"part-{number}-of-{len(parts)}.safetensors")
    for path in Path(model).iterdir():
        if path.suffix in (".json", ".txt", ".model", ".jinja") and "index" not in path.name:
            shutil.copy(path, target)


def measure_model(dry: bool) -> dict[str, Any]:
    """Put the parts together again, and say how the model goes on with a text."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder, target = KIT / "model", KIT / "restored"
    paths = sorted(folder.glob("part-*.safetensors"))
    wanted = int(paths[0].stem.rpartition("-")[2])
    if len(paths) != wanted:
        sys.exit(f"{len(paths)} of {wanted} parts of the model are there")
    stored = {name: value for path in paths for name, value in load_file(path).items()}
    weights = {
        name: value.float() * stored[f"{name}.scale"].float()
        if value.dtype == torch.int8
        else value.float()
        for name, value in stored.items()
        if not name.endswith(".scale")
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(target)
    ids = tokenizer("Question: 2 + 3 = ?\nAnswer:", return_tensors="pt").input_ids
    said = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    return {"parts": wanted, "said": tokenizer.decode(said)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        pack(*sys.argv[2:])
    else:
        main()
