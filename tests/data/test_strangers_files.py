"""Files as people have them: a run trains on what they say, or is refused with the option that
helps."""

import json
import re
import sys
from pathlib import Path

import pandas
import pytest
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).parent))
from strangers import ROWS, book, four, lines, load, table, text_of, user  # noqa: E402


def each(row):
    return lambda path: lines(path, map(row, range(ROWS)))


def dump(value):
    return lambda path: Path(path).write_text(json.dumps(value), encoding="utf-8")


def cells(mark, header, row, encoding="utf-8"):
    return lambda path: table(path, mark, header, row, encoding)


NOTES, TASKS = {"Notes": ["a"]}, {"Question": ["1+1?", "2+2?"], "Answer": [2, 4]}
# What writes the file, the settings that it needs, and of the first row: what is in the prompt, and
# the reference answer.
TRAINED = {
    "german.tsv": (
        cells("\t", ["Aufgabe", "Lösung"], lambda n: [f"Müller zahlt {n},50 €?", f"{n},50 €"], "cp1252"),
        {"decimal_comma": True}, "Müller zahlt 0,50 €?", "0,50 €",
    ),
    "french.csv": (
        cells(";", ["N°", "Énoncé", "Réponse"], lambda n: [str(n), f"Combien font {n} ÷ 4, élève ?", "0,25"],
              "latin-1"),
        {"decimal_comma": True}, "Combien font 0 ÷ 4, élève ?", "0,25",
    ),
    "comma_in_header.csv": (
        cells(";", ["Aufgabe (Text, Bild)", "Ergebnis (Zahl)"], lambda n: [f"{n} + 1?", str(n + 1)]),
        {}, "0 + 1?", "1",
    ),
    "exam.xlsx": (
        lambda path: pandas.DataFrame(
            [[f"{n} + 1?", *four(n), "B"] for n in range(ROWS)],
            columns=["Question", "Option A", "Option B", "Option C", "Option D", "Correct answer"],
        ).to_excel(path, index=False),
        {}, "0 + 1?\n\nA. 0\nB. 1\nC. 2\nD. 3", "B",
    ),
    "columns.json": (dump({"question": ["1+1?", "2+2?"], "answer": ["2", "4"]}), {}, "1+1?", "2"),
    "pandas.json": (lambda path: pandas.DataFrame(TASKS).to_json(path), {}, "1+1?", "2"),
    "gsm8k.jsonl": (
        each(lambda n: {"question": f"Ann has {n}.", "answer": f"{n} + 2 = <<2=2>>2.\n#### {n + 2}"}),
        {}, "Ann has 0.", "2",
    ),
    # NuminaMath: worked solutions with a box; OpenR1 has the answer beside them
    "numina.jsonl": (
        each(lambda n: {"problem": f"{n} + 1?", "solution": f"We get $\\boxed{{{n + 1}}}$."}),
        {}, "0 + 1?", "We get $\\boxed{1}$.",
    ),
    "openr1.jsonl": (
        each(lambda n: {"problem": f"{n} + 1?", "solution": "We add.", "answer": n + 1, "messages": [user("x")]}),
        {}, "0 + 1?", "1",
    ),
    "medqa.jsonl": (
        each(lambda n: {"question": f"{n} + 1?", "options": dict(zip("ABCD", four(n), strict=True)),
                        "answer": str(n + 1), "answer_idx": "B", "meta_info": "step1"}),
        {}, "0 + 1?\n\nA. 0\nB. 1", "B",
    ),
    "mmlu.jsonl": (
        each(lambda n: {"question": f"{n}?", "subject": "x", "choices": four(n), "answer": n % 4}),
        {}, "0?\n\nA. 0\nB. 1", "A",
    ),
    # numbers are places, though one of the texts may be that number
    "places.jsonl": (
        each(lambda n: {"question": f"{n}?", "choices": ["1", "2", "0"], "answer": (n + 2) % 3}),
        {}, "0?", "C",
    ),
    "arc.jsonl": (
        each(lambda n: {"id": n, "question": f"{n} + 1?", "answerKey": "B",
                        "choices": {"text": four(n), "label": ["A", "B", "C", "D"]}}),
        {}, "0 + 1?\n\nA. 0\nB. 1", "B",
    ),
    "arc_raw.jsonl": (
        each(lambda n: {"id": str(n), "answerKey": "2", "question": {"stem": f"{n} + 1?", "choices": [
            {"text": text, "label": label} for text, label in zip(four(n), "1234", strict=True)]}}),
        {}, "0 + 1?\n\nA. 0\nB. 1", "B",
    ),
    "options_as_text.csv": (
        cells(";", ["question", "options", "answer"], lambda n: [f"{n} + 1?", str(four(n)), "B"]),
        {}, "0 + 1?\n\nA. 0\nB. 1", "B",
    ),
    "text_of_an_option.csv": (
        cells(",", ["question", "A", "B", "C", "D", "answer"], lambda n: [f"{n} + 1?", *four(n), str(n + 1)]),
        {}, "0 + 1?\n\nA. 0\nB. 1", "B",
    ),
    "boolean.jsonl": (
        each(lambda n: {"question": f"Is {n} odd?", "answer": n % 2 == 1}),
        {}, "Is 0 odd?\n\nA. True\nB. False", "B",
    ),
    "letters_in_the_question.csv": (
        cells(",", ["question", "answer"], lambda n: [f"1 + {n}? (A) {n} (B) {n + 1} (C) 0", "B"]),
        {}, "(B) 1", "B",
    ),
    "verl.parquet": (
        lambda path: Dataset.from_list([
            {"prompt": [user(f"{n} + 1? Put it within \\boxed{{}}.")], "reward_model": {"ground_truth": str(n + 1)}}
            for n in range(ROWS)
        ]).to_parquet(path),
        {}, "0 + 1? Put it within \\boxed{}.", "1",
    ),
    "sharegpt.jsonl": (
        each(lambda n: {"id": f"x_{n}", "conversations": [
            {"from": "human", "value": f"{n} + 1?"}, {"from": "gpt", "value": f"We add: \\boxed{{{n + 1}}}"}]}),
        {}, "0 + 1?", "We add: \\boxed{1}",
    ),
    "field.jsonl": (
        each(lambda n: {"conversations": [{"from": "human", "value": f"{n}?"}], "metadata": {"gold": n + 1}}),
        {"dataset_solution_column": "metadata.gold"}, "0?", "1",
    ),
    "messages_as_text.csv": (
        lambda path: pandas.DataFrame([{"prompt": str([user(f"{n} + 1?")]), "answer": n + 1} for n in range(ROWS)])
        .to_csv(path, index=False),
        {}, "User: 0 + 1?\n", "1",
    ),
    "squad.json": (
        dump({"version": 1, "data": [{"context": f"Ann has {n} cats.", "question": "How many?",
                                      "answers": {"text": [str(n), str(n)]}} for n in range(ROWS)]}),
        {}, "Ann has 0 cats.\n\nHow many?", "0",
    ),
    "alpaca.json": (
        dump([{"instruction": "Double it.", "input": str(n), "output": str(2 * n)} for n in range(ROWS)]),
        {}, "0\n\nDouble it.", "0",
    ),
    "mixed_types.jsonl": (
        each(lambda n: {"question": f"{n}?", "answer": [n + 1, f"{n}/2", n + 0.5][n % 3]}), {}, "0?", "1",
    ),
    # what looks like a wish for a form in some questions is none
    "answer_in_some.csv": (
        cells(";", ["question", "answer"], lambda n: [f"Which is the answer: {n} or 9?" if n % 2 else f"{n}?", "9"]),
        {}, "0?", "9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_a_file_trains_on_what_it_says(name, tmp_path):
    write, settings, words, gold = TRAINED[name]
    write(tmp_path / name)
    data = load(tmp_path / name, **settings)
    first = data.train[0]
    assert words in text_of(first["prompt"]) and first["solution"] == gold
    assert len(data.train) in (2, ROWS)


# What writes the file, what the refusal says, and the settings that help.
REFUSED = {
    "only_an_id.jsonl": (
        each(lambda n: {"question": f"{n} + 1?", "id": n}),
        "usual name for the solution, but question, id. .*--dataset_solution_column", None,
    ),
    "classes.csv": (
        cells(",", ["text", "label"], lambda n: [f"{n} is good", "1"]),
        "for the prompt, but text, label. .*--dataset_prompt_column", {"dataset_prompt_column": "text"},
    ),
    "sheets.xlsx": (
        lambda path: book(path, Info=NOTES, Tasks=TASKS), "its sheets are Info, Tasks: name one with --sheet",
        {"sheet": "Tasks"},
    ),
    "one.xlsx": (
        lambda path: book(path, Tasks=TASKS), "its sheets are Tasks: name one with --sheet", {"sheet": "Tasks"},
    ),
    "packed.csv.gz": (dump("x"), "unpack it, or save it as .csv, ", None),
    "letters.csv": (
        cells(",", ["question", "answer", "key"], lambda n: [f"Which is {n} + 1?", "ABCD"[n % 4], str(n + 1)]),
        r"a letter needs options\), such as row 0: .*--dataset_options_column", {"dataset_solution_column": "key"},
    ),
    "euro.csv": (
        cells(";", ["q", "a"], lambda n: [f"{n}?", f"{n},50 €"]), "It has a decimal comma, .*--decimal_comma true",
        {"decimal_comma": True},
    ),
    "worked.csv": (
        cells(";", ["question", "answer"], lambda n: [f"{n} + 2?", f"We add {n} and 2, so that she has {n + 2} now."]),
        "30 of 30 references cannot be used, .* is a sentence.*--answer_pattern", {"answer_pattern": r"she has (\d+)"},
    ),
    "one_based.jsonl": (
        each(lambda n: {"question": f"{n}?", "options": four(n), "answer": n % 2 + 1}),
        "none is 0: set --first_option", {"first_option": 1},
    ),
    "dictionary.jsonl": (
        each(lambda n: {"question": f"{n} + 1?", "answer": {"number": str(n + 1), "unit": "m"}}),
        "is a dictionary.*--dataset_solution_column COLUMN.FIELD", {"dataset_solution_column": "answer.number"},
    ),
    "half_empty.csv": (
        cells(",", ["question", "answer", "gold"], lambda n: [f"{n}?", "" if n % 2 else "1", "1"]),
        "15 of 30 rows have no question, or no reference answer .*such as row 1: .*--dataset_solution_column",
        {"dataset_solution_column": "gold"},
    ),
    "not_an_option.jsonl": (
        each(lambda n: {"question": f"{n}?", "options": four(n), "answer": "Z", "key": "B"}),
        "30 of 30 rows have no question, or no reference answer that can be read", {"dataset_solution_column": "key"},
    ),
    "asks.jsonl": (
        each(lambda n: {"question": f"{n} + 2? End with 'Answer: NUMBER'.", "answer": n + 2}),
        "'Answer: 2', to which math_reward gives 0.0.*--math_accept_unboxed true", {"math_accept_unboxed": True},
    ),
    "says_nothing.jsonl": (
        each(lambda n: {"prompt": [{"role": "system", "content": "Be nice."}, user(f"{n}?")], "answer": n}),
        "'The answer is 0.', to which math_reward gives 0.0.*--prompt_style verbatim", {"prompt_style": "verbatim"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_with_the_option_that_helps(name, tmp_path):
    write, said, settings = REFUSED[name]
    write(tmp_path / name)
    with pytest.raises(ValueError) as error:
        load(tmp_path / name, sheet="Task" if name == "one.xlsx" else None)
    assert re.search(said, str(error.value)), error.value
    assert "\n" not in str(error.value)
    if settings:
        assert load(tmp_path / name, **settings).train["solution"][0]


def test_a_few_empty_rows_are_left_out_with_a_warning(tmp_path):
    path = table(
        tmp_path / "a.csv", ",", ["question", "answer"], lambda n: [f"{n}?", "" if n == 4 else "1"]
    )
    with pytest.warns(UserWarning, match="left out: 1 of 30 rows have no .*such as row 4"):
        data = load(path)
    assert len(data.train) == 29 and "User: 4?" not in "".join(map(text_of, data.train["prompt"]))


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path):
    path = table(tmp_path / "a.csv", ",", ["question", "answer"], lambda n: [f"{n}?", "1"])
    with pytest.raises(ValueError, match="no column anser for the solution, but question, answer"):
        load(path, dataset_solution_column="anser")


def test_other_columns_reach_the_run_and_its_own_are_text(tmp_path):
    """A reward function may take them. `datasets` would keep the type of a column."""
    rows = [{"prompt": f"{n}?", "solution": n, "level": n, "tags": [{"of": n}]} for n in range(3)]
    first = load(lines(tmp_path / "a.jsonl", rows)).train[2]
    assert (first["solution"], first["level"], first["tags"]) == ("2", 2, [{"of": 2}])
