"""What will be trained, before it is: prompts, references as the grader reads them, rewards."""

import inspect
from asyncio import run
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

from transformers import TrainerState

from ..grading import describe_reference, with_points
from ..trainer.correctness import check_returned
from .columns import Row
from .own import TrainingData
from .prompts import form_asked_for, prompt_text
from .settings import DataArguments

ADVICE = {
    "": "Ask for another form with --prompt_template, such as '{question} Put the answer within"
    r" \boxed{}.', or set --math_accept_unboxed true, or train prompts as they stand with"
    " --prompt_style verbatim.",
    "comma": "It has a decimal comma, or is a list: set --decimal_comma true.",
    "sentence": "It is a sentence: cut the answer out with --answer_pattern.",
    "dictionary": "It is a dictionary: name a field with --dataset_solution_column COLUMN.FIELD.",
}
OTHER = (
    "The grader reads no answer in it: set --answer_pattern, or another --dataset_solution_column."
)


def show_preview(
    data: TrainingData,
    tokenizer: Any,
    reward_funcs: Sequence[Any],
    args: DataArguments,
    *,
    is_shown: bool = True,
) -> None:
    """Print three prompts, their references as the grader reads them, and what correct and wrong
    completions get.

    Raises:
        ValueError: References cannot be read, correct completions get no reward, or a reward
            function does not return a number or None for each completion.
    """
    tell = print if is_shown else lambda text: None
    rows, readings, texts = [*islice(data.train, 300)], [], []
    [(form, _)] = Counter(form_asked_for(row["prompt"]) for row in rows).most_common(1)
    is_boxed = data.kind == "math" and data.form.style == "verbatim"
    form = form or (r"\boxed{%s}" if is_boxed else "The answer is %s.")
    for row in rows:
        gold, options = row["solution"], row.get("options")
        reading = describe_reference(with_points(gold) if args.decimal_comma else gold, options)
        readings.append(reading)
        texts.append(form % (gold if options else reading.answer))
    tell(data.about)
    for row, reading in zip(rows[:3], readings, strict=False):
        prompt = prompt_text(row["prompt"], tokenizer, data.form.template_kwargs)
        tell(f"---\n{prompt}\n---\nReference {row['solution'][-80:]!r}, read as {reading.shown}")
    for function in reward_funcs:
        name, two = function.__name__, [texts[0], "I do not know."]
        good, bad = rewards_of(function, rows[:1] * 2, two)
        tell(f"A correct completion, {texts[0]!r}: {name} {good}. A wrong one: {bad}.")
        if function.__module__ != "trl_miner.rewards":
            continue
        rewards = rewards_of(function, rows, texts)
        unfit = [at for at, reward in enumerate(rewards) if reward != 1 or readings[at].fault]
        if unfit:
            at, advice = unfit[0], ADVICE.get(readings[unfit[0]].fault, OTHER)
            told = (
                f"{len(unfit)} of {len(rows)} references cannot be used, such as that in"
                f" {texts[at]!r}, to which {name} gives {rewards[at]}. {advice}"
            )
            if 10 * len(unfit) > len(rows):
                raise ValueError(told)
            tell(f"Warning: {told}")


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
        ValueError: It does not return a number or None for each completion, or NaN for all.
    """
    completions: Any = texts
    if not isinstance(rows[0]["prompt"], str):
        completions = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    asked = columns | {"completion_ids": [[0]] * len(rows), "trainer_state": TrainerState()} | known
    found = function(
        prompts=asked.pop("prompt"),
        completions=completions,
        log_extra=lambda *_: None,
        log_metric=lambda *_: None,
        **asked,
    )
    found = run(found) if inspect.iscoroutine(found) else found
    return check_returned(function.__name__, found, len(rows))
