"""The embedded worlds' base models: each trained on this machine when first asked for, then kept.

In `$TRL_MINER_CACHE`, else `$XDG_CACHE_HOME/trl_miner`, else `~/.cache/trl_miner`, in one folder per
`BaseModelSettings`. Deleting the folder is safe: the next run builds it again.
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

# Raise it whenever problems, tokens or training change: base models of the old kind in the cache are then left alone.
FORMAT = 1


PROGRESS = "trl_miner step "  # how the training process reports to the one that waits for it
LAUNCHER_VARIABLES = (
    "ACCELERATE_",
    "FSDP_",
    "TORCHELASTIC_",
    "TORCH_NCCL_",
    "NCCL_",
    "MASTER_",
    "OMPI_",
    "PMI_",
    "SLURM_",
    "GROUP_",
    "ROLE_",
    "LOCAL_",
    "RANK",
    "WORLD_SIZE",
)


@dataclasses.dataclass(frozen=True)
class BaseModelSettings:
    """What a base model is made of. Equal settings give equal weights on the same machine."""

    world: str = arithmetic.NAME
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int = 256
    rows: int = 12_000  # noisy solutions; passed over several times
    steps: int = 900  # optimizer steps
    batch_size: int = 64  # rows per step
    learning_rate: float = 4e-3
    step_error: float = 0.5  # share of wrong results among the steps taken the short way
    seed: int = 0
    format: int = FORMAT


def settings_of(world: str) -> BaseModelSettings:
    """What the base model of an embedded world is made of.

    Args:
        world: One of `worlds.WORLDS`.

    Returns:
        The settings that `find_model` builds it with.
    """
    return BaseModelSettings(world=world, **WORLDS[world].BASE_MODEL)


def find_model(name: str, steps: int | None = None) -> str:
    """A model as it can be loaded: an embedded one as its folder, built if it is missing, any other as it is named.

    Args:
        name: A Hub id, a folder, or the name of an embedded world.
        steps: SFT steps of an embedded one; None: all.

    Returns:
        What `from_pretrained` takes.
    """
    if name not in WORLDS:
        return name
    settings = settings_of(name)
    return str(base_model(settings if steps is None else dataclasses.replace(settings, steps=steps)))


def base_model(settings: BaseModelSettings = BaseModelSettings(), cache_dir: str | Path | None = None) -> Path:
    """The folder with a base model and its tokenizer; trains the model first if the cache does not hold it.

    Safe to call from several processes at once: one builds, the others wait.

    Args:
        settings: what the model is made of.
        cache_dir: where base models are kept; by default see the module's docstring.

    Returns:
        A folder for `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`.

    Raises:
        OSError: if the cache cannot be written.
        RuntimeError: if the training fails; it quotes the last lines of its output.
    """
    from filelock import FileLock

    root = _cache_dir(cache_dir)
    made_of = [dataclasses.asdict(settings), chains.WORDING, WORLDS[settings.world].WORDING]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    folder = root / f"{settings.world.rpartition('/')[2]}-{key}"
    if folder.is_dir():  # needs no lock, nor a writable cache: a folder of this name is always whole
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if not folder.is_dir():
                _build(settings, folder)
    except OSError as error:
        raise OSError(
            f"The base model of {settings.world} needs a folder that can be written: {root} cannot ({error}). "
            "Set TRL_MINER_CACHE to one that can."
        ) from error
    return folder


def _build(settings: BaseModelSettings, folder: Path) -> None:
    """Train beside `folder` and move in place; the caller holds the lock."""
    for left_behind in folder.parent.glob(f"{folder.name}.building-*"):  # by a build that was killed
        shutil.rmtree(left_behind, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
    try:
        if not is_quiet():
            print(
                f"trl_miner: no base model of {settings.world} in {folder.parent} yet; training one "
                f"({settings.steps} steps, {WORLDS[settings.world].BUILD_TIME}, only this once).",
                file=sys.stderr,
                flush=True,
            )
        _run_training(settings, building)
        building.chmod(0o755)  # mkdtemp gives 0700, but a cache may be shared
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _run_training(settings: BaseModelSettings, building: Path) -> None:
    """Run `_train` in a process of its own, so that no launcher's ranks, GPUs or seeds reach it."""
    command = [
        sys.executable,
        "-m",
        "trl_miner.data.base_model",
        json.dumps(dataclasses.asdict(settings)),
        str(building),
    ]
    last_lines: deque[str] = deque(maxlen=20)
    with (
        subprocess.Popen(
            command,
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
                progress.advance(settings.steps - progress.done)  # it reports every tenth
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(
            f"Training the base model of {settings.world} failed with exit status {process.returncode}. "
            f"Its last lines:\n{''.join(last_lines)}"
        )


def _clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what launchers set, with this package importable, on the CPU and offline."""
    clean = {key: value for key, value in environment.items() if not key.startswith(LAUNCHER_VARIABLES)}
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, environment.get("PYTHONPATH", "")]
    # One thread: the order of sums, hence the weights, do not depend on the machine's cores, and two threads that wait
    # for each other are ten times slower on a busy machine.
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
    """Train a base model with TRL's SFTTrainer and save it with its tokenizer; prints its progress."""
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback, set_seed
    from trl import SFTConfig, SFTTrainer

    class Report(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 10 == 0:
                # Also how an orphan ends: its parent is gone, so printing fails.
                print(f"{PROGRESS}{state.global_step}", flush=True)

    print(f"{PROGRESS}0", flush=True)
    disable_progress_bars()
    set_seed(settings.seed)
    torch.set_num_threads(1)
    world = WORLDS[settings.world]
    tokenizer = world.build_tokenizer()
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
    with torch.no_grad():
        for number in range(chains.MAX_TOTAL + 1):
            token = tokenizer.convert_tokens_to_ids(str(number))
            model.get_input_embeddings().weight[token] = tens[number // 10] + ones[number % 10]
    rng = random.Random(settings.seed)
    rows = []
    for index in range(settings.rows):
        problem = chains.draw("train", world.PRETRAINED_LEVELS[index % len(world.PRETRAINED_LEVELS)], rng)
        rows.append({"prompt": problem.prompt, "completion": world.solution(problem, rng, settings.step_error)})
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
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


def _cache_dir(cache_dir: str | Path | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    if os.environ.get("TRL_MINER_CACHE"):
        return Path(os.environ["TRL_MINER_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "trl_miner"


if __name__ == "__main__":
    _train(BaseModelSettings(**json.loads(sys.argv[1])), Path(sys.argv[2]))
