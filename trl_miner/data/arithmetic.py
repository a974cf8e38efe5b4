r"""The embedded world: chains of additions and subtractions, and a base model that has half learned them.

    Compute 17 + 4 - 9 + 8.
    so 17 + 4 = 21, then 21 - 9 is 12, + 8 = 20. The answer is \boxed{20}.

A problem's level is its number of operations, 1 to 5, and no running total leaves 0..99. Every step can be said in
several equally correct ways, some likelier than others, so that right rollouts differ in likelihood, which is what
MINER feeds on. One way is a bad habit: from the third step on, the running total may be left out (", + 8 = 20"), and
half of such steps go wrong in the solutions that the base model (0.15 M parameters) learns from. So at temperature 1
it solves some prompts always and most sometimes, and RL can mend that within a hundred steps, on a CPU, without a
download. (With errors spread evenly over all steps, hardly a prompt is always solved, and RL needs far longer.)

Base models are kept in `$TRL_MINER_CACHE`, else `$XDG_CACHE_HOME/trl_miner`, else `~/.cache/trl_miner`, in one folder
per `BaseModelSettings`. Deleting the folder is safe: the next run builds it again.
"""

import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

NAME = "trl_miner/arithmetic"
# Raise it whenever problems, tokens or training change: base models of the old kind in the cache are then left alone.
FORMAT = 1

LEVELS = (1, 2, 3, 4, 5)
MAX_TOTAL = 99
MAX_OPERAND = 9

# Ways to say the same, with their shares. Each is one token, spaces included, and numbers are bare: no token ever
# spans the end of a prompt, and joining tokens gives the text back.
QUESTION, ASK = "Compute ", ".\n"
OPERATORS = {"+": {" + ": 0.8, " plus ": 0.2}, "-": {" - ": 0.8, " minus ": 0.2}}
OPENERS = {"so ": 0.19, "then ": 0.11, "next ": 0.07, "now ": 0.03, "": 0.6}  # "": the short way, "+ 8 = 20"
FIRST_SHORT_STEP = 2  # counted from 0
EQUALS = {" = ": 0.55, " is ": 0.25, " gives ": 0.13, " makes ": 0.07}
SEPARATOR = ", "
CLOSERS = {". The answer is \\boxed{": 0.6, ". Answer: \\boxed{": 0.3, ". We get \\boxed{": 0.1}
END = "}."

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

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A chain of operations, e.g. start 17, steps (("+", 4), ("-", 9))."""

    start: int
    steps: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        """The question, in the plain notation: the ways to say "+" belong to the solutions."""
        return QUESTION + str(self.start) + "".join(f" {sign} {number}" for sign, number in self.steps) + ASK

    @property
    def answer(self) -> int:
        """The total after the last step."""
        return self.start + sum(number if sign == "+" else -number for sign, number in self.steps)


@dataclasses.dataclass(frozen=True)
class BaseModelSettings:
    """What a base model is made of. Equal settings give equal weights on the same machine."""

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int = 256
    rows: int = 12_000  # noisy solutions; passed over several times
    steps: int = 900  # optimiser steps
    batch_size: int = 64  # rows per step
    learning_rate: float = 4e-3
    step_error: float = 0.5  # share of wrong results among the steps taken the short way
    seed: int = 0
    format: int = FORMAT


def problem(rng: random.Random, level: int) -> Problem:
    """Draw a problem of `level` operations, 1 to 5; every running total lies within 0..99."""
    if level not in LEVELS:
        raise ValueError(f"level must be one of {LEVELS}: got {level}. It is the number of operations in the problem.")
    start = total = rng.randint(1, MAX_TOTAL)
    steps: list[tuple[str, int]] = []
    while len(steps) < level:
        sign, number = rng.choice("+-"), rng.randint(1, MAX_OPERAND)
        reached = total + number if sign == "+" else total - number
        if 0 <= reached <= MAX_TOTAL:
            steps.append((sign, number))
            total = reached
    return Problem(start, tuple(steps))


def solution(problem: Problem, rng: random.Random, step_error: float = 0.0) -> str:
    """Work a problem out in words, in styles drawn from `rng`.

    Args:
        problem: what to solve.
        rng: decides on the styles and on the errors.
        step_error: probability of a wrong result in a step taken the short way, which does not repeat the running
            total; the chain goes on from the wrong number. All other steps are right.

    Returns:
        The completion, up to and including the boxed result, without an end-of-sequence token.
    """
    total = problem.start
    text = ""
    for index, (sign, number) in enumerate(problem.steps):
        opener = _pick(OPENERS, rng)
        while not opener and index < FIRST_SHORT_STEP:
            opener = _pick(OPENERS, rng)
        operator = _pick(OPERATORS[sign], rng)
        # Short: the running total is not repeated, "plus 4 is 21".
        stated = opener + str(total) + operator if opener else operator.lstrip()
        total = total + number if sign == "+" else total - number
        if not opener and rng.random() < step_error:
            total = _wrong(total, problem.steps[index + 1 :], rng)
        text += (SEPARATOR if index else "") + stated + str(number) + _pick(EQUALS, rng) + str(total)
    return text + _pick(CLOSERS, rng) + str(total) + END


def is_test(problem: Problem) -> bool:
    """Whether a problem belongs to the test split: one in ten, by a hash of its text, the same in every process."""
    return hashlib.sha256(problem.prompt.encode()).digest()[0] % 10 == 0


def draw(split: str, level: int, rng: random.Random) -> Problem:
    """Draw a problem of one level from one split."""
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test": got {split!r}. The arithmetic world has no other.')
    while True:
        drawn = problem(rng, level)
        if is_test(drawn) == (split == "test"):
            return drawn


def load_dataset(split: str, size: int | None = None, seed: int = 0) -> "Dataset":
    """Problems of one split, all different, levels taking turns.

    Args:
        split: "train" or "test". No problem is in both, whatever the seeds.
        size: rows; by default 2000 for train and 200 for test.
        seed: equal seeds give equal rows, and a larger `size` only appends.

    Returns:
        Columns `prompt` (text), `solution` (the answer as text, "17") and `level` (1 to 5).

    Raises:
        ValueError: for another split, or for more rows than there are different problems.
    """
    from datasets import Dataset

    wanted = size if size is not None else {"train": 2000, "test": 200}.get(split, 0)
    rng = random.Random(f"{split} {seed}")
    seen: set[Problem] = set()
    rows: list[dict[str, Any]] = []
    for index in range(wanted):
        level = LEVELS[index % len(LEVELS)]
        for _ in range(1000):
            drawn = draw(split, level, rng)
            if drawn not in seen:
                break
        else:
            raise ValueError(
                f"size must not exceed the different problems: got {size}, level {level} of the {split} split "
                f"is used up after {index} rows. Ask for fewer rows."
            )
        seen.add(drawn)
        rows.append({"prompt": drawn.prompt, "solution": str(drawn.answer), "level": level})
    return Dataset.from_list(rows)


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per number 0..99 and per phrase of this world; any other ASCII text goes character by character.

    Decoding gives the text back exactly (for ASCII). There is no beginning-of-sequence token: all prompts begin alike.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    phrases = [QUESTION, ASK, SEPARATOR, END, *OPENERS, *EQUALS, *CLOSERS]
    for ways in OPERATORS.values():
        phrases += [*ways, *(way.lstrip() for way in ways)]
    # The longest match first, or " - " would be cut at its space.
    phrases = sorted({phrase for phrase in phrases if phrase}, key=lambda phrase: (-len(phrase), phrase))
    numbers = [str(number) for number in range(MAX_TOTAL + 1)]
    characters = [chr(code) for code in (9, 10, 13, *range(32, 127))]
    tokens = list(dict.fromkeys([PAD, EOS, UNKNOWN, *numbers, *phrases, *characters]))

    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN))
    pattern = "|".join([*(re.escape(phrase) for phrase in phrases), "[1-9][0-9]", r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


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
    made_of = [dataclasses.asdict(settings), MAX_OPERAND, OPERATORS, OPENERS, FIRST_SHORT_STEP, EQUALS, CLOSERS]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    folder = root / f"arithmetic-{key}"
    if folder.is_dir():  # needs no lock, nor a writable cache: a folder of this name is always whole
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if not folder.is_dir():
                _build(settings, folder)
    except OSError as error:
        raise OSError(
            f"The base model of {NAME} needs a folder that can be written: {root} cannot ({error}). "
            "Set TRL_MINER_CACHE to one that can."
        ) from error
    return folder


def _build(settings: BaseModelSettings, folder: Path) -> None:
    """Train beside `folder` and move in place; the caller holds the lock."""
    for left_behind in folder.parent.glob(f"{folder.name}.building-*"):  # by a build that was killed
        shutil.rmtree(left_behind, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
    try:
        print(
            f"trl_miner: no base model of {NAME} in {folder.parent} yet; training one "
            f"({settings.steps} steps, about a minute, only this once).",
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
    from tqdm import tqdm

    command = [
        sys.executable,
        "-m",
        "trl_miner.data.arithmetic",
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
        tqdm(total=settings.steps, unit="step", disable=None) as bar,  # disable=None: on a terminal only
    ):
        try:
            for line in process.stdout or ():
                if line.startswith(PROGRESS):
                    bar.update(int(line.removeprefix(PROGRESS)) - bar.n)
                else:
                    last_lines.append(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(
            f"Training the base model of {NAME} failed with exit status {process.returncode}. "
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

    class Progress(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 10 == 0:
                # Also how an orphan ends: its parent is gone, so printing fails.
                print(f"{PROGRESS}{state.global_step}", flush=True)

    print(f"{PROGRESS}0", flush=True)
    disable_progress_bars()
    set_seed(settings.seed)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
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
        for number in range(MAX_TOTAL + 1):
            token = tokenizer.convert_tokens_to_ids(str(number))
            model.get_input_embeddings().weight[token] = tens[number // 10] + ones[number % 10]
    rng = random.Random(settings.seed)
    drawn = [draw("train", LEVELS[index % len(LEVELS)], rng) for index in range(settings.rows)]
    rows = [{"prompt": chain.prompt, "completion": solution(chain, rng, settings.step_error)} for chain in drawn]
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
            callbacks=[Progress()],
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


def _pick(ways: Mapping[str, float], rng: random.Random) -> str:
    return rng.choices(list(ways), weights=list(ways.values()))[0]


def _wrong(total: int, remaining: tuple[tuple[str, int], ...], rng: random.Random) -> int:
    """A wrong result, not far off, that keeps all later totals within 0..99."""
    shifts = [0]
    for sign, number in remaining:
        shifts.append(shifts[-1] + (number if sign == "+" else -number))
    low, high = -min(shifts), MAX_TOTAL - max(shifts)
    return rng.choice([slip for slip in range(total - 10, total + 11) if low <= slip <= high and slip != total])


if __name__ == "__main__":
    _train(BaseModelSettings(**json.loads(sys.argv[1])), Path(sys.argv[2]))
