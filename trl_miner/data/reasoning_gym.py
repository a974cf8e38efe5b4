"""Problems of reasoning-gym (https://github.com/open-thought/reasoning-gym), made where they are
needed.

`reasoning_gym/chain_sum` is a family of problems, `reasoning_gym` alone a mixture of several. A
problem belongs to the test split or to that of training by a hash of its question, so that none is
in both, whatever the seeds.

A process of its own makes the problems: some families iterate over sets of text, so that they
depend on the seed of Python's hashes, which is fixed there; and the training's generators stay as
they are. Equal arguments give equal problems, on every machine and after every restart, as long as
reasoning-gym has the same version.
"""

import dataclasses
import importlib.util
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ..common.importing import did_you_mean
from ..common.progress import Progress
from ..grading import tasks
from ..runs.files import parse_yaml
from .prompts import PromptForm, build_prompt
from .reading import Row

NAME = "reasoning_gym"
TRAIN_SIZE, TEST_SIZE = 1000, 200
# Families that accept many answers name one of them here.
_EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")
_TEST_SHARE = 4  # one problem in so many is a test problem
_PATIENCE = 1000  # draws for one new problem
_MAX_LEVELS = 10


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Part:
    """A family with its own settings, and its share of a mixture."""

    name: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


_PARTS = TypeAdapter(list[Part])


def is_task(name: str | None) -> bool:
    """Whether a data set or a benchmark is made by reasoning-gym."""
    return name is not None and (name == NAME or name.startswith(f"{NAME}/"))


def read_parts(
    name: str, config: Mapping[str, Any] | str | None, tasks: Sequence[Any] | None
) -> list[Part]:
    """Return the families that a recipe asks for; the arguments are its `dataset_name`,
    `task_config` and `tasks`."""
    family = name.partition("/")[2]
    if bool(family) == bool(tasks) or (tasks and config):
        raise ValueError(
            f"dataset_name must be {NAME}/FAMILY, such as {NAME}/chain_sum, which takes"
            f" task_config; or {NAME}, which needs tasks, a list of {{name, weight, config}}: got"
            f" {name} with task_config {config} and tasks {tasks}."
        )
    if isinstance(config, str):  # from a command line
        try:
            config = parse_yaml(config)
        except ValueError as error:
            raise ValueError(f"task_config must be YAML: {error}. Correct it.") from error
    try:
        return _PARTS.validate_python(
            [{"name": family, "config": config or {}}] if family else tasks
        )
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(
            f"{'task_config' if family else 'tasks'}: {'.'.join(map(str, fault['loc']))}:"
            f" {fault['msg']}, got {fault['input']!r}. Example of a task: {{name: chain_sum,"
            " weight: 2, config: {max_terms: 3}}."
        ) from error


def benchmark_parts(name: str) -> list[Part]:
    """Return the family of a benchmark, such as
    `reasoning_gym/chain_sum:max_terms=3,max_digits=1`."""
    family, _, text = name.partition("/")[2].partition(":")
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not family or not all(key and equals for key, equals, _ in pairs):
        raise ValueError(
            f"{name!r} must be {NAME}/FAMILY, or with settings such as"
            f" {NAME}/chain_sum:max_terms=3."
        )
    return [Part(family, {key.strip(): parse_yaml(value) for key, _, value in pairs})]


def benchmark_name(part: Part) -> str:
    """Return the name of a family's benchmark, as `benchmark_parts` reads it."""
    settings = ",".join(f"{key}={json.dumps(value)}" for key, value in part.config.items())
    return f"{NAME}/{part.name}" + (f":{settings}" if settings else "")


def make_rows(parts: Sequence[Part], split: str, size: int, seed: int) -> list[Row]:
    """Make different problems of one split, each of one of the families, by their weights.

    A larger `size` only appends. The rows have `id`, `question`, `solution` (one right answer),
    `level` and `task`, the problem as text for its scorer. The level holds the family, if there are
    several, and what the problem says of its own difficulty ("num_terms 3"); it may be None.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ImportError(
            f"{NAME}/... needs the package reasoning-gym, which is not installed. Run: pip install"
            " 'trl_miner[tasks]'"
        )
    request = {
        "parts": [dataclasses.asdict(part) for part in parts],
        "split": split,
        "size": size,
        "seed": seed,
    }
    command = [sys.executable, "-P", "-c", "from trl_miner.data.reasoning_gym import main; main()"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONHASHSEED": "0",
    }
    with Progress(f"making {size} {split} problems", unit="", leave=False):
        made = subprocess.run(
            command,
            input=json.dumps(request, default=str),
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )
    if made.returncode:
        raise RuntimeError(
            f"reasoning-gym ended with status {made.returncode}. Its output on stderr says why."
        )
    rows = json.loads(made.stdout)
    if isinstance(rows, str):
        raise ValueError(rows)
    return list(rows)


def load_dataset(parts: Sequence[Part], split: str, size: int, seed: int, form: PromptForm) -> Any:
    """Return the problems as a data set with `prompt`, `answer`, `task` and, where there are
    levels, `level`.

    There is no column `solution`: `math_reward` would look for a box, which the prompt does not ask
    for.
    """
    from datasets import Dataset

    rows = make_rows(parts, split, size, seed)
    prompts = [build_prompt("task", row["question"], form=form) for row in rows]
    columns = {"answer": "solution", "task": "task"} | (
        {"level": "level"} if all(row["level"] for row in rows) else {}
    )
    values = {name: [row[column] for row in rows] for name, column in columns.items()}
    return Dataset.from_dict({"prompt": prompts, **values})


# What runs in the process that makes the problems


def main() -> None:
    """Read a request from stdin, and write the rows as JSON, or the text of an error."""
    out, sys.stdout = sys.stdout, sys.stderr  # some families print
    request = json.load(sys.stdin)
    parts = _PARTS.validate_python(request.pop("parts"))
    try:
        json.dump([*draw_rows(parts, **request)], out)
    except ValueError as error:
        json.dump(str(error), out)


def draw_rows(parts: Sequence[Part], split: str, size: int, seed: int) -> Iterator[Row]:
    """Yield what `make_rows` returns, made in this process."""
    streams = [_stream(part, f"{split} {seed} {place}") for place, part in enumerate(parts)]
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
                f"{benchmark_name(part)} has no new one after {index} problems of the {split}"
                f" split: got {size}. Ask for fewer (task_size, held_out), or let its settings vary"
                " more."
            )
        seen.add(question)
        yield _row(part, entry, f"{split}-{seed}-{index}", len(parts) > 1)


def _stream(part: Part, seed: str) -> Iterator[dict[str, Any]]:
    """Yield a family's problems without an end."""
    from reasoning_gym.factory import DATASETS

    for chunk in count():
        number = random.Random(f"{seed} {chunk}").getrandbits(31)
        try:
            for index, entry in enumerate(tasks.make_family(part.name, part.config, number)):
                task = tasks.to_text(part.name, part.config, number, index, entry["question"])
                yield {**entry, "task": task}
        except Exception as error:  # families raise anything for settings that they do not check
            if part.name not in DATASETS:
                hint = did_you_mean(part.name, DATASETS)
                raise ValueError(f"reasoning-gym has no family {part.name!r}.{hint}") from error
            raise ValueError(
                f"{NAME}/{part.name} with the settings {part.config} cannot be made"
                f" ({type(error).__name__}: {error}). Change task_config or tasks."
            ) from error


def _row(part: Part, entry: Mapping[str, Any], name: str, is_mixture: bool) -> Row:
    metadata, answer = entry["metadata"], entry["answer"]
    if answer is None:
        example = next((metadata[key] for key in _EXAMPLES if key in metadata), None)
        if example is None:
            raise ValueError(
                f"A task must give an answer: {NAME}/{part.name} gives none. Choose another family."
            )
        answer = example if isinstance(example, str) else json.dumps(example)
    level = " ".join([*([part.name] if is_mixture else []), *_difficulty(metadata)])
    return {
        "id": f"{part.name}-{name}",
        "question": entry["question"],
        "solution": str(answer),
        "level": level or None,
        "task": entry["task"],
    }


def _difficulty(metadata: Mapping[str, Any]) -> list[str]:
    """Return the first setting that varies over a few whole numbers, with the problem's own:
    ["num_terms 3"]."""
    difficulty = metadata.get("difficulty")
    for key, between in difficulty.items() if isinstance(difficulty, dict) else ():
        value = metadata.get(key)
        is_range = (
            isinstance(between, (list, tuple))
            and [type(end) for end in (*between, value)] == [int] * 3
        )
        if is_range and 0 < between[1] - between[0] < _MAX_LEVELS:
            return [f"{key.replace('_', ' ')} {value}"]
    return []
