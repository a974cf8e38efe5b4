"""Your own training set: columns, prompts, files and golds by the keys of a recipe."""

import csv
import json

import pytest
from datasets import Dataset
from trl import DatasetMixtureConfig, ModelConfig

from trl_miner.data.benchmarks import user_benchmark
from trl_miner.data.layout import Layout, arrange
from trl_miner.data.problems import read_problems
from trl_miner.data.prompt_form import read_form
from trl_miner.data.prompts import MATH_INSTRUCTION, PromptForm, build_prompt
from trl_miner.data.reading import read_file
from trl_miner.grading import grade
from trl_miner.recipe.parsing import MinerScriptArguments
from trl_miner.recipe.training_data import check_rows, held_out_problems, load_data
from trl_miner.train import main

GSM8K = [
    {
        "question": "Ann has 3 apples and buys 2. How many has she?",
        "answer": "3 + 2 = <<3+2=5>>5.\n#### 5",
    },
    {
        "question": "One costs 1,200 yen. What do two cost?",
        "answer": "2 * 1200 = 2400.\n#### 2,400",
    },
]
KEYS = {
    "dataset_prompt_column": "question",
    "dataset_solution_column": "answer",
    "answer_pattern": "#### (.+)",
}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(name, model="", mixture=None, **keys):
    args = MinerScriptArguments(dataset_name=name, **keys)
    return load_data(
        args, mixture or DatasetMixtureConfig(), ModelConfig(model_name_or_path=model or None)
    )


@pytest.mark.parametrize(
    ("name", "content", "golds"),
    [
        ("a.jsonl", None, ["5", "2,400"]),
        ("a.parquet", None, ["5", "2,400"]),
        (
            "a.csv",
            'question,answer\n"What is 2 + 2, exactly?",4\nWhat is half of 1?,0.5\n',
            ["4", "0.5"],
        ),
        ("a.csv", "question;answer\nWhat is half of 5?;2,5\n", ["2,5"]),
        ("a.csv", "\ufeffquestion\tanswer\nWhat is half of 5?\t2,5\n", ["2,5"]),
        ("a.tsv", "question\tanswer\tsource, page\nWhat is half of 5?\t2.5\ta\n", ["2.5"]),
        ("a.csv", f'question;answer;"a, b, c"\nHalf of 5?{" " * 200_000};2,5;d\n', ["2,5"]),
    ],
)
def test_a_file_needs_the_names_of_its_columns(tmp_path, name, content, golds):
    """A CSV column of numbers has one type; what separates columns is read from the header."""
    path = tmp_path / name
    if content:
        path.write_text(content, encoding="utf-8")
    else:
        (
            Dataset.from_list(GSM8K).to_parquet(path)
            if path.suffix == ".parquet"
            else write_rows(path, GSM8K)
        )
    rows = load(str(path), **KEYS if content is None else {**KEYS, "answer_pattern": None})["train"]
    assert rows["solution"][:] == golds
    first = read_file(path)[0]
    assert (
        rows[0]["prompt"] == build_prompt("math", first["question"])
        and {"question", "answer"} <= first.keys()
    )


def test_rows_may_lack_columns_and_mix_types(tmp_path):
    rows = [{"q": "1 + 1?", "a": 2}, {"q": "a or b?", "a": "b", "level": 1}]
    assert load(write_rows(tmp_path / "a.jsonl", rows))["train"].to_list() == [
        {**rows[0], "level": None},
        rows[1],
    ]


def test_a_whole_number_beside_a_half_stays_one(tmp_path):
    rows = [{"q": "1 + 1?", "a": 2}, {"q": "Half of 1?", "a": 0.5}]
    keys = dict(dataset_prompt_column="q", dataset_solution_column="a")
    assert load(write_rows(tmp_path / "a.jsonl", rows), **keys)["train"]["solution"][:] == [
        "2",
        "0.5",
    ]


def test_a_share_is_held_out_once_and_its_rows_may_mix_types(tmp_path):
    """Half of the half that was split off was scored: 2 of 4."""
    path = write_rows(
        tmp_path / "a.jsonl",
        [{"prompt": f"{n}?", "solution": [n, f"{n}/2"][n % 2]} for n in range(8)],
    )
    args = MinerScriptArguments(dataset_name=path, held_out=0.5)
    data = load_data(args, DatasetMixtureConfig(), ModelConfig(model_name_or_path=None))
    problems, _ = held_out_problems(args, data, None)
    assert problems["solution"][:] == data["test"]["solution"][:] and len(problems) == 4


def test_a_benchmark_that_is_trained_on_is_named(tmp_path, monkeypatch):
    """Messages are the same whatever the order of their fields."""
    message = {"content": "1 + 1?", "role": "user"}
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": [message], "solution": "2"}])
    problems = Dataset.from_list([{"prompt": [{"role": "user", "content": "1 + 1?"}]}])
    monkeypatch.setattr("trl_miner.recipe.training_data._benchmark", lambda *_: (problems, None))
    with pytest.warns(UserWarning, match="1 of 1 held-out problems are in the training data too"):
        held_out_problems(
            MinerScriptArguments(dataset_name=path, held_out="gsm8k"), load(path), None
        )


@pytest.mark.parametrize("prompt", [None, " ", [], ["1 + 1?"]])
def test_a_row_without_a_prompt_is_named(tmp_path, prompt):
    """It would end the run where it is drawn, perhaps hours later."""
    path = write_rows(
        tmp_path / "a.jsonl",
        [{"prompt": "1 + 1?", "solution": "2"}, {"prompt": prompt, "solution": "2"}],
    )
    with pytest.raises(
        ValueError,
        match="column prompt must hold text or messages.*1 of 2 have none, such as row 1",
    ):
        check_rows(MinerScriptArguments(dataset_name=path), load(path))


UNREADABLE = {
    "head.csv": ("question,answer\n", "head.csv has no rows"),
    "nothing.jsonl": ("", "nothing.jsonl has no rows"),
    "binary.csv": (bytes(range(128, 256)) * 9, "binary.csv cannot be read: its encoding is not"),
    "commas.csv": (
        "question,answer\n1 + 1?,2\n1,000 + 1?,1001\n",
        "commas.csv cannot be read: Expected 2 fields in line 3, saw 3 .* needs quotes",
    ),
    "open.csv": (
        'question,answer\n1?,1\n2?,"2\n3?,3\n4?,4\n',
        "open.csv cannot be read: EOF inside string starting at row 2 .* needs quotes",
    ),
    "twice.csv": (
        "question,answer,answer\n1?,1,2\n",
        "several columns have one name in question, answer, answer",
    ),
    "long.jsonl": (
        '{"a": 1%s}\n' % ("0" * 30),
        "long.jsonl cannot be read: .*Write large numbers as text",
    ),
    "broken.jsonl": ('{"a": 1}\n{"a": ', "broken.jsonl cannot be read: line 2 is no JSON"),
    "no.parquet": ("no", "no.parquet could not be loaded: Parquet file size is 2 bytes"),
    "numbers.json": ("[1]", "Row 0 of .*numbers.json must be an object: got int"),
    "deep.json": ("[" * 10**5, "deep.json cannot be read: .*recursion"),
    "deep.jsonl": (
        '{"a": ' + "[" * 500 + "]" * 500 + "}",
        "deep.jsonl cannot be read: .*recursion",
    ),
    "words.txt": (
        "words",
        "words.txt is no data file. Convert it to one that ends in .jsonl, .json, .csv, ",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, name):
    content, message = UNREADABLE[name]
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path / name))


def test_a_spreadsheets_utf_16_is_read_and_pythons_limit_of_cells_stays(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("question\tanswer\nWie groß?\t3\n", encoding="utf-16")
    limit = csv.field_size_limit()
    assert read_file(path) == [{"question": "Wie groß?", "answer": "3"}]
    assert csv.field_size_limit() >= limit  # Python reads with it which packages are there


def test_without_keys_a_data_set_stays_and_questions_for_ones_own_reward_are_asked_as_they_are():
    data = Dataset.from_list([{"q": "Say yes.", "prompt": "Compute 1 + 1.", "solution": "2"}])
    assert arrange(data, Layout(form=PromptForm("chat")), ["math_reward"]) is data
    assert arrange(data, Layout(prompt="q"), ["my_lib.mine"])["prompt"][:] == ["Say yes."]
    (messages,) = arrange(data, Layout(prompt="q", form=PromptForm("chat")), ["my_lib.mine"])[
        "prompt"
    ][:]
    assert messages == [{"role": "user", "content": "Say yes."}]


def test_questions_with_options_become_prompts_of_choice():
    data = Dataset.from_list([{"q": "Which is even?", "choices": ["1", "2"], "solution": "B"}])
    (row,) = arrange(data, Layout(prompt="q", options="choices"), ["choice_reward"])
    assert row["prompt"] == build_prompt("choice", "Which is even?", ["1", "2"])
    assert (row["options"], row["solution"]) == (["1", "2"], "B")


@pytest.mark.parametrize(
    ("gold", "letter"),
    # a number is an index from 0; a text is a letter, else the text of an option, else an index
    [
        (2, "C"),
        (2.0, "C"),
        ("2", "B"),
        ("0", "A"),
        ("d", "D"),
        ("3", "C"),
        (5, None),
        (1.5, None),
        ("x", None),
    ],
)
def test_training_and_evaluation_read_a_gold_of_choice_alike(tmp_path, gold, letter):
    row = {"question": "How many?", "options": ["1", "2", "3", "4"], "answer": gold}
    layout = Layout("question", "answer", first_option=0)  # which one row may not tell
    (arranged,) = arrange(Dataset.from_list([row]), layout, ["choice_reward"])
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row))
    trained = grade(
        "choice", [f"The answer is {letter}."], [arranged["solution"]], options=[row["options"]]
    )[0]
    by_column = grade("choice", [f"The answer is {letter}."], [gold], options=[row["options"]])[0]
    if letter is None:
        assert trained.reason == by_column.reason == "gold"
        with pytest.raises(
            ValueError, match="row 0: the reference answer must be one of 4 options"
        ):
            read_problems(user_benchmark("mine", path, {"first_option": 0}), [row])
    else:
        assert trained.is_correct and by_column.is_correct
        assert (
            read_problems(user_benchmark("mine", path, {"first_option": 0}), [row])[0].solution
            == letter
        )


@pytest.mark.parametrize(
    ("form", "prompt"),
    [
        (
            PromptForm("plain", template="Question: {question}\nAnswer:"),
            "Question: 1 + 1?\nAnswer:",
        ),
        (PromptForm("plain", "Be brief.", "{question} ="), "Be brief.\n\n1 + 1? ="),
        (PromptForm("plain", "Be brief."), "Be brief.\n\nUser: 1 + 1?\n\nAssistant:"),
        (PromptForm("plain"), f"{MATH_INSTRUCTION}\n\nUser: 1 + 1?\n\nAssistant:"),
        (PromptForm("chat", "Be brief."), [("system", "Be brief."), ("user", "1 + 1?")]),
        (
            PromptForm("chat", template=r"{question} Use \boxed{}."),
            [("user", r"1 + 1? Use \boxed{}.")],
        ),
    ],
)
def test_the_form_of_a_prompt(form, prompt):
    built = build_prompt("math", "1 + 1?", form=form)
    assert (
        built if isinstance(built, str) else [(m["role"], m["content"]) for m in built]
    ) == prompt


def test_a_stream_is_read_as_well(tmp_path):
    path = write_rows(tmp_path / "train.jsonl", GSM8K)
    assert [row["solution"] for row in load(path, dataset_streaming=True, **KEYS)["train"]] == [
        "5",
        "2,400",
    ]


def test_a_mixture_is_trls_own_with_shares(tmp_path):
    """2 rows of 24 and 24 of 24 at equal shares: the larger set gives 2 rows."""
    paths = [write_rows(tmp_path / f"{size}.jsonl", GSM8K * (size // 2)) for size in (2, 24)]
    entries = [{"path": "json", "data_files": path, "fraction": 0.5} for path in paths]
    rows = load(None, mixture=DatasetMixtureConfig(datasets=entries), **KEYS)["train"]
    assert len(rows) == 4 and set(rows["solution"]) == {"5", "2,400"}
    with pytest.raises(ValueError, match="datasets must be given without dataset_name"):
        load(paths[0], mixture=DatasetMixtureConfig(datasets=entries), **KEYS)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {**KEYS, "dataset_prompt_column": "problem"},
            "dataset_prompt_column must name a column: got 'problem', and",
        ),
        (
            {**KEYS, "dataset_solution_column": "gold"},
            "dataset_solution_column must name a column: got 'gold'",
        ),
        (
            {**KEYS, "dataset_options_column": "choices"},
            "dataset_options_column must name a column: got 'choices'",
        ),
        (
            {**KEYS, "answer_pattern": "The answer: (.+)"},
            "finds none in row 0 of the column answer, which ends with .*#### 5",
        ),
        ({**KEYS, "answer_pattern": "("}, "answer_pattern must be a regular expression"),
        ({"prompt_template": "Question:"}, "prompt_template must say where the question goes"),
    ],
)
def test_a_wrong_key_is_named_with_what_there_is(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        load(write_rows(tmp_path / "train.jsonl", GSM8K), **keys)


def test_words_for_a_world_that_has_its_own_are_refused():
    with pytest.raises(ValueError, match="arithmetic has prompts of its own: got system_prompt"):
        load("trl_miner/arithmetic", system_prompt="Be brief.")


def test_messages_are_no_questions():
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": "1 + 1?"}], "solution": "2"}])
    with pytest.raises(
        ValueError, match="must hold a question as text.*messages are prompts already"
    ):
        arrange(data, Layout(form=PromptForm(system="Be brief.")), ["math_reward"])


@pytest.mark.parametrize("empty", ["", '"  "', "NaN"])
@pytest.mark.parametrize("place", [0, 30])  # the first golds are graded, too
def test_a_row_without_an_answer_is_named(tmp_path, empty, place):
    """A row below the first 20, which are graded, trained as one that no rollout gets right."""
    golds = [empty if row == place else str(row + 1) for row in range(40)]
    (tmp_path / "train.csv").write_text(
        "q,a\n" + "".join(f"{row} + 1?,{gold}\n" for row, gold in enumerate(golds))
    )
    keys = dict(dataset_prompt_column="q", dataset_solution_column="a")
    data = load(str(tmp_path / "train.csv"), **keys)
    with pytest.raises(
        ValueError, match=rf"column a must hold an answer.*1 of 40 have none.* row {place} "
    ):
        check_rows(MinerScriptArguments(dataset_name=str(tmp_path / "train.csv"), **keys), data)


@pytest.mark.parametrize("answer", ["answer", "note"])
def test_a_run_stops_before_the_model_where_golds_are_bad(tmp_path, answer, monkeypatch):
    """Worked solutions, and rows without an answer."""
    monkeypatch.setattr("trl_miner.train.build", lambda *_: pytest.fail("it was built"))
    path = write_rows(tmp_path / "train.jsonl", [{**row, "note": ""} for row in GSM8K])
    options = ["--dataset_prompt_column", "question", "--dataset_solution_column", answer]
    options += ["--prompt_style", "plain", "--model_name_or_path", "trl_miner/arithmetic"]
    options += ["--use_cpu", "true", "--bf16", "false", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(
        ValueError, match="2 of 2 references are sentences.*answer_pattern|2 of 2 have none"
    ):
        main(["--dataset_name", path, *options])


def test_a_run_trains_on_gsm8ks_rows_and_keeps_their_form(policy, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {policy}\ndataset_name:"
        f" {write_rows(tmp_path / 'train.jsonl', GSM8K)}\ndataset_prompt_column:"
        ' question\ndataset_solution_column: answer\nanswer_pattern: "####'
        ' (.+)"\nmath_accept_unboxed: true\nprompt_template: "Question: {question}\\nAnswer:"\nnum_generations:'
        " 4\nper_device_train_batch_size: 8\nmax_completion_length: 4\nmax_steps: 1\nuse_cpu:"
        f" true\nbf16: false\noutput_dir: {tmp_path / 'out'}\nsave_strategy: 'no'\n"
    )
    main(["--config", str(recipe)])
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert [log["step"] for log in state["log_history"] if "reward" in log] == [1]
    assert read_form(str(tmp_path / "out")) == PromptForm(template="Question: {question}\nAnswer:")
