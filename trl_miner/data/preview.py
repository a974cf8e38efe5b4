"""What will be trained, before it is: prompts, references as the grader reads them, rewards."""

import inspect
import re
from asyncio import run
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..grading import describe_reference, with_points
from .own import TrainingData
from .prompts import form_asked_for, prompt_text
from .settings import DataArguments

ROWS, GRADED, SHOWN = 300, 20, 3  # whose references are read, whose answers graded, and shown
ADVICE = {
    "empty": "are empty: name another column with --dataset_solution_column",
    "option": "are none of the options: name another column with --dataset_solution_column",
    "comma": "have a decimal comma, or are lists: set --decimal_comma true",
    "sentence": "are sentences: cut the answer out with --answer_pattern",
    "dictionary": "are dictionaries: name a field with --dataset_solution_column COLUMN.FIELD",
    "words": "are neither a value nor a short name: cut the answer out with --answer_pattern, or"
    " name another column with --dataset_solution_column",
}
HELP = (
    "Ask for another form with --prompt_template, such as '{question} Put the answer within"
    " \\\\boxed{}.', or set --math_accept_unboxed true, or train prompts as they stand with"
    " --prompt_style verbatim."
)


def show_preview(
    data: TrainingData,
    tokenizer: Any,
    reward_funcs: Sequence[Callable[..., Any]],
    args: DataArguments,
    *,
    is_shown: bool = True,
) -> None:
    """Print three prompts, their references as the grader reads them, and what right and wrong
    answers get.

    Raises:
        ValueError: References cannot be read, right answers get no reward, or a reward function
            does not return a number or None for each completion.
    """
    tell = print if is_shown else lambda text: None
    rows = data.train.select(range(min(len(data.train), ROWS))).to_list()
    tell(data.about)
    for row in rows[:SHOWN]:
        tell(f"---\n{prompt_text(row['prompt'], tokenizer, data.form.template_kwargs)}")
    ours = [each for each in reward_funcs if _plain(each).__module__ == "trl_miner.rewards"]
    answers = [row["solution"] for row in rows]
    if ours:
        rows, answers = _read_references(rows, args, tell)
        is_letters = data.kind == "math" and all(re.fullmatch("[A-J]", each) for each in answers)
        if is_letters and not re.search(r"\bB[.):]", str(rows[0]["prompt"])):
            raise ValueError(
                "The references are letters of options that no prompt has: name these with"
                " --dataset_options_column, or with --options_columns."
            )
    usual, other = {"math": (r"\boxed{%s}", "-98765"), "choice": ("The answer is %s.", "B")}[
        data.kind
    ]
    bare = usual if data.form.style == "verbatim" else "%s"  # prompts that need not say it
    forms = [data.answer_form or form_asked_for(row["prompt"]) or bare for row in rows]
    right = [form % answer for form, answer in zip(forms, answers, strict=True)]
    wrong = [
        form % ("A" if answer == "B" else other)
        for form, answer in zip(forms, answers, strict=True)
    ]
    for function in reward_funcs:
        name, some = _plain(function).__name__, GRADED if function in ours else SHOWN
        paid = rewards_of(function, rows[:some], right[:some])
        unpaid = rewards_of(function, rows[:some], wrong[:some])
        tell(f"A right answer, {right[0]!r}: {name} {paid[0]}")
        tell(f"A wrong answer, {wrong[0]!r}: {name} {unpaid[0]}")
        if function in ours and paid.count(1) < 0.9 * len(paid):
            bad = next(text for text, reward in zip(right, paid, strict=False) if reward != 1)
            raise ValueError(
                f"{name} does not pay for {bad!r}, a right answer in the form that the prompts ask"
                f" for. {HELP}"
            )


def _read_references(
    rows: Sequence[dict[str, Any]], args: DataArguments, tell: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows whose references are read as they are meant, and right answers to them."""
    kept, answers, bad = [], [], defaultdict(list)
    tell("---\nReferences, and what they are read as:")
    for place, row in enumerate(rows):
        gold, options = row["solution"], row.get("options")
        reading = describe_reference(with_points(gold) if args.decimal_comma else gold, options)
        if place < SHOWN:
            tell(f"  {gold[-80:]!r} -> {reading.shown[:80]}")
        if reading.fault:
            bad[reading.fault].append(gold[-80:])
        else:
            kept.append(row)
            answers.append(gold if options else reading.answer)
    for fault, golds in bad.items():
        told = f"{len(golds)} of {len(rows)} references {ADVICE[fault]}. One is {golds[0]!r}."
        if 10 * len(golds) > len(rows):
            raise ValueError(told)
        tell(f"Warning: {told}")
    return kept, answers


def rewards_of(
    function: Callable[..., Any], rows: Sequence[Mapping[str, Any]], texts: Sequence[str]
) -> list[float | None]:
    """Return the rewards of one answer to each row, asking the function as TRL does.

    Raises:
        ValueError: It fails, does not return a number or None for each answer, or NaN for all.
    """
    from transformers import TrainerState

    is_text = isinstance(rows[0]["prompt"], str)
    completions = texts if is_text else [[{"role": "assistant", "content": text}] for text in texts]
    fault = f"The reward function {_plain(function).__name__}"
    try:
        found = function(
            prompts=[row["prompt"] for row in rows],
            completions=completions,
            completion_ids=[[0] for _ in rows],
            trainer_state=TrainerState(),
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
            **{name: [row[name] for row in rows] for name in rows[0] if name != "prompt"},
        )
        found = run(found) if inspect.iscoroutine(found) else found
        if isinstance(found, dict | set | str) or len(found) != len(rows):
            raise TypeError(f"a list with a number or None for each of {len(rows)} is needed")
        rewards = [None if reward is None else float(reward) for reward in found]
    except Exception as error:  # it may be anyone's
        raise ValueError(f"{fault} cannot be used: {type(error).__name__}: {error}") from error
    if all(reward != reward for reward in rewards):
        raise ValueError(f"{fault} returns NaN for all completions.")
    return rewards


def _plain(function: Any) -> Any:
    """Return the function of a `functools.partial`."""
    return getattr(function, "func", function)
