"""What will be trained, before it is: prompts, references as the grader reads them, rewards."""

import inspect
from asyncio import run
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

from ..grading import describe_reference, with_points
from .columns import Row
from .own import TrainingData
from .prompts import form_asked_for, prompt_text
from .settings import DataArguments

ADVICE = {
    "comma": "has a decimal comma, or is a list: set --decimal_comma true",
    "sentence": "is a sentence: cut the answer out with --answer_pattern",
    "dictionary": "is a dictionary: name a field with --dataset_solution_column COLUMN.FIELD",
}
OTHER = "cannot be read: set --answer_pattern, or another --dataset_solution_column"
HELP = (
    "Ask for another form with --prompt_template, such as '{question} Put the answer within"
    r" \boxed{}.', or set --math_accept_unboxed true, or train prompts as they stand with"
    " --prompt_style verbatim."
)


def show_preview(
    data: TrainingData,
    tokenizer: Any,
    reward_funcs: Sequence[Any],
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
    rows = [*islice(data.train, 300)]
    tell(data.about)
    for row in rows[:3]:
        tell(f"---\n{prompt_text(row['prompt'], tokenizer, data.form.template_kwargs)}")
    ours = [each for each in reward_funcs if _plain(each).__module__ == "trl_miner.rewards"]
    tell("---\nReferences, and what they are read as:")
    good, bad = [], []
    for place, row in enumerate(rows):
        gold, options = row["solution"], row.get("options")
        reading = describe_reference(with_points(gold) if args.decimal_comma else gold, options)
        if place < 3:
            tell(f"  {gold[-80:]!r} -> {reading.shown[:80]}")
        if reading.fault and ours:
            bad.append(f"{gold[-80:]!r} {ADVICE.get(reading.fault, OTHER)}")
        else:
            good.append((row, gold if options or reading.fault else reading.answer))
    if bad:
        told = f"{len(bad)} of {len(rows)} references cannot be used. One, {bad[0]}."
        if 10 * len(bad) > len(rows):
            raise ValueError(told)
        tell(f"Warning: {told}")
    [(form, _)] = Counter(form_asked_for(row["prompt"]) for row in rows).most_common(1)
    is_boxed = data.kind == "math" and data.form.style == "verbatim"
    form = form or (r"\boxed{%s}" if is_boxed else "The answer is %s.")
    some, answers = zip(*good[:8], strict=True)
    texts = [form % answer for answer in answers] + ["I do not know."] * len(some)
    for function in reward_funcs:
        name, rewards = _plain(function).__name__, rewards_of(function, some * 2, texts)
        tell(f"A right answer, {texts[0]!r}: {name} {rewards[0]}. A wrong one: {rewards[-1]}.")
        if function in ours and rewards.count(1) < 0.9 * len(some):
            raise ValueError(
                f"{name} gives {rewards[0]} to {texts[0]!r}, a right answer in the form that the"
                f" prompts ask for. {HELP}"
            )


def rewards_of(
    function: Any, rows: Sequence[Row], texts: Sequence[str], **known: Any
) -> list[float | None]:
    """Return the rewards of one completion of each row, asking the function as TRL does.

    Args:
        function: The reward function.
        rows: With the prompt, and the columns that the function takes.
        texts: Of the completions.
        known: What else is known of the completions, such as their tokens.

    Raises:
        ValueError: It fails, does not return a number or None for each completion, or NaN for all.
    """
    from transformers import TrainerState

    completions: Any = texts
    if not isinstance(rows[0]["prompt"], str):
        completions = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    asked = columns | {"completion_ids": [[0]] * len(rows), "trainer_state": TrainerState()} | known
    try:
        found = function(
            prompts=asked.pop("prompt"),
            completions=completions,
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
            **asked,
        )
        found = run(found) if inspect.iscoroutine(found) else found
        if isinstance(found, dict | set | str) or len(found) != len(rows):
            raise TypeError(f"a list with a number or None for each of {len(rows)} is needed")
        rewards = [None if reward is None else float(reward) for reward in found]
        if all(reward != reward for reward in rewards):
            raise ValueError("it returns NaN for all completions")
    except Exception as error:  # it may be anyone's
        raise ValueError(
            f"The reward function {_plain(function).__name__} cannot be used:"
            f" {type(error).__name__}: {error}."
        ) from error
    return rewards


def _plain(function: Any) -> Any:
    """Return the function of a `functools.partial`."""
    return getattr(function, "func", function)
