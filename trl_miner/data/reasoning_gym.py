"""Problems of reasoning-gym (https://github.com/open-thought/reasoning-gym), made where they are needed.

`reasoning_gym/chain_sum` is a family of problems, `reasoning_gym` alone a mixture of several. A problem belongs to
the test split or to that of training by a hash of its question, so that none is in both, whatever the seeds.

A process of its own makes the problems: some families iterate over sets of text, so that they depend on the seed of
Python's hashes, which is fixed there; and the training's generators stay as they are. Equal arguments give equal
problems, on every machine and after every restart, as long as reasoning-gym has the same version.
"""

import dataclasses
import importlib.util
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import yaml

from ..importing import did_you_mean
from ..progress import Progress
from .prompts import PromptForm, build_prompt
from .reading import Row

NAME = "reasoning_gym"
TRAIN_SIZE, TEST_SIZE = 1000, 200
# Families that accept many answers name one of them here.
_EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")
_TEST_SHARE = 4  # one problem in so many is a test problem
_CHUNK = 500  # problems that a family makes for one seed
_PATIENCE = 1000  # draws for one new problem
_MAX_LEVELS = 10


@dataclasses.dataclass(frozen=True)
class Part:
    """A family with its own settings, and its share of a mixture."""

    name: str
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weight: float = 1.0


def is_task(name: str | None) -> bool:
    """Whether a data set or a benchmark is made by reasoning-gym."""
    return name is not None and (name == NAME or name.startswith(f"{NAME}/"))


def read_parts(name: str, config: Mapping[str, Any] | str | None, tasks: Sequence[Any] | None) -> list[Part]:
    """Return the families that a recipe asks for; the arguments are its `dataset_name`, `task_config` and `tasks`."""
    family = name.partition("/")[2]
    if isinstance(config, str):  # from a command line
        config = yaml.safe_load(config)
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"task_config must hold settings of the family: got {config!r}. Example: {{max_terms: 3}}.")
    if family and tasks:
        raise ValueError(
            f"tasks is for a mixture: got it with dataset_name {name}. Set dataset_name: {NAME}, or leave tasks out."
        )
    if family:
        return [Part(family, config or {})]
    if config or not tasks:
        raise ValueError(
            f"dataset_name: {NAME} is a mixture and needs `tasks`, a list of {{name, weight, config}}: got "
            f"{'task_config' if config else 'none'}. Or name one family, such as dataset_name: {NAME}/chain_sum."
        )
    return [_read_part(task) for task in tasks]


def _read_part(task: Any) -> Part:
    known = {field.name for field in dataclasses.fields(Part)}
    example = "Example: {name: chain_sum, weight: 2, config: {max_terms: 3}}."
    if not isinstance(task, Mapping) or not task.keys() <= known or not isinstance(task.get("name"), str):
        raise ValueError(f"Each of tasks must have a name, and may have weight and config: got {task!r}. {example}")
    weight, config = task.get("weight", 1.0), task.get("config") or {}
    if not isinstance(weight, (int, float)) or not 0 < weight < float("inf") or not isinstance(config, Mapping):
        raise ValueError(f"weight must be a positive number, and config a mapping: got {task!r}. {example}")
    return Part(task["name"].removeprefix(f"{NAME}/"), config, float(weight))


def benchmark_parts(name: str) -> list[Part]:
    """Return the family of a benchmark, such as `reasoning_gym/chain_sum:max_terms=3,max_digits=1`."""
    family, _, text = name.partition("/")[2].partition(":")
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not family or not all(key and equals for key, equals, _ in pairs):
        raise ValueError(
            f"A benchmark of reasoning-gym must be {NAME}/FAMILY, or {NAME}/FAMILY:KEY=VALUE,KEY=VALUE with settings "
            f"of the family: got {name!r}. Example: {NAME}/chain_sum:max_terms=3."
        )
    return [Part(family, {key.strip(): yaml.safe_load(value) for key, _, value in pairs})]


def benchmark_name(part: Part) -> str:
    """Return the name of a family's benchmark, as `benchmark_parts` reads it."""
    settings = ",".join(f"{key}={json.dumps(value)}" for key, value in part.config.items())
    return f"{NAME}/{part.name}" + (f":{settings}" if settings else "")


def make_rows(parts: Sequence[Part], split: str, size: int, seed: int) -> list[Row]:
    """Make different problems of one split.

    Args:
        parts: The families; each row is of one of them, by their weights.
        split: "train" or "test".
        size: The number of problems. A larger one only appends.
        seed: Decides which problems.

    Returns:
        Rows with `id`, `question`, `solution` (one right answer), `level` and `task`, the problem as text for its
        scorer. The level holds the family, if there are several, and what the problem says of its own difficulty
        ("num_terms 3"); it may be None.

    Raises:
        ValueError: An unknown family or setting, a wrong value, or fewer different problems than asked for.
        ImportError: reasoning-gym is not installed.
    """
    if size < 1:
        raise ValueError(f"task_size must be at least 1: got {size}. The default is {TRAIN_SIZE}.")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ImportError(
            f"{NAME}/... needs the package reasoning-gym, which is not installed. Run: pip install 'trl_miner[tasks]'"
        )
    request = {"parts": [dataclasses.asdict(part) for part in parts], "split": split, "size": size, "seed": seed}
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-c", "from trl_miner.data.reasoning_gym import main; main()"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
    rows: list[Row] = []
    with (
        Progress(f"making {split} problems", size, unit="problems", leave=False) as progress,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            json.dump(request, process.stdin, default=str)
            process.stdin.close()
            for line in process.stdout:
                rows.append(json.loads(line))
                progress.advance()
        except BaseException:  # Ctrl-C
            process.kill()
            raise
    if rows and "error" in rows[-1]:
        raise ValueError(rows[-1]["error"])
    if process.returncode or len(rows) != size:
        raise RuntimeError(
            f"reasoning-gym must make {size} problems: it made {len(rows)} and ended with status "
            f"{process.returncode}. Its output on stderr says why."
        )
    return rows


def load_dataset(parts: Sequence[Part], split: str, size: int, seed: int, form: PromptForm) -> Any:
    """Return the problems as a data set with `prompt`, `answer`, `task` and, where there are levels, `level`.

    There is no column `solution`: `math_reward` would look for a box, which the prompt does not ask for.
    """
    from datasets import Dataset

    rows = make_rows(parts, split, size, seed)
    columns = {
        "prompt": [build_prompt("task", row["question"], form=form) for row in rows],
        "answer": [row["solution"] for row in rows],
        "task": [row["task"] for row in rows],
    }
    levels = [row["level"] for row in rows]
    return Dataset.from_dict(columns | ({"level": levels} if None not in levels else {}))


# What runs in the process that makes the problems


def main() -> None:
    """Read a request from stdin, and write a row of JSON per problem, or a last one with the error."""
    out, sys.stdout = sys.stdout, sys.stderr  # some families print
    request = json.load(sys.stdin)
    parts = [Part(**part) for part in request.pop("parts")]
    try:
        for row in _draw_rows(parts, **request):
            print(json.dumps(row), file=out, flush=True)
    except ValueError as error:
        print(json.dumps({"error": str(error)}), file=out)


def _draw_rows(parts: Sequence[Part], split: str, size: int, seed: int) -> Iterator[Row]:
    create = [_check(part) for part in parts]  # all of them, before any draws
    streams = [_stream(part, create[place], f"{split} {seed} {place}") for place, part in enumerate(parts)]
    rng = random.Random(f"{split} {seed}")
    seen: set[str] = set()
    for index in range(size):
        (place,) = rng.choices(range(len(parts)), weights=[part.weight for part in parts])
        part = parts[place]
        for entry in islice(streams[place], _PATIENCE):
            question = entry["question"]
            is_test = zlib.crc32(question.encode()) % _TEST_SHARE == 0
            if question not in seen and is_test == (split == "test"):
                break
        else:
            raise ValueError(
                f"There must be as many different problems as are asked for: got {size} for the {split} split, and "
                f"{benchmark_name(part)} has no new one after {index}. Ask for fewer (task_size, held_out), or "
                f"let its settings vary more."
            )
        seen.add(question)
        yield _row(part, entry, f"{split}-{seed}-{index}", len(parts) > 1)


def _stream(part: Part, create: Callable[[int], Any], seed: str) -> Iterator[dict[str, Any]]:
    """Yield a family's problems without an end."""
    for chunk in count():
        number = random.Random(f"{seed} {chunk}").getrandbits(31)
        try:
            yield from create(number)
        except Exception as error:  # families raise anything for settings that they do not check
            raise ValueError(_wrong_config(part, error)) from error


def _check(part: Part) -> Callable[[int], Any]:
    """Return a function of the seed that makes the family, once its name and its settings are known to be right."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if part.name == "composite":
        raise ValueError(f"{NAME}/composite is a mixture: use dataset_name: {NAME} with `tasks`.")
    if part.name not in DATASETS:
        raise ValueError(
            f"A task must be one of reasoning-gym's families: got {part.name!r}."
            + (did_you_mean(part.name, DATASETS) or f" There are {', '.join(sorted(DATASETS))}.")
        )
    known = {field.name for field in dataclasses.fields(DATASETS[part.name][1])} - {"seed", "size"}
    for key in part.config:
        if key not in known:
            hint = " task_seed and task_size set these." if key in ("seed", "size") else did_you_mean(key, known)
            raise ValueError(
                f"task_config of {NAME}/{part.name} must hold its settings: got {key!r}, and they are "
                f"{', '.join(sorted(known))}.{hint}"
            )

    def create(seed: int) -> Any:
        return reasoning_gym.create_dataset(part.name, size=_CHUNK, seed=seed, **part.config)

    return create


def _wrong_config(part: Part, error: Exception) -> str:
    said = str(error).strip().rstrip(".") or type(error).__name__
    return (
        f"task_config of {NAME}/{part.name} must hold values that the family takes: got {dict(part.config)}, and it "
        f"says: {said}. Change it."
    )


def _row(part: Part, entry: Mapping[str, Any], name: str, is_mixture: bool) -> Row:
    metadata = _plain(entry["metadata"])
    answer = entry["answer"]
    if answer is None:
        example = next((metadata[key] for key in _EXAMPLES if key in metadata), None)
        if example is None:
            raise ValueError(
                f"A task must give an answer, with which its scorer can be checked: {NAME}/{part.name} gives none. "
                f"Choose another family."
            )
        answer = example if isinstance(example, str) else json.dumps(example)
    task = {
        **{"family": part.name, "config": dict(part.config), "question": entry["question"]},
        **{"answer": _plain(entry["answer"]), "metadata": metadata},
    }
    level = " ".join([*([part.name] if is_mixture else []), *_difficulty(metadata)])
    return {
        **{"id": f"{part.name}-{name}", "question": entry["question"], "solution": str(answer)},
        **{"level": level or None, "task": repr(task)},
    }


def _difficulty(metadata: Mapping[str, Any]) -> list[str]:
    """Return the first setting that varies over a few whole numbers, with the problem's own: ["num_terms 3"]."""
    difficulty = metadata.get("difficulty")
    for key, between in difficulty.items() if isinstance(difficulty, dict) else ():
        own = metadata.get(key)
        if (
            isinstance(between, (list, tuple))
            and [type(end) for end in (*between, own)] == [int] * 3
            and 0 < between[1] - between[0] < _MAX_LEVELS
        ):
            return [f"{key.replace('_', ' ')} {own}"]
    return []


def _plain(value: Any) -> Any:
    """Return a value as Python's own types, which a literal can hold: numpy has its own text and numbers."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
