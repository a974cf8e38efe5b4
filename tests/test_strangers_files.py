"""Files as people have them: `trl-miner train FILE --model MODEL` trains on what they say, or is
refused with what to write."""

import json
import re
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import pandas
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from trl_miner import MinerGRPOConfig, cli, preview
from trl_miner.data.base_model import find_model
from trl_miner.data.benchmarks import load, user_benchmark
from trl_miner.data.reading import load_data_set
from trl_miner.doctor.context import parse
from trl_miner.evaluation.generate import ProblemSet
from trl_miner.evaluation.graded import read_graded
from trl_miner.recipe.parsing import parse_words
from trl_miner.recipe.training_data import load_data
from trl_miner.rewards import choice_reward, math_reward

ROWS = 30
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model that has a chat template and room for the benchmarks' prompts."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    folder.mkdir()
    found = Path(find_model("trl_miner/arithmetic"))
    config = json.loads((found / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    tokenizer = AutoTokenizer.from_pretrained(found)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def train(tmp_path, monkeypatch, model):
    """`trl-miner train FILE`, up to where it would start the training: its exit code and rows."""
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(
        "trl_miner.launching.supervise.run_training", lambda words: started.append(words) or 0
    )

    def run(name, *options):
        code = cli.main(["train", name, "--model", model, *options])
        if not started:
            return code, []
        (args, _, model_args, mixture), _ = parse(parse_words(started.pop())[0], 1)
        data = load_data(args, mixture, model_args)
        return code, [row for split in data.values() for row in split]

    return run


def delimited(name, mark, header, row, encoding="utf-8"):
    lines = [header, *(row(n) for n in range(ROWS))]
    Path(name).write_bytes("\n".join(mark.join(line) for line in lines).encode(encoding))


def lines(name, row):
    text = "".join(json.dumps(row(n), ensure_ascii=False) + "\n" for n in range(ROWS))
    Path(name).write_text(text, encoding="utf-8")


def ods(name, header, row):
    """What a spreadsheet writes, and no more."""
    cells = [header, *(row(n) for n in range(ROWS))]
    table = "".join(
        "<table:table-row>"
        + "".join(
            '<table:table-cell office:value-type="string"><text:p>'
            f"{escape(cell)}</text:p></table:table-cell>"
            for cell in line
        )
        + "</table:table-row>"
        for line in cells
    )
    names = "".join(
        f' xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{long}:1.0"'
        for short, long in (("office", "office"), ("table", "table"), ("text", "text"))
    )
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr(
            "META-INF/manifest.xml",
            '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"'
            ' manifest:version="1.2"><manifest:file-entry manifest:full-path="/"'
            ' manifest:media-type="application/vnd.oasis.opendocument.spreadsheet"/>'
            "</manifest:manifest>",
        )
        archive.writestr(
            "content.xml",
            f'<office:document-content{names} office:version="1.2"><office:body>'
            f'<office:spreadsheet><table:table table:name="1">{table}</table:table>'
            "</office:spreadsheet></office:body></office:document-content>",
        )


def user(text):
    return {"role": "user", "content": text}


def letters(n):
    return [str(n), str(n + 1), str(n + 2), str(n + 3)]


# What writes the file, and what of a row must be in the prompt and the gold.
TRAINED = {
    "german.tsv": (
        lambda name: delimited(
            name, "\t", ["Aufgabe", "Lösung"],
            lambda n: [f"Müller kauft {n} Hefte zu 0,50 €?", f"{n},50 €"], "cp1252",
        ),
        ["Müller kauft 0 Hefte zu 0,50 €?"], "0.50 €",
    ),
    "french.csv": (
        lambda name: delimited(
            name, ";", ["N°", "Énoncé", "Réponse"],
            lambda n: [str(n), f"Combien font {n} ÷ 4, élève ?", f"{n},25"], "latin-1",
        ),
        ["Combien font 0 ÷ 4, élève ?"], "0.25",
    ),
    "spanish.csv": (
        lambda name: delimited(
            name, "|", ["Pregunta", "Respuesta"],
            lambda n: [f"¿Cuánto es {n} + 1, Íñigo?", str(n + 1)], "utf-8-sig",
        ),
        ["¿Cuánto es 0 + 1, Íñigo?"], "1",
    ),
    "chinese.csv": (
        lambda name: delimited(
            name, ",", ["问题", "答案"], lambda n: [f"小明有{n}个苹果又买了两个一共有几个", str(n + 2)],
            "gb18030",
        ),
        ["小明有0个苹果又买了两个一共有几个"], "2",
    ),
    "excel.csv": (
        lambda name: delimited(
            name, "\t", ["Question", "Answer"], lambda n: [f"Sum {n} · 1,000?", f"{n + 1},000"], "utf-16"
        ),
        ["Sum 0 · 1,000?"], "1,000",
    ),
    "sheet.ods": (
        lambda name: ods(name, ["Frage", "Antwort"], lambda n: [f"Sum {n} + 7 = ?", f"{n + 7}"]),
        ["Sum 0 + 7 = ?"], "7",
    ),
    "exam.xlsx": (
        lambda name: pandas.DataFrame(
            [[f"{n} + 1?", *letters(n), "B"] for n in range(ROWS)],
            columns=["Question", "Option A", "Option B", "Option C", "Option D", "Correct answer"],
        ).to_excel(name, index=False),
        ["0 + 1?", "A. 0\nB. 1\nC. 2\nD. 3"], "B",
    ),
    "arc.jsonl": (
        lambda name: lines(name, lambda n: {
            "id": n, "question": f"{n} + 1?", "answerKey": "B",
            "choices": {"text": letters(n), "label": ["A", "B", "C", "D"]},
        }),
        ["A. 0\nB. 1"], "B",
    ),
    # numbered from 1, as the last number shows: 4 is D
    "medical.jsonl": (
        lambda name: lines(name, lambda n: {
            "question": f"{n} + 1?", "cop": 4 if n == 7 else n % 3 + 1,
            **{f"op{letter}": text for letter, text in zip("abcd", letters(n), strict=True)},
        }),
        ["A. 0\nB. 1"], "A",
    ),
    "chat.jsonl": (
        lambda name: lines(name, lambda n: {
            "conversations": [{"from": "human", "value": f"Box {n} + 1."}, {"from": "gpt", "value": "?"}],
            "metadata": {"gold": n + 1, "level": "easy"},
        }),
        ["Box 0 + 1."], "1",
    ),
    "verl.parquet": (
        lambda name: Dataset.from_list([
            {"data_source": "math", "prompt": [user(f"Box {n} + 1.")],
             "reward_model": {"ground_truth": str(n + 1), "style": "rule"}}
            for n in range(ROWS)
        ]).to_parquet(name),
        ["Box 0 + 1."], "1",
    ),
    # whose verifier knows these words
    "solutions.csv": (
        lambda name: delimited(
            name, ",", ["question", "answer"],
            lambda n: [f"Sum {n} and 2?", f"First we add {n} and 2. So the answer is {n + 2}."],
        ),
        ["Sum 0 and 2?"], "First we add 0 and 2. So the answer is 2.",
    ),
    "squad.json": (
        lambda name: Path(name).write_text(json.dumps({"version": 1, "data": [
            {"context": f"Ann has {n} cats.", "question": "How many?", "answers": {"text": [str(n)]}}
            for n in range(ROWS)
        ]})),
        ["Ann has 0 cats.\n\nHow many?"], "0",
    ),
    "alpaca.json": (
        lambda name: Path(name).write_text(json.dumps([
            {"instruction": "Double it.", "input": str(n), "output": str(2 * n)} for n in range(ROWS)
        ])),
        ["Double it.\n\n0"], "0",
    ),
    "latex.jsonl": (
        lambda name: lines(name, lambda n: {
            "prompt": [user(f"Is {n} a half?\nA. $\\frac{{1}}{{2}}$\nB. 'no'\nBox the letter.")], "answer": "B",
        }),
        ["Is 0 a half?"], "B",
    ),
    # whose options stand in the question, and are not repeated
    "listed.jsonl": (
        lambda name: lines(name, lambda n: {
            "question": f"{n}?\n(A) {n} (B) -1", "options": [f"A) {n}", "B) -1"], "label": 0,
        }),
        ["0?\n(A) 0 (B) -1\n"], "A",
    ),
}  # fmt: skip


def text_of(prompt):
    return prompt if isinstance(prompt, str) else "\n\n".join(each["content"] for each in prompt)


@pytest.mark.parametrize("name", TRAINED)
def test_a_file_trains_on_what_it_says(name, train, capsys):
    write, words, gold = TRAINED[name]
    write(name)
    code, rows = train(name)
    said = capsys.readouterr().err
    assert code == 0, said
    prompts = {text_of(row["prompt"]): row["solution"] for row in rows}
    (prompt,) = (prompt for prompt in prompts if all(part in prompt for part in words))
    assert prompts[prompt] == gold and prompt.count(words[-1]) == 1
    # evaluating reads the same
    problems = load(user_benchmark("mine", name))[0]
    assert problems[0].solution == gold and len(problems) == ROWS


WORKED = "First we add {} and 2, so that she has {} apples."
# What writes the file, what is said, and what to write (none: the file must change).
REFUSED = {
    "worked.csv": (
        lambda name: delimited(
            name, ";", ["question", "answer"], lambda n: [f"{n} + 2?", WORKED.format(n, n + 2)]
        ),
        "27 of 27 references are sentences.*Set answer_after: 'so that she has'",
        ["--answer_after", "so that she has"], "2 apples",
    ),
    "thousands.csv": (
        lambda name: delimited(
            name, ";", ["q", "a"], lambda n: [f"{n}?", f"{n},125" if n % 5 else f"1.000,{n % 10}5"]
        ),
        "are read as several numbers because of a comma", ["--decimal_comma", "true"], "1000.05",
    ),
    "text.csv": (
        lambda name: delimited(
            name, "\t", ["prompt", "solution"], lambda n: [f"[{{'role': 'user', 'content': 'Box {n}'}}]", "1"]
        ),
        "The prompts are messages written as text", None, None,
    ),
    "letters.csv": (
        lambda name: delimited(
            name, ",", ["question", "right", "answer"], lambda n: [f"{n} + 2?", "?", "ABC"[n % 3]]
        ),
        "references are letters, and no prompt has options.*options_columns", None, None,
    ),
    "prices.csv": (
        lambda name: delimited(
            name, ";", ["q", "a"], lambda n: [f"{n} + 2?", "1.5 €" if n == 9 else f"{n},50 €"]
        ),
        "are read as several numbers because of a comma. Set decimal_comma: true",
        ["--decimal_comma", "true"], "0.50 €",
    ),
    "index.jsonl": (
        lambda name: lines(name, lambda n: {
            "question": f"{n}?", "options": letters(n), "answer": n % 2 + 1,
        }),
        "no row tells whether from 0 or from 1. Set first_option", ["--first_option", "1"], "A",
    ),
    "dictionary.jsonl": (
        lambda name: lines(name, lambda n: {
            "question": f"{n} + 1?", "answer": {"number": str(n + 1), "unit": "m"},
        }),
        "are dictionaries. Set dataset_solution_column to the field",
        ["--dataset_solution_column", "answer.number"], "1",
    ),
    "essays.json": (
        lambda name: Path(name).write_text(json.dumps([
            {"instruction": f"Say why {n}.", "output": f"Because {n} is a number that I like."}
            for n in range(ROWS)
        ])),
        "are sentences, which only the same words would match", None, None,
    ),
    "columns.csv": (
        lambda name: delimited(name, ",", ["x", "y", "z"], lambda n: [f"{n}?", "1", "2"]),
        "No column of columns.csv looks like the question: there are x, y, z",
        ["--dataset_prompt_column", "x", "--dataset_solution_column", "y"], "1",
    ),
    "asks.jsonl": (
        lambda name: lines(name, lambda n: {"prompt": f"{n} or {n + 1}?", "options": letters(n),
                                            "answer": "A"}),
        "The options of a question must stand in its prompt", None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_with_what_to_write_which_helps(name, train, capsys):
    write, said, options, gold = REFUSED[name]
    write(name)
    code, rows = train(name)
    error = " ".join(capsys.readouterr().err.split())
    assert code == 2 and not rows and re.search(said, error), error
    assert not Path("runs").exists()  # a failed try leaves nothing behind
    if options:
        code, rows = train(name, *options)
        assert code == 0, capsys.readouterr().err
        assert gold in [row["solution"] for row in rows]


def test_an_answer_with_a_decimal_comma_is_right_in_scores_too(tmp_path):
    """Of 0.5 and 1.5: `0,5` and `1.50` are right, `5` is not."""
    path = tmp_path / "a.csv"
    path.write_text("Frage;Antwort\nHalb?;0,5\nEinhalb?;1,5\n")
    mine = user_benchmark("mine", path)
    problem_set = ProblemSet(mine, load(mine)[0], 2)
    folder = tmp_path / "out" / "mine"
    folder.mkdir(parents=True)
    (folder / "benchmark.json").write_text(json.dumps(problem_set.about()))
    problems = [
        {"id": p.id, "question": p.question, "solution": p.solution} for p in problem_set.problems
    ]
    write_lines(folder / "problems.jsonl", problems)
    texts = {("mine-0", 0): "0,5", ("mine-0", 1): "5", ("mine-1", 0): "1.50", ("mine-1", 1): "1,5"}
    write_lines(folder / "samples.jsonl", [
        {"problem": name, "sample": n, "text": f"\\boxed{{{text}}}", "tokens": 3, "truncated": False}
        for (name, n), text in texts.items()
    ])  # fmt: skip
    assert read_graded(tmp_path / "out")[0].correct_PN.tolist() == [[True, False], [True, True]]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_what_a_recipe_says_of_its_file_is_not_said_of_another(tmp_path):
    path = tmp_path / "held_out.csv"
    path.write_text("q,a\n1 + 1?,2\n")
    given = {"dataset_solution_column": "worked", "answer_after": "The answer is"}
    assert load(user_benchmark("mine", path, given))[0][0].solution == "2"
    with pytest.raises(ValueError, match="answer_after 'The answer is' finds none in row 0"):
        load(user_benchmark("mine", path, {"answer_after": "The answer is"}))


def test_options_in_messages_are_found_as_they_are(model):
    options = [r"$\frac{1}{2}$", "it's\n1"]
    prompt = [user("Which?\n\nA. " + "\nB. ".join(options) + "\nThe answer is")]
    row = {"prompt": prompt, "solution": "B", "options": options}
    found = preview(model, choice_reward, MinerGRPOConfig(use_cpu=True), [row] * 3)
    assert not found.refusals and "'The answer is A.': choice_reward 0.0" in str(found)


def test_naming_its_columns_does_not_switch_a_check_off(train, capsys):
    REFUSED["letters.csv"][0]("letters.csv")
    columns = ["--dataset_prompt_column", "question", "--dataset_solution_column", "answer"]
    assert train("letters.csv", *columns, "--reward_funcs", "math_reward")[0] == 2
    assert "are letters" in capsys.readouterr().err


def test_the_embedded_model_is_asked_in_its_own_form_or_refused(train, capsys):
    """In the benchmarks' words a prompt has 301 tokens, and the model 256 positions."""
    delimited("sums.csv", ",", ["q", "a"], lambda n: [f"Compute {n} + 8.", str(n + 8)])
    code, rows = train("sums.csv", "--model", "trl_miner/arithmetic")
    assert code == 0 and "Compute 0 + 8.\n" in [row["prompt"] for row in rows]
    capsys.readouterr()
    words = ["--prompt_template", "{question}" + " so" * 300 + " box", "--output_dir", "other"]
    assert train("sums.csv", "--model", "trl_miner/arithmetic", *words)[0] == 2
    assert "shorter than the model's 256 positions: 27 of 27" in capsys.readouterr().err


def test_what_stands_twice_is_on_one_side(train):
    """15 problems, each in 2 rows: 3 are held out, and their copies are not trained on."""
    delimited("twice.csv", ",", ["q", "a"], lambda n: [f"{n // 2} + 8?", str(n // 2 + 8)])
    _, rows = train("twice.csv")
    texts = [text_of(row["prompt"]) for row in rows]
    train_rows, held_out = texts[:-3], texts[-3:]
    assert len({*held_out}) == 3 and not {*held_out} & {*train_rows}
    assert len(train_rows) == 24 and len({*train_rows}) == 12


def test_data_show_and_python_show_what_train_does(train, model, capsys):
    TRAINED["german.tsv"][0]("german.tsv")
    _, rows = train("german.tsv")
    capsys.readouterr()
    found = preview(model, math_reward, MinerGRPOConfig(use_cpu=True), Dataset.from_list(rows))
    assert not found.refusals and "Prompts: " in str(found) and ".50 (number)" in str(found)
    found = preview(model, math_reward, MinerGRPOConfig(use_cpu=True), [{"prompt": "1?"}] * 3)
    assert "needs the column(s) solution" in " ".join(found.refusals)
    assert cli.main(["data", "show", "german.tsv", "--model", model]) == 0
    shown = capsys.readouterr().out
    assert "cells separated by tabs, in cp1252): 27 in train, 3 in test" in shown
    assert "decimal_comma: True" in shown and ",50 €' -> " in shown
    assert "'I do not know.': math_reward 0.0" in shown and "Duplicates: none" in shown


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "return ['good'] * len(completions)",
            "must return a number for each completion, or None .*: got .'good'",
        ),
        ("pass", "must return a number for each completion, or None .*: got None"),
        ("return [1.0]", "must return a list of 6 numbers, one for each completion: got 1"),
        ("import sys; sys.exit(3)", "failed with sys.exit.3.. Mend it in .*mine.*.py, line 2"),
        (
            "return [float(text) for text in completions]",
            "failed with ValueError: could not .* Mend it in .*, line 2",
        ),
    ],
)
def test_a_reward_function_is_called_before_the_model_loads(body, said, train, capsys):
    TRAINED["sheet.ods"][0]("sheet.ods")
    module = f"mine{abs(hash(body))}"
    Path(f"{module}.py").write_text(f"def scored(completions, **kwargs):\n    {body}\n")
    assert (
        train("sheet.ods", "--reward_funcs", f"{module}.scored", "--prompt_style", "plain")[0] == 2
    )
    error = capsys.readouterr().err
    assert re.search(f"The reward function 'scored' {said}", error), error
    assert len(error.strip().splitlines()[-1]) < 600


def test_a_reward_function_without_kwargs_is_told_what_it_lacks(train, capsys):
    TRAINED["sheet.ods"][0]("sheet.ods")
    Path("lacks.py").write_text("def scored(completions):\n    return [0.0] * len(completions)\n")
    assert train("sheet.ods", "--reward_funcs", "lacks.scored")[0] == 2
    assert "'scored' must take what it does not use: " in (error := capsys.readouterr().err)
    assert "Add **kwargs to its parameters" in error


@pytest.mark.parametrize(
    "text, encoding",
    [
        ("Was kostet es: 3,50 € und 4 €?", "cp1252"),  # whose only sign is a letter of Cyrillic
        ("L'élève a déjà mangé «½ œuf»…", "cp1252"),
        ("¿Cuántos años tiene él?", "cp1252"),
        ("Сколько будет два плюс три? Ответ: пять яблок.", "cp1251"),
        ("小明有三个苹果，又买了两个，一共有多少个苹果？", "gb18030"),
    ],
)
def test_the_encoding_of_a_text_is_guessed(text, encoding, tmp_path):
    path = tmp_path / "file.csv"
    path.write_bytes(f"question,answer\n{text.replace(',', ';')},5\n".encode(encoding))
    rows = load_data_set(str(path))["train"]
    assert rows[0]["question"] == text.replace(",", ";")
