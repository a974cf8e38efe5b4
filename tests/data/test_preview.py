"""The preview: what is shown before a training, and what ends it there."""

import asyncio
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from strangers import four, lines, load, tokenizer  # noqa: E402

from trl_miner.data.own import load_training_data  # noqa: E402
from trl_miner.data.preview import rewards_of, show_preview  # noqa: E402
from trl_miner.data.settings import DataArguments  # noqa: E402
from trl_miner.rewards import math_reward  # noqa: E402

SUMS = [{"question": f"{n} + 90?", "answer": n + 90} for n in range(4)]


def test_three_prompts_references_and_answers_are_shown(tmp_path, capsys):
    load(lines(tmp_path / "a.jsonl", SUMS), model="some/model")
    shown = capsys.readouterr().out
    assert shown.count("<assistant>") == 3 and "<user>2 + 90?<assistant>" in shown
    assert "'90' -> 90" in shown and "4 problems to train on, 0 held out" in shown
    assert r"A right answer, '\\boxed{90}': math_reward 1.0. A wrong one: 0.0." in shown


@pytest.mark.parametrize(
    "words, form",
    [
        ("Give the result as 'Answer: N'.", "Answer: 90"),
        ("End with #### and the number.", "#### 90"),
        ("Say 'The answer is N'.", "The answer is 90."),
        ("Do not box it with \\boxed{}, write Answer: N", "Answer: 90"),
    ],
)
def test_a_right_answer_is_shown_in_the_form_that_the_prompt_asks_for(
    tmp_path, capsys, words, form
):
    rows = [{**row, "question": f"{row['question']} {words}"} for row in SUMS]
    load(lines(tmp_path / "a.jsonl", rows), math_accept_unboxed=True)
    assert f"A right answer, {form!r}: math_reward 1.0" in capsys.readouterr().out


def test_a_template_says_the_form(tmp_path, capsys):
    path = lines(tmp_path / "a.jsonl", SUMS)
    load(path, prompt_template="Q: {question}\nPut it in \\boxed{}.", system_prompt="Be brief.")
    assert "Be brief.\n\nQ: 0 + 90?\nPut it in \\boxed{}.\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="math_reward gives 0.0 to 'The answer is 90.'"):
        load(path, system_prompt="Be brief.")
    load(path, system_prompt="Be brief.", math_accept_unboxed=True)


def test_options_are_shown_with_the_right_letter(tmp_path, capsys):
    rows = [{"question": f"{n}?", "choices": four(n), "answer": n % 4} for n in range(4)]
    load(lines(tmp_path / "a.jsonl", rows))
    shown = capsys.readouterr().out
    assert "A right answer, 'The answer is A.': choice_reward 1.0. A wrong one: 0.0." in shown


def test_a_few_references_that_cannot_be_read_are_a_warning(tmp_path, capsys):
    """2 of 30 are told, 4 of 30 are too many."""
    rows = [{"q": f"{n}?", "a": "1,50" if n < 2 else n} for n in range(30)]
    load(lines(tmp_path / "a.jsonl", rows))
    shown = capsys.readouterr().out
    assert "Warning: 2 of 30 references cannot be used. One, '1,50' has a decimal comma" in shown
    rows = [{**row, "a": "1,50"} if n < 4 else row for n, row in enumerate(rows)]
    with pytest.raises(ValueError, match="4 of 30 references cannot be used"):
        load(lines(tmp_path / "a.jsonl", rows))


def test_a_chat_template_that_fails_is_told(tmp_path):
    plain = tokenizer().__class__.from_pretrained(
        str(Path(load.__globals__["arithmetic"].__file__).parent / "base_models" / "arithmetic")
    )
    args = DataArguments(dataset_name=str(lines(tmp_path / "a.jsonl", SUMS)), prompt_style="chat")
    data = load_training_data(args, "some/model", plain)
    with pytest.raises(ValueError, match="No chat template can be used: set prompt_style: plain"):
        show_preview(data, plain, [math_reward], args)


# Reward functions of one's own


def right(completions, solution, **kwargs):
    return [float(answer in text) for text, answer in zip(completions, solution, strict=True)]


async def judge(completions, solution, **kwargs):
    await asyncio.sleep(0)
    return right(completions, solution)


def test_a_reward_function_is_asked_as_trl_asks(tmp_path, capsys):
    args = DataArguments(dataset_name=str(lines(tmp_path / "a.jsonl", SUMS)))
    data = load_training_data(args, "some/model-base", tokenizer())

    def checks(prompts, completions, completion_ids, question, trainer_state, log_metric, **rest):
        assert len(prompts) == len(completions) == len(completion_ids) == len(question)
        log_metric("seen", trainer_state.global_step)
        return [None if "0 + " in each else 1 for each in question]

    functions = [right, judge, checks, partial(math_reward, accept_unboxed=True)]
    show_preview(data, tokenizer(), functions, args)
    shown = capsys.readouterr().out
    assert "right 1.0. A wrong one: 0.0." in shown and "judge 1.0" in shown
    assert "checks None" in shown and "math_reward 1.0" in shown
    show_preview(data, tokenizer(), functions, args, is_shown=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "returned, said",
    [
        ({"a": 1.0, "b": 0.0}, "a list with a number or None for each of 2 is needed"),
        ({1.0, 0.0}, "a list with a number or None for each of 2 is needed"),
        ([1.0], "a list with a number or None for each of 2 is needed"),
        (None, "TypeError"),
        (["good", "bad"], "could not convert string to float: 'good'"),
        ([float("nan")] * 2, "returns NaN for all completions"),
        (ZeroDivisionError("in it"), "cannot be used: ZeroDivisionError: in it"),
    ],
)
def test_a_reward_function_that_cannot_be_used_is_named(returned, said):
    def mine(**kwargs):
        if isinstance(returned, Exception):
            raise returned
        return returned

    rows = [{"prompt": "1?", "solution": "1"}] * 2
    with pytest.raises(ValueError, match=f"The reward function mine .*{said}"):
        rewards_of(mine, rows, ["1", "2"])


def test_rewards_may_be_none_or_an_array():
    import numpy as np

    rows = [{"prompt": [{"role": "user", "content": "1?"}]}] * 2
    assert rewards_of(lambda **_: [None, True], rows, ["1", "2"]) == [None, 1.0]
    assert rewards_of(lambda **_: np.ones(2), rows, ["1", "2"]) == [1.0, 1.0]
