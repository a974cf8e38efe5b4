"""The table of benchmarks, on small files in the real formats (`tests/benchmarks`), and the
prompts."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset

from trl_miner.data.benchmarks import BENCHMARKS, load, user_benchmark
from trl_miner.data.columns import pubmedqa_test_ids
from trl_miner.data.problems import Problem, accepts_gold, fingerprint, read_problems
from trl_miner.data.prompts import PromptForm, build_prompt, guess_style
from trl_miner.data.reading import find_files, load_data_set, read_file
from trl_miner.data.worlds import WORLDS

HERE = Path(__file__).parent
SMALL = HERE / "benchmarks"
EMBEDDED = {name.rpartition("/")[2]: world for name, world in WORLDS.items()}
DOWNLOADED = [name for name in BENCHMARKS if name not in EMBEDDED]


def small_path(name):
    (path,) = (path for path in SMALL.iterdir() if path.stem == name)
    return path


def small(name):
    """The benchmark with the small file's number of problems: each has three."""
    return dataclasses.replace(BENCHMARKS[name], problems=3)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# The table


@pytest.mark.parametrize("name", DOWNLOADED)
def test_a_small_file_in_the_real_format_loads(name):
    """Which also checks that the grader accepts its golds."""
    problems, record = load(small(name), small_path(name))
    assert len(problems) == 3
    assert len({problem.id for problem in problems}) == 3
    assert all(len(value) == 64 for value in record["files"].values())
    options = [problem.options for problem in problems]
    assert all(options) if BENCHMARKS[name].grader == "choice" else not any(options)


def test_fields_that_need_work():
    def of(name):
        return load(small(name), small_path(name))[0]

    assert of("aime24")[0].id == "2024-III-1" and of("aime24")[0].solution == "84"
    assert [problem.id for problem in of("aime25")] == ["aime25-0", "aime25-1", "aime25-2"]
    assert [problem.solution for problem in of("amc23")] == ["27", "-3", "3.5"]
    assert [problem.solution for problem in of("gsm8k")] == ["12", "1400", "-3"]
    assert of("hmmt25")[1].level == "Algebra, Number Theory"
    # 1602 has two answers
    assert [problem.id for problem in of("olympiadbench")] == ["1601", "1603", "1604"]
    assert [problem.solution for problem in of("olympiadbench")] == ["19", "n^2", "(2,2)"]
    assert of("olympiadbench")[2].context == "All lines lie in a plane."
    # the sixth is padding
    assert of("medqa")[0].options[-1] == "Vitamin K" and len(of("medqa")[0].options) == 5
    assert of("medmcqa")[1].solution == "D"  # cop 3
    assert len(pubmedqa_test_ids()) == 500
    first = of("pubmedqa")[0]
    assert (first.options, first.solution, first.context) == (
        ("yes", "no", "maybe"), "A", "Tea is drunk.\nAll stayed awake.",
    )  # fmt: skip
    # its choices are in `options`
    assert of("medxpertqa")[1].question == "Which bone carries the leg on the foot?"
    assert [(problem.solution, problem.level) for problem in of("mmlu_pro")] == [
        ("B", "biology"), ("J", "health"), ("A", "health"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_world_needs_no_download_and_its_prompt_is_the_worlds_own(name):
    problems, _ = load(BENCHMARKS[name])
    prompts = [build_prompt("verbatim", problem.question) for problem in problems]
    assert prompts == EMBEDDED[name].load_dataset("test")["prompt"][:]
    assert prompts[0].endswith(".\n")
    assert problems[0].level == str(EMBEDDED[name].LEVELS[0])


# The grader accepts its own golds, and only those


def test_a_letter_that_is_also_an_option_is_still_a_good_gold():
    # "The answer is B." names two options here, "(B) O" one.
    problem = Problem("1", "Which blood group?", "B", ("A", "O", "B", "AB"))
    assert accepts_gold("choice", [problem]) == [True]


@pytest.mark.parametrize(
    ("gold", "is_good"), [("B", True), ("b", True), ("Ice.", True), ("C", False), ("fur", False)]
)
def test_a_gold_of_choice_is_a_letter_or_the_text_of_an_option(gold, is_good):
    assert accepts_gold("choice", [Problem("", "What helps?", gold, ("hat", "ice"))]) == [is_good]


@pytest.mark.parametrize("others", [1, 0])
def test_golds_that_the_grader_refuses_are_named(tmp_path, others):
    """One of two is a warning, one of one an error."""
    rows = [{"problem": "Say it.", "answer": "\\frac{"}, {"problem": "1+1?", "answer": "2"}][
        : 1 + others
    ]
    said = rf"cannot for 1 of {1 + others}, problem 0 \(id mine-0\): '\\\\frac\{{'"
    named = (
        pytest.warns(UserWarning, match=said) if others else pytest.raises(ValueError, match=said)
    )
    with named:
        load(user_benchmark("mine", write(tmp_path / "a.jsonl", rows)))


# Errors name the row


def test_a_wrong_number_of_problems():
    with pytest.raises(ValueError, match="AIME2024 must have 30 problems: got 3 of 3 rows"):
        load(BENCHMARKS["aime24"], small_path("aime24"))
    with pytest.raises(ValueError, match="OlympiadBench must have 581 problems: got 3 of 4 rows"):
        load(BENCHMARKS["olympiadbench"], small_path("olympiadbench"))


DROPPED = object()


def changed(name, index, **values):
    rows = read_file(small_path(name))
    rows[index] |= values
    return [
        {column: value for column, value in row.items() if value is not DROPPED} for row in rows
    ]


@pytest.mark.parametrize(
    ("name", "index", "values", "message"),
    [
        ("aime24", 1, {"Answer": DROPPED}, r"AIME2024 needs the column Answer: row 1 has ID,"),
        ("aime24", 2, {"ID": "2024-III-1"}, "rows 0 and 2 are both 2024-III-1"),
        (
            "gsm8k",
            1,
            {"answer": "1400"},
            "row 1: answer must end with #### and the answer: got '1400'",
        ),
        ("math500", 1, {"problem": "  "}, r"row 1: a question must not be empty"),
        (
            "olympiadbench",
            0,
            {"final_answer": ["1", "2"]},
            r"row 0: final_answer must be a list of one",
        ),
        (
            "medmcqa",
            1,
            {"cop": -1},
            r"row 1: the reference answer must be one of 4 options: got 'index -1'",
        ),
        (
            "medmcqa",
            1,
            {"cop": 7},
            r"row 1: the reference answer must be one of 4 options: got 'index 7'",
        ),
        (
            "medxpertqa",
            0,
            {"options": {"A": "x", "C": "y"}},
            r"options must have the letters A, B, C, ...: got \['A'",
        ),
        ("pubmedqa", 2, {"final_decision": "perhaps"}, r"row 2: 'perhaps' is not in list"),
    ],
)
def test_bad_content(name, index, values, message):
    with pytest.raises(ValueError, match=message):
        read_problems(BENCHMARKS[name], changed(name, index, **values))


def test_what_datasets_loads_is_what_the_files_hold(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    shutil.copytree(SMALL / "aime25", tmp_path / "hub")
    configs = "".join(
        f"- config_name: {config}\n  data_files:\n  - split: test\n    path:"
        f" {config.replace('AIME', 'aime')}.jsonl\n"
        for config in BENCHMARKS["aime25"].configs
    )
    (tmp_path / "hub" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    # a folder is loaded by the same call
    on_hub = dataclasses.replace(small("aime25"), hub=str(tmp_path / "hub"))
    problems, record = load(on_hub)
    assert problems == load(small("aime25"), SMALL / "aime25")[0]
    assert record["configs"] == ["AIME2025-I", "AIME2025-II"] and record["commit"] is None
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    for missing, named in (
        (dataclasses.replace(on_hub, split="dev"), "split dev"),
        (BENCHMARKS["aime25"], "split test"),
    ):
        with pytest.raises(
            ValueError,
            match=rf"config AIME2025-I, {named}\) cannot be loaded. .*--local aime25=PATH",
        ):
            load(missing)


# Files


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    """As they are written: `datasets` would make dates of the texts in `c`."""
    rows = [
        {"a": "1", "b": "two\nlines\u2028here", "c": "2021-05-05"},
        {"a": "2", "b": 'a "quote", a comma', "c": "2020-01-01"},
    ]
    write(tmp_path / "a.jsonl", rows)
    (tmp_path / "b.json").write_text(json.dumps(rows))
    Dataset.from_list(rows).to_parquet(tmp_path / "c.parquet")
    content = 'a,b,c\n1,"two\nlines\u2028here",2021-05-05\n2,"a ""quote"", a comma",2020-01-01\n'
    (tmp_path / "d.csv").write_text(content, newline="")
    for name in ("a.jsonl", "b.json", "c.parquet", "d.csv"):
        assert (
            read_file(tmp_path / name)
            == rows
            == load_data_set(str(tmp_path / name))["train"].to_list()
        ), name


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_folder_has_the_splits_of_its_files_and_their_texts(tmp_path, suffix):
    """As in a file: `datasets` would make 7 of 007, nothing of NA, and dates of 2021-05-05 in
    JSON."""
    rows = {
        "train": [{"gold": gold} for gold in ("007", "1e3", "NA")],
        "test": [{"gold": "2021-05-05"}],
    }
    for split, own in rows.items():
        text = "".join(
            f"{row['gold']}\n" if suffix == "csv" else json.dumps(row) + "\n" for row in own
        )
        (tmp_path / f"{split}.{suffix}").write_text("gold\n" * (suffix == "csv") + text)
    assert {split: own.to_list() for split, own in load_data_set(str(tmp_path)).items()} == rows
    streamed = load_data_set(str(tmp_path), streaming=True)
    assert {split: [*own] for split, own in streamed.items()} == rows


def test_of_a_copied_repository_only_the_split_is_read(tmp_path):
    for name in (
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/test-0.parquet",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.name for file in find_files(tmp_path, "test")] == ["test-0.parquet"]
    assert len(find_files(tmp_path, "train")) == 2
    assert len(find_files(tmp_path, "validation")) == 3
    for name in ("own/medqa_train.jsonl", "own/medqa_test.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.name for file in find_files(tmp_path / "own", "train")] == ["medqa_train.jsonl"]
    with pytest.raises(ValueError, match="^File not found: .*nowhere"):
        find_files(tmp_path / "nowhere")


# One's own


@pytest.mark.parametrize(
    ("rows", "grader", "expected"),
    [
        (
            [{"q": "1+1?", "a": 2, "id": "x", "level": 3}, {"q": "2+2?", "a": "4", "id": "y"}],
            "math",
            [("x", "2", "3"), ("y", "4", None)],
        ),
        ([{"question": "1+1?", "answer": "It is\n#### 2"}], "math", [("mine-0", "2", None)]),
        (
            [{"question": "Where?", "answer": "There\n#### (3, 4)"}],
            "math",
            [("mine-0", "(3, 4)", None)],
        ),
        (
            [{"problem": "Odd?", "options": ["2", "3"], "answer": answer} for answer in ("B", 0)],
            "choice",
            [("mine-0", "B", None), ("mine-1", "A", None)],
        ),
    ],
)
def test_a_benchmark_of_ones_own(tmp_path, rows, grader, expected):
    mine = user_benchmark("mine", write(tmp_path / "a.jsonl", rows))
    assert (mine.grader, mine.kind, mine.title) == (grader, grader, "mine")
    assert [(problem.id, problem.solution, problem.level) for problem in load(mine)[0]] == expected


def test_a_name_that_is_taken_or_unfit_and_a_file_without_rows(tmp_path):
    empty = write(tmp_path / "a.jsonl", [])
    for name in ("aime24", "a/b", ""):
        with pytest.raises(ValueError, match="needs a new name of letters"):
            user_benchmark(name, empty)
    with pytest.raises(ValueError, match="has no rows"):
        user_benchmark("mine", empty)
    turns = [{"role": role, "content": "2+2?"} for role in ("user", "assistant", "user")]
    chat = write(tmp_path / "b.jsonl", [{"prompt": turns, "solution": "4"}])
    with pytest.raises(ValueError, match="must be text, or one message of the user: got 2"):
        load(user_benchmark("mine", chat))


def test_the_fingerprint_depends_on_all_that_matters_and_nothing_else():
    problem = Problem("1", "Which?", "A", ("x", "y"), level="1")
    assert fingerprint([problem]) == fingerprint([dataclasses.replace(problem, level="2")])
    others = [
        {"id": "2"},
        {"question": "What?"},
        {"solution": "B"},
        {"options": ("x", "z")},
        {"context": "It is."},
    ]
    assert (
        len(
            {
                fingerprint([problem]),
                *(fingerprint([dataclasses.replace(problem, **o)]) for o in others),
            }
        )
        == 6
    )
    two = [problem, dataclasses.replace(problem, id="2")]
    assert fingerprint(two) != fingerprint(two[::-1])


# Prompts, literally

INSTRUCTION = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves"
    " it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the"
    " answer. The assistant "
    r"thinks deeply and output the final answer within \boxed{}."
)


CHOICE = (
    "It was cold.\n\nWhat helps?\n\nA. hat\nB. ice\n\n"
    "Please reason step by step and output the final answer as `The answer is'"
)


@pytest.mark.parametrize(
    ("asked", "plain", "chat"),
    [
        (
            ("math", "1+1?"),
            f"{INSTRUCTION}\n\nUser: 1+1?\n\nAssistant:",
            [("system", INSTRUCTION), ("user", "1+1?")],
        ),
        (
            ("choice", "What helps?", ("hat", "ice"), "It was cold."),
            f"User: {CHOICE}\n\nAssistant:",
            [("user", CHOICE)],
        ),
        (("verbatim", "Compute 1 + 1.\n"), "Compute 1 + 1.\n", [("user", "Compute 1 + 1.\n")]),
    ],
)
def test_prompts(asked, plain, chat):
    assert build_prompt(*asked) == plain
    messages = build_prompt(*asked, form=PromptForm("chat"))
    assert [(message["role"], message["content"]) for message in messages] == chat


def test_a_choice_needs_options_with_letters():
    with pytest.raises(ValueError, match="needs 2 to 26 options, one letter each: got 1"):
        build_prompt("choice", "?", ("x",))


@pytest.mark.parametrize(
    ("name", "template", "style"),
    [
        ("Qwen/Qwen3-4B-Base", "{{ x }}", "plain"),
        ("meta-llama/Llama-3.1-8B-Instruct", "{{ x }}", "chat"),
        ("meta-llama/Llama-3.1-8B", None, "plain"),
        ("org/database-chat", "{{ x }}", "chat"),
        ("/models/base/Qwen3-4B", "{{ x }}", "chat"),
    ],
)
def test_the_style_is_guessed_from_template_and_name(name, template, style):
    assert guess_style(name, SimpleNamespace(chat_template=template)) == style
