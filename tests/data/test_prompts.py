"""Prompts: the paper's words, and the form that a model was trained in."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from strangers import lines, load, text_of, tokenizer  # noqa: E402

from trl_miner.data.prompts import (  # noqa: E402
    CHOICE_INSTRUCTION,
    MATH_INSTRUCTION,
    PromptForm,
    build_prompt,
    guess_style,
    load_form,
    save_form,
    token_ids,
)

CHAT = PromptForm("chat")


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


@pytest.mark.parametrize(
    "asked, form, prompt",
    [
        (("math", "1 + 1?"), PromptForm(), f"{MATH_INSTRUCTION}\n\nUser: 1 + 1?\n\nAssistant:"),
        (("math", "1 + 1?"), CHAT, messages(("system", MATH_INSTRUCTION), ("user", "1 + 1?"))),
        (
            ("choice", "Which?", ["x", "y"]),
            PromptForm(),
            f"User: Which?\n\nA. x\nB. y\n\n{CHOICE_INSTRUCTION}\n\nAssistant:",
        ),
        (
            ("choice", "Which?", ["x", "y"]),
            CHAT,
            messages(("user", f"Which?\n\nA. x\nB. y\n\n{CHOICE_INSTRUCTION}")),
        ),
        (("math", "1?"), PromptForm(template="Q: {question}\nA:"), "Q: 1?\nA:"),
        (("math", "1?"), PromptForm("plain", "Be brief.", "{question} ="), "Be brief.\n\n1? ="),
        (("math", "1?\n"), PromptForm("verbatim"), "1?\n"),
        (("math", messages(("system", "Box."), ("user", "1?"))), PromptForm(), "Box.\n\n1?"),
        (("math", messages(("user", "1?"))), CHAT, messages(("user", "1?"))),
    ],
)
def test_the_words_of_a_prompt(asked, form, prompt):
    assert build_prompt(*asked, form=form) == prompt


@pytest.mark.parametrize(
    "name, has_template, style",
    [
        ("Qwen/Qwen3-4B-Base", True, "plain"),
        ("Qwen/Qwen3-4B", True, "chat"),
        ("Qwen/Qwen3-4B", False, "plain"),
        ("models/database-4b/", True, "chat"),
        ("base/model_base", True, "plain"),
    ],
)
def test_the_style_is_guessed_from_the_name_and_the_chat_template(name, has_template, style):
    class Tokenizer:
        chat_template = "{{ messages }}" if has_template else None

    assert guess_style(name, Tokenizer()) == style


def test_tokens_are_those_of_the_chat_template():
    asked = messages(("user", "1 + 2"))
    expected = tokenizer().apply_chat_template(asked, add_generation_prompt=True)
    assert token_ids(asked, tokenizer()) == expected["input_ids"]
    assert token_ids("1 + 2", tokenizer()) == tokenizer()("1 + 2")["input_ids"]


def test_a_form_is_saved_and_used_again(tmp_path):
    form = PromptForm("chat", "Sei kurz.", "F: {question}", {"enable_thinking": False})
    save_form(tmp_path, form)
    assert load_form(str(tmp_path)) == form


def test_a_model_is_trained_on_in_the_form_of_its_training(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"question": f"{n}?", "answer": n} for n in range(3)])
    save_form(tmp_path, PromptForm(template="{question} Use \\boxed{}."))
    data = load(path, model=str(tmp_path))
    assert data.train["prompt"][0] == "0? Use \\boxed{}." and data.form.template
    # what the recipe says wins
    data = load(path, model=str(tmp_path), prompt_style="chat")
    assert text_of(data.train["prompt"][0]) == f"{MATH_INSTRUCTION}\n\n0?"


def test_the_embedded_model_has_a_form_and_an_unknown_one_has_none():
    assert load_form("trl_miner/arithmetic") == PromptForm("verbatim")
    assert load_form("nobody/nothing") is None and load_form("./nowhere") is None


@pytest.mark.parametrize(
    "form, said",
    [
        ({"style": "loud"}, "prompt_style must be chat, plain or verbatim: got 'loud'"),
        ({"template": "Question:"}, "prompt_template must have {question} in it: got 'Question:'"),
    ],
)
def test_a_form_that_cannot_be_is_refused(form, said):
    with pytest.raises(ValueError) as error:
        PromptForm(**form)
    assert said in str(error.value)


def test_conversations_keep_their_messages(tmp_path):
    system = ("system", "Answer within \\boxed{}.")
    rows = [{"prompt": messages(system, ("user", f"{n}?")), "answer": n} for n in range(3)]
    path = lines(tmp_path / "a.jsonl", rows)
    assert load(path, model="some/model").train["prompt"][0] == rows[0]["prompt"]
    # a base model has plain text
    assert load(path).train["prompt"][0] == f"{system[1]}\n\n0?"
    # one message is a question, and verbatim it stays a message
    one = [{"messages": messages(("user", f"{n}?")), "answer": n} for n in range(3)]
    path = lines(tmp_path / "b.jsonl", one)
    asked = load(path, model="some/model").train["prompt"][0]
    assert [each["role"] for each in asked] == ["system", "user"]
    stands = load(path, model="some/model", prompt_style="verbatim").train["prompt"][0]
    assert stands == one[0]["messages"]
