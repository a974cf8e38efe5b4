"""The base models of the embedded worlds: each is trained on this machine when first needed, then kept.

The cache has a folder for each `BaseModelSettings`. Deleting it is safe: the next run trains the model again.
"""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..progress import Progress, is_quiet
from . import arithmetic, chains
from .worlds import WORLDS

PROGRESS = "trl_miner step "  # begins the lines in which the training process reports its steps to the one that waits
LAUNCHER_VARIABLES = tuple(
    "ACCELERATE_ FSDP_ TORCHELASTIC_ TORCH_NCCL_ NCCL_ MASTER_ OMPI_ PMI_ SLURM_ GROUP_ ROLE_ LOCAL_ RANK "
    "WORLD_SIZE".split()
)


@dataclasses.dataclass(frozen=True)
class BaseModelSettings:
    """The settings of a base model. Equal settings give equal weights on the same machine."""

    world: str = arithmetic.NAME
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int = 256
    rows: int = 12_000  # noisy solutions; passed over several times
    steps: int = 900  # optimizer steps
    batch_size: int = 64  # rows per step
    learning_rate: float = 4e-3
    step_error: float = 0.5  # share of wrong results among the steps that may go wrong
    seed: int = 0
    format: int = 1  # raise it whenever problems, tokens or training change: old models in the cache are then not used


def cache_folder() -> Path:
    """Return the package's cache: `$TRL_MINER_CACHE`, else `$XDG_CACHE_HOME/trl_miner`, else `~/.cache/trl_miner`."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TRL_MINER_CACHE") or Path(caches, "trl_miner")).expanduser()


def find_model(name: str, steps: int | None = None) -> str:
    """Return what `from_pretrained` takes: the name itself or, for an embedded world, the folder of its base model."""
    if name not in WORLDS:
        return name
    settings = BaseModelSettings(world=name, **WORLDS[name].BASE_MODEL)
    return str(base_model(settings if steps is None else dataclasses.replace(settings, steps=steps)))


def write_untrained(name: str, folder: Path) -> None:
    """Write the base model of an embedded world as it is before its training, with its tokenizer, to look at both."""
    tokenizer = WORLDS[name].build_tokenizer()
    settings = BaseModelSettings(world=name, **WORLDS[name].BASE_MODEL)
    _new_model(settings, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def base_model(settings: BaseModelSettings = BaseModelSettings(), cache_dir: str | Path | None = None) -> Path:
    """Return the folder of a base model and its tokenizer; train the model first if the cache does not hold it.

    Several processes may call it at once: one trains, the others wait.
    """
    from filelock import FileLock

    root = Path(cache_dir).expanduser() if cache_dir else cache_folder()
    ingredients = [dataclasses.asdict(settings), chains.WORDING, WORLDS[settings.world].WORDING]
    key = hashlib.sha256(json.dumps(ingredients).encode()).hexdigest()[:16]
    folder = root / f"{settings.world.rpartition('/')[2]}-{key}"
    if folder.is_dir():  # needs neither a lock nor a writable cache: a folder of this name is always complete
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if not folder.is_dir():
                _build(settings, folder)
    except OSError as error:
        raise OSError(
            f"The base model of {settings.world} needs a writable folder: {root} is not ({error}). "
            "Set TRL_MINER_CACHE to one that is."
        ) from error
    return folder


def _build(settings: BaseModelSettings, folder: Path) -> None:
    """Train in a temporary folder and rename it; the caller holds the lock."""
    for leftover in folder.parent.glob(f"{folder.name}.building-*"):  # of a build that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
    try:
        if not is_quiet():
            effort = f"{settings.steps} steps, {WORLDS[settings.world].BUILD_TIME}, only this once"
            message = f"trl_miner: no base model of {settings.world} in {folder.parent} yet; training one ({effort})."
            print(message, file=sys.stderr, flush=True)
        _run_training(settings, building)
        building.chmod(0o755)  # mkdtemp sets 0700, but a cache may be shared
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _run_training(settings: BaseModelSettings, building: Path) -> None:
    """Run `_train` in its own process, which no launcher's ranks, GPUs or seeds reach."""
    arguments = [json.dumps(dataclasses.asdict(settings)), str(building)]
    last_lines: deque[str] = deque(maxlen=20)
    with (
        subprocess.Popen(
            [sys.executable, "-P", "-m", "trl_miner.data.base_model", *arguments],
            env=_clean_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
        Progress("training the base model", settings.steps, unit="steps") as progress,
    ):
        try:
            for line in process.stdout or ():
                if line.startswith(PROGRESS):
                    progress.advance(int(line.removeprefix(PROGRESS)) - progress.done)
                else:
                    last_lines.append(line)
            if process.wait() == 0:
                progress.advance(settings.steps - progress.done)  # it reports every tenth step
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(
            f"Training the base model of {settings.world} failed with exit status {process.returncode}. "
            f"Its last lines:\n{''.join(last_lines)}"
        )


def _clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what launchers set, with this package importable, on the CPU and offline."""
    clean = {key: value for key, value in environment.items() if not key.startswith(LAUNCHER_VARIABLES)}
    paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
    # One thread: the order of sums, hence the weights, does not depend on the number of cores, and two threads that
    # wait for each other are ten times slower on a busy machine.
    return clean | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        # Keep freed memory: giving it back and faulting it in again took a quarter of each step. Read by glibc alone.
        "MALLOC_MMAP_THRESHOLD_": "2000000000",
        "MALLOC_TRIM_THRESHOLD_": "4000000000",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
    }


def _train(settings: BaseModelSettings, folder: Path) -> None:
    """Train a base model with TRL's SFTTrainer, and save it with its tokenizer; print the progress."""
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import TrainerCallback, set_seed
    from trl import SFTConfig, SFTTrainer

    class Report(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 10 == 0:
                # This also ends an orphan: its parent is gone, so printing fails.
                print(f"{PROGRESS}{state.global_step}", flush=True)

    print(f"{PROGRESS}0", flush=True)
    disable_progress_bars()
    set_seed(settings.seed)
    torch.set_num_threads(1)
    tokenizer = WORLDS[settings.world].build_tokenizer()
    model = _new_model(settings, tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(_examples(settings)),
            args=SFTConfig(
                output_dir=scratch,
                max_steps=settings.steps,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                lr_scheduler_type="cosine",
                warmup_steps=0.05,
                adam_beta2=0.98,
                seed=settings.seed,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            callbacks=[Report()],
        )
        trainer.train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _new_model(settings: BaseModelSettings, tokenizer: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_hidden_layers=settings.num_layers,
            num_attention_heads=settings.num_heads,
            num_key_value_heads=settings.num_heads,
            head_dim=settings.hidden_size // settings.num_heads,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            initializer_range=0.08,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # Numbers start out as "so many tens, so many ones": from unrelated vectors the sums take far longer to learn.
    tens, ones = torch.randn(2, 10, settings.hidden_size) * 0.1
    vocabulary = tokenizer.get_vocab()
    with torch.no_grad():
        for number in range(chains.MAX_TOTAL + 1):
            if str(number) in vocabulary:
                token = vocabulary[str(number)]
                model.get_input_embeddings().weight[token] = tens[number // 10] + ones[number % 10]
    return model


def _examples(settings: BaseModelSettings) -> list[dict[str, str]]:
    world, rng = WORLDS[settings.world], random.Random(settings.seed)
    examples = []
    for index in range(settings.rows):
        problem = world.draw("train", world.PRETRAINED_LEVELS[index % len(world.PRETRAINED_LEVELS)], rng)
        examples.append({"prompt": problem.prompt, "completion": world.solution(problem, rng, settings.step_error)})
    return examples


if __name__ == "__main__":
    _train(BaseModelSettings(**json.loads(sys.argv[1])), Path(sys.argv[2]))
