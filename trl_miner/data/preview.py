"""What will be trained, before it is: prompts, references as the grader reads them, rewards."""

import inspect
from asyncio import run
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..grading import describe_reference
from .own import TrainingData
from .prompts import form_asked_for, prompt_text
from .settings import DataArguments

ROWS, GRADED, SHOWN = 300, 20, 3  # whose references are read, whose answers graded, and shown
ADVICE = {
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
    pairs = [(row, row["solution"]) for row in rows]
    if ours:
        pairs = _read_references(rows, args, tell)
    for function in reward_funcs:
        some = pairs[: GRADED if function in ours else SHOWN]
        right = [_form(data, row) % answer for row, answer in some]
        wrong = [
            _form(data, row)
            % ("B" if answer == "A" else "A" if data.kind == "choice" else "-98765")
            for row, answer in some
        ]
        asked = [row for row, _ in some]
        rewards = rewards_of(function, asked * 2, right + wrong)
        name, paid = _plain(function).__name__, rewards[: len(some)]
        tell(f"A right answer, {right[0]!r}: {name} {paid[0]}")
        tell(f"A wrong answer, {wrong[0]!r}: {name} {rewards[-1]}")
        if function in ours and paid.count(1) < 0.9 * len(paid):
            place = [reward == 1 for reward in paid].index(False)
            raise ValueError(
                f"{name} gives {paid[place]} to {right[place]!r}, a right answer in the form that the"
                f" prompts ask for. {HELP}"
            )


def _read_references(
    rows: Sequence[dict[str, Any]], args: DataArguments, tell: Callable[[str], None]
) -> list[tuple[dict[str, Any], str]]:
    """Return the rows whose references are read as they are meant, with right answers to them."""
    readings = [
        describe_reference(row["solution"], row.get("options"), decimal_comma=args.decimal_comma)
        for row in rows
    ]
    tell("---\nReferences, and what they are read as:")
    for row, reading in zip(rows[:SHOWN], readings, strict=False):
        tell(f"  {row['solution'][-80:]!r} -> {reading.shown[:80]}")
    pairs = [*zip(rows, readings, strict=True)]
    for fault in sorted({reading.fault for reading in readings} - {""}):
        bad = [row["solution"][-80:] for row, reading in pairs if reading.fault == fault]
        told = f"{len(bad)} of {len(rows)} references {ADVICE[fault]}. One is {bad[0]!r}."
        if len(bad) > 0.1 * len(rows):
            raise ValueError(told)
        tell(f"Warning: {told}")
    return [(row, reading.answer) for row, reading in pairs if not reading.fault]


def _form(data: TrainingData, row: Mapping[str, Any]) -> str:
    """Return what an answer to a row must look like, `%s` where it stands."""
    usual = {"math": r"\boxed{%s}", "choice": "The answer is %s."}[data.kind]
    bare = usual if data.form.style == "verbatim" else "%s"  # which need not say it
    return data.answer_form or form_asked_for(row["prompt"]) or bare


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
