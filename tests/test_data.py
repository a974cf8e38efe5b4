"""The paper's training sets: what is dropped, and what is written."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from trl_miner.data import arithmetic
from trl_miner.data.prompts import PromptForm, build_prompt
from trl_miner.data.training_set import (
    Options,
    answered_right,
    build_deepscaler,
    build_medical,
    medmcqa_train_problems,
    prompt_lengths,
)

SMALL = Path(__file__).parent / "benchmarks"
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer that has a chat template; nearly one token per character."""
    folder = tmp_path_factory.mktemp("tokenizer")
    built = arithmetic.build_tokenizer()
    built.chat_template = TEMPLATE
    built.save_pretrained(folder)
    return str(folder)


def read(folder):
    from datasets import load_dataset

    return load_dataset(str(folder), split="train", cache_dir=str(Path(folder).parent / "cache"))


# DeepScaleR


def test_deepscaler_is_cleaned_and_counted(tokenizer, tmp_path):
    counts = build_deepscaler(
        tmp_path / "out", Options(tokenizer, "plain"), SMALL / "deepscaler.jsonl"
    )
    assert counts == {
        "written": 3,  # 6 rows less 3
        "dropped: no question or no valid answer": 1,
        "dropped: repeated question": 1,
        "dropped: reference answer not accepted by the grader": 0,
        "dropped: prompt over 1000 tokens": 1,
    }
    rows = read(tmp_path / "out").to_list()
    assert [row["id"] for row in rows] == ["deepscaler-0", "deepscaler-1", "deepscaler-4"]
    assert [row["solution"] for row in rows] == ["42", "\\frac{2}{3}", "56"]
    assert {row["source"] for row in rows} == {"deepscaler"}
    assert rows[0]["prompt"] == build_prompt("math", "Find $6\\cdot 7$.")
    card = (tmp_path / "out" / "README.md").read_text()
    source = hashlib.sha256((SMALL / "deepscaler.jsonl").read_bytes()).hexdigest()
    assert all(
        line in card
        for line in ("- deepscaler: 6 rows of", "repeated question: 1", "written: 3", source)
    )


def test_the_chat_style_writes_messages_and_counts_the_template(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    options = Options(tokenizer, "chat")
    build_deepscaler(tmp_path / "out", options, SMALL / "deepscaler.jsonl")
    prompts = read(tmp_path / "out")["prompt"][:]
    assert [dict(message) for message in prompts[0]] == build_prompt(
        "math", "Find $6\\cdot 7$.", form=PromptForm("chat")
    )
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    expected = loaded.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert prompt_lengths(prompts, options) == [len(ids) for ids in expected]


def test_the_length_limit_is_inclusive(tokenizer, tmp_path):
    prompt = build_prompt("math", "Find $6\\cdot 7$.")
    (length,) = prompt_lengths([prompt], Options(tokenizer, "plain"))
    short = json.dumps({"problem": "Find $6\\cdot 7$.", "answer": "42"})
    longer = json.dumps({"problem": "Find $6\\cdot 7$!?", "answer": "42"})  # one token more
    (tmp_path / "a.jsonl").write_text(f"{short}\n{longer}\n")
    options = Options(tokenizer, "plain", max_prompt_tokens=length)
    counts = build_deepscaler(tmp_path / "out", options, tmp_path / "a.jsonl")
    assert counts["written"] == counts[f"dropped: prompt over {length} tokens"] == 1
    with pytest.raises(ValueError, match="A training set must have rows: all were dropped"):
        options = dataclasses.replace(options, max_prompt_tokens=5)
        build_deepscaler(tmp_path / "out", options, tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("style", "row", "message"),
    [
        ("chat", {"problem": "1+1?", "answer": 2}, "Chat prompts need a chat template"),
        (
            "plain",
            {"question": "1+1?", "answer": 2},
            "DeepScaleR needs the column problem: row 0 has question, answer",
        ),
        (
            "plain",
            {"problem": "Say it.", "answer": "\\frac{"},
            "all were dropped .*'reference answer not accepted by the grader': 1",
        ),
    ],
)
def test_what_makes_no_training_set_is_named(tmp_path, style, row, message):
    arithmetic.build_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    options = Options(str(tmp_path / "tokenizer"), style)
    with pytest.raises(ValueError, match=message):
        build_deepscaler(tmp_path / "out", options, tmp_path / "a.jsonl")


# Medical


def write_answers(root, texts):
    """A result folder of `trl-miner eval`; `texts` by id, in any order, with a broken last line."""
    folder = root / "medmcqa_train"
    folder.mkdir(parents=True, exist_ok=True)
    rest = {"sample": 0, "seed": 0, "tokens": 5, "truncated": False}
    lines = [json.dumps({"problem": name, "text": text, **rest}) for name, text in texts]
    (folder / "samples.jsonl").write_text("\n".join([*lines, '{"problem": "train-1", "sam']))
    (root / "settings.json").write_text('{"model": "some/model"}')
    return root


ANSWERS = [
    ("train-2", "The answer is liver."),  # right
    ("train-1", "The answer is A."),  # right, but the later line wins
    ("train-3", "It might be C."),  # does not say "The answer is"
    ("train-1", "The answer is B."),
]


def test_medical_is_medqa_and_what_is_left_of_medmcqa(tokenizer, tmp_path):
    counts = build_medical(
        tmp_path / "out",
        Options(tokenizer, "plain"),
        samples_folder=write_answers(tmp_path / "answers", ANSWERS),
        medqa_source=SMALL / "medqa_train.jsonl",
        medmcqa_source=SMALL / "medmcqa_train.jsonl",
    )
    assert counts == {
        "written": 4,
        "dropped: no question or no valid answer": 1,
        "dropped: answered right by the filtering model": 1,
        "dropped: repeated question": 1,
        "dropped: reference answer not accepted by the grader": 0,
        "dropped: prompt over 1000 tokens": 0,
    }
    rows = read(tmp_path / "out").to_list()  # 3 + 4 rows less 3
    assert [(row["source"], row["id"], row["solution"]) for row in rows] == [
        ("medqa_train", "medqa_train-0", "D"),
        ("medqa_train", "medqa_train-1", "A"),
        ("medmcqa_train", "train-1", "A"),
        ("medmcqa_train", "train-3", "C"),
    ]
    assert rows[2]["options"] == ["Ear", "Knee", "Wrist", "Foot"]
    assert rows[2]["prompt"] == build_prompt("choice", "The stapes lies in the", rows[2]["options"])
    assert "some/model" in (tmp_path / "out" / "README.md").read_text()


def test_every_question_needs_an_answer(tmp_path):
    problems = medmcqa_train_problems(SMALL / "medmcqa_train.jsonl")
    write_answers(tmp_path / "missing", ANSWERS[:2])
    for folder, count in (("missing", 1), ("nowhere", 3)):
        with pytest.raises(
            ValueError, match=f"{count} of 3 have none in .* Run `trl-miner data medical` again"
        ):
            answered_right(tmp_path / folder, problems)
