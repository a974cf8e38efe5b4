"""The preview: what is shown before a training, and what ends it there."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from strangers import lines, load, tokenizer  # noqa: E402

from trl_miner.data.own import load_training_data  # noqa: E402
from trl_miner.data.preview import rewards_of, show_preview  # noqa: E402
from trl_miner.data.settings import DataArguments  # noqa: E402

SUMS = [{"question": f"{n} + 90?", "answer": n + 90} for n in range(4)]


def test_three_prompts_references_and_answers_are_shown(tmp_path, capsys):
    load(lines(tmp_path / "a.jsonl", SUMS), model="some/model")
    shown = capsys.readouterr().out
    assert shown.count("<assistant>") == 3 and "<user>2 + 90?<assistant>" in shown
    assert "Reference '90', read as 90" in shown and "4 problems to train on, 0 held out" in shown
    assert r"A correct completion, '\\boxed{90}': math_reward 1.0. A wrong one: 0.0." in shown


@pytest.mark.parametrize(
    "words, form",
    [
        ("Give the result as 'Answer: N'.", "Answer: 90"),
        ("End with #### and the number.", "#### 90"),
        ("Say 'The answer is N'.", "The answer is 90."),
        ("Do not box it with \\boxed{}, write Answer: N", "Answer: 90"),
    ],
)
def test_a_correct_completion_is_shown_in_the_form_that_the_prompt_asks_for(
    tmp_path, capsys, words, form
):
    rows = [{**row, "question": f"{row['question']} {words}"} for row in SUMS]
    load(lines(tmp_path / "a.jsonl", rows), math_accept_unboxed=True)
    assert f"A correct completion, {form!r}: math_reward 1.0" in capsys.readouterr().out


def test_a_template_says_the_form(tmp_path, capsys):
    path = lines(tmp_path / "a.jsonl", SUMS)
    load(path, prompt_template="Q: {question}\nPut it in \\boxed{}.", system_prompt="Be brief.")
    assert "Be brief.\n\nQ: 0 + 90?\nPut it in \\boxed{}.\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="'The answer is 90.', to which math_reward gives 0.0"):
        load(path, system_prompt="Be brief.")
    load(path, system_prompt="Be brief.", math_accept_unboxed=True)


def test_a_few_references_that_cannot_be_read_are_a_warning(tmp_path, capsys):
    """2 of 30 are told, 4 of 30 are too many."""
    rows = [{"q": f"{n}?", "a": "1,50" if n < 2 else n} for n in range(30)]
    load(lines(tmp_path / "a.jsonl", rows))
    shown = capsys.readouterr().out
    assert (
        "Warning: 2 of 30 references cannot be used, " in shown
        and "It has a decimal comma" in shown
    )
    rows = [{**row, "a": "1,50"} if n < 4 else row for n, row in enumerate(rows)]
    with pytest.raises(ValueError, match="4 of 30 references cannot be used"):
        load(lines(tmp_path / "a.jsonl", rows))


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

    functions = [right, judge, checks]
    show_preview(data, tokenizer(), functions, args)
    shown = capsys.readouterr().out
    assert "right 1.0. A wrong one: 0.0." in shown and "judge 1.0" in shown
    assert "checks None" in shown
    show_preview(data, tokenizer(), functions, args, is_shown=False)
    assert capsys.readouterr().out == ""


def test_a_reward_function_that_returns_something_else_is_named():
    def mine(**kwargs):
        return [1.0]

    rows = [{"prompt": "1?", "solution": "1"}] * 2
    with pytest.raises(ValueError, match="'mine' must return a list of 2 numbers"):
        rewards_of(mine, rows, ["1", "2"])


def test_rewards_may_be_none():
    rows = [{"prompt": [{"role": "user", "content": "1?"}]}] * 2
    assert rewards_of(lambda **_: [None, True], rows, ["1", "2"]) == [None, 1.0]
