"""Every JSON file of a run, a comparison and an evaluation, damaged in many ways: readers name it,
and never crash.

A reader may take a damaged file as far as it goes. It must not raise anything but the two kinds of
error that a command shows in one line, and that line must name the file.
"""

import copy
import json
import math
import shutil
from pathlib import Path

import pytest

from trl_miner.compare import Run
from trl_miner.runs import checkpoints, eval_folder, training_record
from trl_miner.runs.history import read_run
from trl_miner.runs.runs_file import read_runs, write_runs
from trl_miner.viewing.inputs import read_inputs

GOLDEN = Path(__file__).parent / "golden" / "run_folders"
VALUES = (
    None,
    "x",
    -1,
    0.5,
    2,
    10**400,
    math.nan,
    math.inf,
    True,
    "\ud800",
    [],
    [[]],
    {},
    "../../x",
    "gone",
)


def of_run(run):
    write_runs([read_run(run)], run / "again.jsonl")
    training_record.read_run_record(run)
    checkpoints.newest(run)


def resume(evaluated):
    eval_folder.write_settings(evaluated, eval_folder.read_settings(GOLDEN / "eval"))
    about = eval_folder.read_benchmark(GOLDEN / "eval" / "arithmetic")
    problems = eval_folder.read_problems(GOLDEN / "eval" / "arithmetic")
    eval_folder.read_problems(evaluated / "arithmetic")
    eval_folder.write_benchmark(evaluated / "arithmetic", about, problems)
    writer = eval_folder.SampleWriter(evaluated / "arithmetic" / "samples.jsonl")
    writer.finish([problem["id"] for problem in problems])


def of_compared(compared):
    Run(compared / "grpo" / "seed1", Path(), {}).result()
    read_inputs([compared])


READERS = {
    **dict.fromkeys(("run/training.json", "run/held_out.json", "run/trainer_state.json"), of_run),
    "run/checkpoint-4/trainer_state.json": of_run,
    **dict.fromkeys(
        ("compare/grpo/seed1/training.json", "compare/grpo/seed1/compared.json"), of_compared
    ),
    "compare/runs.jsonl": lambda compared: read_runs(compared / "runs.jsonl"),
    "eval/scores.json": lambda evaluated: read_inputs([evaluated]),
    **dict.fromkeys(("eval/settings.json", "eval/arithmetic/benchmark.json"), resume),
    **dict.fromkeys(("eval/arithmetic/problems.jsonl", "eval/arithmetic/samples.jsonl"), resume),
}


def broken(raw):
    """Yield names and contents of files that are no JSON, or JSON of another kind."""
    yield from {
        "empty": b"",
        "list": b"[]",
        "null": b"null",
        "a BOM": b"\xef\xbb\xbf" + raw,
    }.items()
    yield "deep", b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    yield "less deep", b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"
    yield "not UTF-8", raw.replace(b'"', b'"\xff', 1)
    yield "UTF-16", raw.decode().encode("utf-16")
    for part in range(1, 4):
        yield f"cut after {part}/4", raw[: len(raw) * part // 4]


def places(tree, place=()):
    """Yield the places of the values in a tree: of a list the first, and of deep objects the first
    three."""
    yield place
    if isinstance(tree, dict | list):
        for key in list(tree if isinstance(tree, dict) else range(min(1, len(tree))))[
            : 3 if place else None
        ]:
            yield from places(tree[key], (*place, key))


def mutated(tree):
    """Yield names and trees in which one value is of another type, or gone."""
    for number, place in enumerate(places(tree)):
        # each value at some place
        some = [VALUES[(number * 4 + step) % len(VALUES)] for step in range(4)]
        for value in some if place else VALUES:
            changed = {"": copy.deepcopy(tree)}
            *above, last = ("", *place)
            node = changed
            for key in above:
                node = node[key]
            node[last] = value
            if value == "gone":
                del node[last]
            yield f"{'.'.join(map(str, place))} = {value!a:.20}", changed.get("", {})


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_or_read_as_far_as_it_goes(tmp_path, name):
    kind, _, inner = name.partition("/")
    shutil.copytree(GOLDEN / kind, tmp_path / kind)
    path = tmp_path / kind / inner
    raw = path.read_bytes()
    first, end, rest = raw.partition(b"\n") if path.suffix == ".jsonl" else (raw, b"", b"")
    contents = list(broken(raw))
    contents += [
        (name, json.dumps(tree).encode() + end + rest) for name, tree in mutated(json.loads(first))
    ]
    for damage, content in contents:
        path.write_bytes(content)
        try:
            READERS[name](tmp_path / kind)
        except (ValueError, OSError) as error:
            others = ("must hold samples of one set of problems", "must hold a finished run")
            assert any(name in str(error) for name in (path.name, *others)), damage
            assert len(str(error)) < 600 and "\n" not in str(error), damage
        except Exception as error:
            pytest.fail(f"{name}, {damage}: {error!r}")
