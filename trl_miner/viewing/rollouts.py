"""The rollouts of any GRPO run as tidy frames, file by file, so that a long run fits into memory.

- A run of TRL with `log_completions=True` writes `completions/completions_STEP.parquet`: step,
  prompt, completion, a column for each reward function and for each `log_extra`, advantage. The
  rollouts of a prompt are neighbours, in the order of all processes.
- A table of completions that W&B keeps, `*.table.json`, has the same columns.
- Lines of JSON, of verl and of prime-rl among others: see `rollout_lines`. Files of evaluations
  are left out.
"""

import contextlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.progress import Progress
from ..runs.files import bounded_memory
from ..runs.history import has_state, read_state
from ..runs.records import number
from .rollout_lines import NAMES, REWARD, gold_text, message_text, rows_of

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = "step group prompt completion gold reward advantage length truncated".split()
HOW_TO_LOG = (
    "To see prompts and rollouts, train with log_completions=True in GRPOConfig (and"
    " logging_steps=1, as TRL writes the newest generation batch of each log)."
)
_LINES = 4096  # of JSON that are one frame
_NO_ROLLOUT = (ValueError, TypeError, AttributeError, KeyError, StopIteration, IndexError)
_SAMPLED_FILES = 20  # from which the size of the groups is found
_OTHER_LINES = {"prompt_ledger", "runs", "samples", "problems", "metrics"}  # of ours and prime-rl


class NoRolloutsError(ValueError):
    """No file of a run holds rollouts that can be read."""


@dataclass
class RolloutFiles:
    """The rollout files of a run; iterating reads them one by one, and adds to `notes`.

    Attributes:
        folder: The run folder, or the file.
        paths: The files, in the order of their steps.
        weights: The weight of each reward function, where it is known.
        num_generations: Rollouts of a prompt in TRL's tables. None: neighbours with the same prompt
            are a group.
        evaluated: Steps whose file TRL has overwritten with rollouts of an evaluation.
        notes: Sentences on what was left out.
        with_tokens: Whether frames have the columns "asked", the prompt as the file has it, and
            "tokens": see `rollout_lines`.
    """

    folder: Path
    paths: Sequence[Path]
    weights: Mapping[str, float] = field(default_factory=dict)
    num_generations: int | None = None
    evaluated: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list)
    with_tokens: bool = False
    _groups: int = 0
    _last: int | None = None  # the hash of the last generation batch

    def frames(self, *, quiet: bool = True) -> Iterator["DataFrame"]:
        """Yield frames with the columns `COLUMNS` and "reward:NAME" for each reward function.

        `group` is the same for the rollouts of one prompt in one generation batch, and no other's.
        `length` is in tokens where the file says so, else NaN.

        Raises:
            NoRolloutsError: No file holds rollouts of the training that can be read.
        """
        is_one, count = len(self.paths) == 1, 0
        total, unit = (None, "rollouts") if is_one else (len(self.paths), "files")
        with Progress("reading rollouts", total, unit=unit, quiet=quiet) as progress:
            for path in self.paths:
                for frame in self._read(path):
                    count += len(frame)
                    progress.update(len(frame) * is_one)
                    yield frame
                progress.update(not is_one)
        if not count:
            raise NoRolloutsError(
                " ".join([f"{self.folder} holds no rollouts that can be read.", *self.notes])
            )

    def _read(self, path: Path) -> Iterator["DataFrame"]:
        try:
            if path.suffix == ".jsonl":
                yield from self._lines(path)
            elif (table := self.batch(_read_table(path))) is not None:
                yield table
        except (ValueError, OSError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            self.notes.append(f"{path.name} is left out, as it cannot be read: {reason}.")

    def batch(self, table: "DataFrame") -> "DataFrame | None":
        """Return TRL's table of one generation batch; None: it is an evaluation, or was there
        before, as a batch that serves several optimizer steps is logged at each of them."""
        texts = [message_text(value) for value in table["prompt"]]
        answers = [message_text(value) for value in table["completion"]]
        # rewards too: a model that says the same again is graded again
        content = hash((*texts, *answers, *table.iloc[:, -1].tolist()))
        is_new, self._last = content != self._last, content
        step = int(table["step"].iloc[0]) if len(table) else 0
        if not is_new or step in self.evaluated or not len(table):
            return None
        names = self._functions(table)
        if not names:
            raise ValueError("it has no column of rewards, which are numbers beside the completion")
        sizes = _group_sizes(texts, self.num_generations)
        groups = self._groups + np.repeat(np.arange(len(sizes)), sizes)
        self._groups += len(sizes)
        rewards = table[names].astype(float)
        weights = [self.weights.get(name, 1.0) for name in names]
        total = (rewards * weights).sum(axis=1, min_count=1)
        advantage = table["advantage"] if "advantage" in table else math.nan
        golds = next((table[name] for name in NAMES["gold"] if name in table), [None] * len(table))
        found = table[["step"]].assign(
            group=groups, prompt=texts, completion=answers, gold=[*map(gold_text, golds)],
            reward=total, advantage=advantage, length=math.nan, truncated=math.nan,
        )  # fmt: skip
        if self.with_tokens:
            found = found.assign(asked=table["prompt"], tokens=None)
        return found.join(rewards.add_prefix(REWARD))

    def _functions(self, table: "DataFrame") -> list[str]:
        """Return the columns of reward functions: those that the log names, else all of floats."""
        if self.weights:
            return [name for name in self.weights if name in table]
        return [
            name
            for name in table
            if name not in ("step", "prompt", "completion", "advantage")
            and table[name].dtype.kind == "f"
        ]

    def _lines(self, path: Path) -> Iterator["DataFrame"]:
        import pandas as pd

        steps = re.findall(r"step_(\d+)", str(path)) or re.findall(r"\d+", path.name)
        step = int(steps[-1]) if steps and path != self.folder else 0
        damaged, rows = 0, list[dict[str, Any]]()
        with open(path, encoding="utf-8", errors="replace") as file:
            for place, line in enumerate(file):
                try:
                    rows += self._rows(json.loads(line), step, f"{path.name} {place}")
                except _NO_ROLLOUT:
                    damaged += bool(line.strip())
                if len(rows) >= _LINES:
                    yield pd.DataFrame(rows)
                    rows = []
        if rows:
            yield pd.DataFrame(rows)
        if damaged:
            name = path.relative_to(self.folder) if path != self.folder else path.name
            self.notes.append(f"{damaged} lines of {name} hold no rollout and are left out.")

    def _rows(self, record: Any, step: int, place: str) -> list[dict[str, Any]]:
        rows = rows_of(record, step, place)
        names = () if self.with_tokens else ("asked", "tokens")
        return [{name: row[name] for name in row if name not in names} for row in rows]


def find_rollouts(folder: str | Path, *, num_generations: int | None = None) -> RolloutFiles | None:
    """Return the rollout files of a run folder, or of a file; None: there are none.

    Without `num_generations` it is the largest size of groups that fits the neighbours with the
    same prompt, and the advantages, which are equal where rewards of a group are.
    """
    folder = Path(folder)
    found = _paths(folder)
    if not found:
        return None
    state = read_state(folder) if has_state(folder) else {}
    logs = [log for log in state.get("log_history") or () if isinstance(log, Mapping)]
    paths, notes = _of_this_run(found, state)
    evaluated = (int(log.get("step") or 0) for log in logs if "eval_reward" in log)
    files = RolloutFiles(
        folder, paths, _weights(logs), num_generations, frozenset(evaluated), notes
    )
    if paths[0].suffix != ".jsonl":
        files.num_generations = num_generations or _find_group_size(files)
        files.notes += _gaps(files)
    return files


def _step(path: Path) -> int:
    """Return the number in the name of a file; 0: it has none."""
    return int((re.findall(r"\d+", path.name) or [0])[-1])


def _of_this_run(
    paths: Sequence[Path], state: Mapping[str, Any]
) -> tuple[Sequence[Path], list[str]]:
    """Return the tables up to the last step that is planned, and say if there are others."""
    last = state.get("max_steps") or 0
    later = [path for path in paths if path.suffix == ".parquet" and 0 < last < _step(path)]
    if not later or len(later) == len(paths):
        return paths, []
    note = f"{len(later)} files are left out: the run has {last:.0f} steps, so they are another's."
    return [path for path in paths if path not in later], [note]


def _gaps(files: RolloutFiles) -> list[str]:
    """Say which batches of the training are not in TRL's tables."""
    steps = [*map(_step, files.paths)]
    apart = int(np.diff(steps).min()) if len(steps) > 2 else 1
    notes = [
        f"Rollouts were written every {apart} steps: what came between is not known here."
        " logging_steps=1 writes all."
    ] * (apart > 1)
    overwritten = files.evaluated.intersection(steps)
    return notes + [
        f"{len(overwritten)} files are left out, as TRL has written rollouts of an evaluation over"
        " those of the training."
    ] * bool(overwritten)


def is_rollout_file(path: Path) -> bool:
    """Return whether the first line of a file of JSON lines is a rollout, or a prompt with its."""
    try:
        with open(path, encoding="utf-8") as file:
            return bool(rows_of(json.loads(file.readline()), 0, ""))
    except (OSError, *_NO_ROLLOUT):
        return False


def read_rollouts(
    folder: str | Path, *, num_generations: int | None = None, quiet: bool = True
) -> "DataFrame":
    """Return the rollouts of a run as one tidy pandas frame, a row each, text included.

    Columns: "step"; "group", the same number for the rollouts of a prompt in one generation batch;
    "prompt", "completion" and "gold" as text; "reward", their weighted sum, NaN where no function
    gave one; "reward:NAME" of each function; "advantage"; "length" in tokens and "truncated" where
    they are recorded. `frame.attrs["notes"]` says what was left out.

    Raises:
        FileNotFoundError: The folder holds no rollouts of a known form.

    Example:
        rollouts = read_rollouts("my-grpo-run")
        rollouts.groupby("step")["reward"].mean()
    """
    import pandas as pd

    files = find_rollouts(folder, num_generations=num_generations)
    if files is None:
        raise FileNotFoundError(f"{folder} holds no rollouts. {HOW_TO_LOG}")
    frame = pd.concat(files.frames(quiet=quiet), ignore_index=True)
    frame.attrs["notes"] = files.notes
    return frame


# The traces are prime-rl's; "effective" has no prompts without a gradient.
_PATTERNS = """
    completions/completions_*.parquet completions_*.parquet
    **/step_*/train/all/traces.jsonl **/step_*/train/effective/traces.jsonl
    **/step_*/train_rollouts*.jsonl *.jsonl **/completions*.table.json
    """.split()


def rows_of_groups(
    folder: Path, groups: Collection[int], *, with_tokens: bool = False, quiet: bool = True
) -> "DataFrame":
    """Return the rollouts of some groups, see `RolloutFiles.frames`."""
    import pandas as pd

    files = find_rollouts(folder)
    if files is None:
        raise FileNotFoundError(f"{folder} holds no rollouts. {HOW_TO_LOG}")
    files.with_tokens = with_tokens
    frames = files.frames(quiet=quiet)
    return pd.concat([frame[frame["group"].isin(groups)] for frame in frames], ignore_index=True)


def _paths(folder: Path) -> list[Path]:
    """Return the rollout files of the first form that a folder has, by their steps."""
    if folder.is_file():
        known = folder.suffix in (".jsonl", ".parquet") or folder.name.endswith(".table.json")
        return [folder] * (known and folder.stem not in _OTHER_LINES)
    for pattern in _PATTERNS:
        paths = [path for path in folder.glob(pattern) if path.stem not in _OTHER_LINES]
        if paths:  # 2.jsonl comes before 10.jsonl
            return sorted(
                paths, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))] or [0]
            )
    return []


def _read_table(path: Path) -> "DataFrame":
    import pandas as pd

    if path.suffix == ".json":
        content = json.loads(path.read_text(encoding="utf-8"))
        return pd.DataFrame(content["data"], columns=content["columns"])
    with bounded_memory(path):
        return pd.read_parquet(path)


def _find_group_size(files: RolloutFiles) -> int | None:
    """Return the number of rollouts of a prompt: a divisor of all runs of the same prompt, the
    largest one with which equal rewards of a group have equal advantages."""
    tables = [*_sampled_tables(files)]
    largest = math.gcd(*(size for table in tables for size in _runs(table)))
    if largest < 2:
        return None
    fitting = (
        size
        for size in range(largest, 1, -1)
        if largest % size == 0
        and all(_fits(table, files._functions(table), size) for table in tables)
    )
    return next(fitting, largest)


def _sampled_tables(files: RolloutFiles) -> Iterator["DataFrame"]:
    """Yield some tables of the training, spread over it; `frames` says which cannot be read."""
    places = np.unique(np.linspace(0, len(files.paths) - 1, _SAMPLED_FILES).astype(int))
    for place in places:
        with contextlib.suppress(ValueError, OSError, KeyError, IndexError):
            table = _read_table(files.paths[place])
            if table["step"].iloc[0] not in files.evaluated and "prompt" in table:
                yield table


def _runs(table: "DataFrame") -> list[int]:
    """Return how many neighbours have the same prompt."""
    return [len([*run]) for _, run in groupby(map(message_text, table["prompt"]))]


def _fits(table: "DataFrame", names: Sequence[str], size: int) -> bool:
    """Return whether in each group of `size` rows equal rewards have equal advantages."""
    if "advantage" not in table or not names:
        return True
    keys = [np.arange(len(table)) // size, *(table[name] for name in names)]
    by = table["advantage"].groupby(keys, dropna=False)
    return bool((by.max() - by.min() < 1e-3).all())


def _group_sizes(texts: Sequence[str], size: int | None) -> list[int]:
    runs = [len([*run]) for _, run in groupby(texts)]
    if size is None or any(run % size for run in runs):
        return runs
    return [size] * (len(texts) // size)


def _function_names(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for log in logs for key in log)
    return [found[1] for key in keys if (found := re.fullmatch("rewards/(.*)/mean", key))]


def _weights(logs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the weight of each reward function that a log names: the total is their weighted sum,
    in every log. Weights of 1 where the logs do not tell."""
    names = _function_names(logs)
    rows = [
        [number(log.get(f"rewards/{name}/mean")) for name in names] + [number(log.get("reward"))]
        for log in logs
    ]
    known = np.array([row for row in rows if None not in row], dtype=float)
    weights = np.ones(len(names))
    if len(known) > 1 and len(names):
        found, _, rank, _ = np.linalg.lstsq(known[:, :-1], known[:, -1], rcond=1e-6)
        error = np.abs(known[:, :-1] @ found - known[:, -1]).max()
        if rank == len(names) and error < 1e-3 * max(1.0, np.abs(known[:, -1]).max()):
            weights = found.round(4)
    return dict(zip(names, weights.tolist(), strict=True))
