"""What will be trained, shown before it: prompts as the model gets them, references as the verifier
reads them, and what answers would score.

`trl-miner train`, `doctor` and `data` show it, and refuse what it finds to be wrong; in Python
`trl_miner.preview` returns it.
"""

import asyncio
import inspect
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from string import ascii_uppercase
from typing import Any, NamedTuple

from accelerate import PartialState
from transformers import AutoConfig, TrainerState

from ..common.progress import is_quiet
from ..data.base_model import find_model
from ..data.layout import Layout
from ..data.problems import Problem, accepts_gold, own_answers
from ..data.prompt_form import read_form
from ..data.prompts import token_ids
from ..data.reading import SUFFIXES, Row, describe_file
from ..data.references import Reference, is_letter, read_reference
from ..data.worlds import WORLDS
from ..grading.choices import option_index
from ..trainer.reward_functions import NEED_SOLUTION, check_reward_columns, checked
from .parsing import load_tokenizer

ROWS = 200  # whose prompts and references are looked at, evenly spaced
SHOWN = 3
TASKS = 20  # problems of reasoning-gym that are made again
UNPARSABLE = "I do not know."


class _Form(NamedTuple):
    """How a verifier wants an answer: what asks for it, in words, and what else may be set."""

    asked: re.Pattern[str]
    words: str
    setting: str = ""


_FORMS = {
    "math_reward": _Form(
        re.compile(r"box", re.IGNORECASE), "\\boxed{}", ", or math_accept_unboxed: true"
    ),
    "choice_reward": _Form(
        re.compile(r"answer is|answer\s*:|box", re.IGNORECASE), '"The answer is"'
    ),
    "task_reward": _Form(re.compile("<answer>"), "<answer> and </answer>"),
}
_OPTIONS_SHOWN = re.compile(r"(?<!\w)\(?A\s*[.):\]].*(?<!\w)\(?B\s*[.):\]]", re.DOTALL)
_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from)["']""")
_LAST_NUMBER = re.compile(r"[\s$€£]*[-+]?\d[\d.,/]*\D*$")
# by the fault of a reference
_ADVICE = {
    "sentence": "are sentences, which only the same words would match. Set answer_after: {!r},"
    " answer_pattern, dataset_solution_column, or another reward function.",
    "comma": "are read as several numbers because of a comma. Set decimal_comma: true if it is a"
    " decimal comma, false if it is not.",
    "dictionary": "are dictionaries. Set dataset_solution_column to the field that holds the answer,"
    " such as reward_model.ground_truth.",
    "option": "are none of their options. Set first_option to the number of the first option, or"
    " correct them.",
    "words": "can be matched by the same text alone. Correct them, set answer_pattern, or name a"
    " reward function that verifies such answers.",
}


@dataclass(frozen=True)
class Preview:
    """What will be trained, for a terminal or a file.

    Attributes:
        lines: The preview, line by line.
        refusals: Why a training would learn something else than it should, and what to set.
        warnings: What a user should know, and is no reason to refuse.
    """

    lines: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def check(self) -> None:
        """Raise ValueError with the refusals, if there are any."""
        if self.refusals:
            raise ValueError(" Also: ".join(self.refusals))


def preview(
    model: Any,
    reward_funcs: Callable[..., Any] | Sequence[Callable[..., Any]],
    args: Any,
    train_dataset: Any,
    processing_class: Any = None,
    *,
    settings: Mapping[str, Any] | None = None,
    asks_for_form: bool = True,
) -> Preview:
    """Return what a trainer with these arguments would train, without loading the model.

    Args:
        model: A Hub id, a folder, an embedded world, or a loaded model.
        reward_funcs: Reward functions; each is called once, on two rows.
        args: The trainer's `MinerGRPOConfig`.
        train_dataset: Rows with the column `prompt`.
        processing_class: The tokenizer; None: the model's.
        settings: Settings of a recipe that explain the data, such as `math_accept_unboxed`.
        asks_for_form: Whether prompts must ask for the form of an answer that the verifier reads.

    Raises:
        ValueError: The model has no tokenizer.
    """
    functions = [reward_funcs] if callable(reward_funcs) else [*reward_funcs]
    name = model if isinstance(model, str) else model.config.name_or_path
    tokenizer = processing_class or load_tokenizer(name)
    look = _Look(
        [*_some(train_dataset)],
        [each for each in functions if callable(each) and not hasattr(each, "forward")],
        tokenizer,
        _positions(name if isinstance(model, str) else model.config),
        args,
        settings or {},
        asks_for_form and not (name in WORLDS or read_form(name)),
    )
    return look.all()


def _positions(model: Any) -> int | None:
    """Return how many tokens a model can tell the places of; None: it does not say."""
    try:
        config = AutoConfig.from_pretrained(find_model(model)) if isinstance(model, str) else model
    except (OSError, ValueError, KeyError):  # told where the model is loaded
        return None
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _some(rows: Any) -> Iterable[Row]:
    """Return up to `ROWS` rows, evenly spaced, and the one with the longest prompt; of a stream the
    first."""
    if not hasattr(rows, "__len__"):
        return islice(rows, ROWS)
    places = [*range(0, len(rows), -(-len(rows) // ROWS) or 1)]
    if "prompt" in getattr(rows, "column_names", ()):
        sizes = [len(str(prompt)) for prompt in rows["prompt"]]
        places = [*dict.fromkeys([*places, sizes.index(max(sizes))])]
    return (rows[place] for place in places)


@dataclass
class _Look:
    """One look at some rows of a data set."""

    rows: list[Row]
    functions: list[Callable[..., Any]]
    tokenizer: Any
    positions: int | None
    args: Any
    settings: Mapping[str, Any]
    asks_for_form: bool
    lines: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the reward functions."""
        return [getattr(each, "__name__", type(each).__name__) for each in self.functions]

    @property
    def texts(self) -> list[str]:
        """The words of the prompts, in messages those of all."""
        return [_words(row.get("prompt")) for row in self.rows]

    def all(self) -> Preview:
        """Return what there is to see."""
        has_prompts = self._has("prompt")
        if has_prompts:
            self.look_at_prompts()
        if self._has("solution") and NEED_SOLUTION & {*self.names}:
            self.look_at_references()
        if self._has("task"):
            self.look_at_tasks()
        if has_prompts:
            self.look_at_rewards()
        return Preview(tuple(self.lines), tuple(self.refusals), tuple(self.warnings))

    def _has(self, column: str) -> bool:
        return bool(self.rows) and column in self.rows[0]

    # Prompts

    def look_at_prompts(self) -> None:
        prompts = [row["prompt"] for row in self.rows]
        if not isinstance(prompts[0], str) and not self.tokenizer.chat_template:
            if self.settings.get("tools"):
                return  # of which the trainer says more
            self.refusals.append(
                "The prompts are messages, and the model has no chat template. Choose a model that"
                " has one, or set prompt_style: plain and dataset_prompt_column to their column."
            )
            return
        if isinstance(prompts[0], str) and _MESSAGES.match(prompts[0]):
            self.refusals.append(
                "The prompts are messages written as text, which the model would read as they"
                " stand. Write them as lists of objects, in JSONL or Parquet."
            )
        kwargs = getattr(self.args, "chat_template_kwargs", None)
        tokens = [token_ids(prompt, self.tokenizer, kwargs) for prompt in prompts]
        lengths, longest = [*map(len, tokens)], getattr(self.args, "max_completion_length", None)
        self._show_prompts(tokens, longest)
        self._check_tokens(tokens)
        self._check_lengths(lengths, longest)
        self._check_form(self.texts)
        self._check_options(self.texts)

    def _show_prompts(self, tokens: Sequence[Sequence[int]], longest: int | None) -> None:
        lengths = [*map(len, tokens)]
        limit = f"; the model has {self.positions} positions" if self.positions else ""
        self.lines.append(
            f"Prompts: {min(lengths)} to {max(lengths)} tokens{limit}, an answer at most {longest}."
        )
        for place in self.shown_places:
            text = self.tokenizer.decode(tokens[place])
            self.lines += [f"--- {lengths[place]} tokens", _shortened(text)]
        self.lines.append("---")

    @property
    def shown_places(self) -> list[int]:
        """The places of the rows that are shown: the first, one in the middle, and the last."""
        return [*dict.fromkeys([0, len(self.rows) // 2, len(self.rows) - 1])]

    def _check_tokens(self, tokens: Sequence[Sequence[int]]) -> None:
        unknown = self.tokenizer.unk_token_id
        count = sum(unknown in ids for ids in tokens) if unknown is not None else 0
        if count:
            self.warnings.append(
                f"{count} of {len(tokens)} prompts have characters that the tokenizer does not"
                f" know, shown as {self.tokenizer.unk_token}: the model cannot read them."
            )

    def _check_lengths(self, lengths: Sequence[int], longest: int | None) -> None:
        if not self.positions:
            return
        long = sum(length >= self.positions for length in lengths)
        if long:
            is_refused = 2 * long > len(lengths)
            (self.refusals if is_refused else self.warnings).append(
                f"A prompt must be shorter than the model's {self.positions} positions: {long} of"
                f" {len(lengths)} are not, the longest has {max(lengths)} tokens."
                + (
                    " Set prompt_template: '{question}' for shorter prompts, or choose another"
                    " model."
                    if is_refused
                    else " Drop such rows."
                )
            )
        elif longest and max(lengths) + longest > self.positions:
            self.warnings.append(
                f"Prompt and answer may have {max(lengths)} + {longest} tokens, and the model has"
                f" {self.positions} positions. Set max_completion_length:"
                f" {self.positions - max(lengths)}."
            )

    def _check_form(self, texts: Sequence[str]) -> None:
        for name in self.names if self.asks_for_form else ():
            if name not in _FORMS or any(map(_FORMS[name].asked.search, texts)):
                continue
            if name == "math_reward" and self.settings.get("math_accept_unboxed"):
                continue
            # it also takes a last line that is right
            is_needed = name != "task_reward"
            (self.refusals if is_needed else self.warnings).append(
                f"{name} reads the answer in {_FORMS[name].words}, which no prompt asks for"
                f"{'' if is_needed else ': without them the last line must be the answer'}. Set"
                f" prompt_template, with {{question}} and these words in it{_FORMS[name].setting}."
            )

    def _check_options(self, texts: Sequence[str]) -> None:
        pairs = [
            (text, row["options"])
            for text, row in zip(texts, self.rows, strict=True)
            if row.get("options") and "choice_reward" in self.names
        ]
        bare = sum(not all(_words(each) in text for each in options) for text, options in pairs)
        if 2 * bare > len(pairs):
            self.refusals.append(
                f"The options of a question must stand in its prompt: in {bare} of {len(pairs)}"
                " prompts they do not. Set dataset_prompt_column to a column with questions, from"
                " which prompts with options are built; rename it if it is called prompt."
            )

    # References

    def look_at_references(self) -> None:
        references = [self._read(row) for row in self.rows]
        self.lines.append("References, and what they are read as:")
        for place in self.shown_places:
            self.lines.append(f"  {self._given(place)!r} -> {references[place].shown}")
        self._check_references(references)
        if "choice_reward" not in self.names:
            self._check_letters()

    def _check_letters(self) -> None:
        letters = sum(is_letter(row["solution"]) for row in self.rows)
        shown = sum(bool(_OPTIONS_SHOWN.search(text)) for text in self.texts)
        has_options = any(row.get("options") for row in self.rows)
        if 2 * letters > len(self.rows) and (has_options or 2 * shown < letters):
            self.refusals.append(
                f"{letters} of {len(self.rows)} references are letters, and no prompt has options"
                " to choose from. Set options_columns: [A, B, C, D] or dataset_options_column to"
                " the columns with their texts, and reward_funcs: choice_reward."
            )

    def _read(self, row: Row) -> Reference:
        options = row.get("options") if "choice_reward" in self.names else None
        if options or "math_reward" in self.names:
            return read_reference(row["solution"], options or None)
        return Reference(str(row["solution"]))

    def _given(self, place: int) -> str:
        """Return a reference as it stands in the data set."""
        row, column = self.rows[place], self.settings.get("dataset_solution_column") or "solution"
        try:
            return str(Layout(solution=column).gold(row))[-80:]
        except KeyError:
            return str(row["solution"])[-80:]

    def _check_references(self, references: Sequence[Reference]) -> None:
        places = self._faults(references)
        is_refused = 2 * sum(map(len, places.values())) > len(references)
        # the same comma may be read as thousands elsewhere
        is_refused |= 10 * len(places.get("comma", ())) > len(references)
        for fault, at in sorted(places.items(), key=lambda item: -len(item[1])):
            examples = "; ".join(
                f"{self._given(place)!r} -> {references[place].shown}" for place in at[:SHOWN]
            )
            text = (
                f"{len(at)} of {len(references)} references {self._advice(fault, at)} They are"
                f" {examples}{', ...' * (len(at) > SHOWN)}."
            )
            (self.refusals if is_refused or fault == "dictionary" else self.warnings).append(text)

    def _faults(self, references: Sequence[Reference]) -> dict[str, list[int]]:
        """Return the places of the references by what is wrong with them."""
        are_sets = self.settings.get("decimal_comma") is False
        faults = {each.fault for each in references} - {"", *(["comma"] if are_sets else [])}
        return {
            fault: [i for i, each in enumerate(references) if each.fault == fault]
            for fault in sorted(faults)
        }

    def _advice(self, fault: str, places: Sequence[int]) -> str:
        text = _ADVICE[fault]
        return text.format(self._phrase(places)) if fault == "sentence" else text

    def _phrase(self, places: Sequence[int]) -> str:
        """Return the words that all references have before their last number."""
        heads = [_LAST_NUMBER.sub("", self._given(place)) for place in places]
        common = os.path.commonprefix([head[::-1] for head in heads])[::-1]
        # without a number, or a part of a word that is longer in some
        words = re.split(r"\d\S*\s*", common if common[:1] == " " else f"0{common}")[-1].split()
        return " ".join(words[-6:]).strip(" ,.:;") or "So the answer is"

    def look_at_tasks(self) -> None:
        """Check that problems of reasoning-gym can be made again, and have the answers that stand
        with them."""
        rows = self.rows[:TASKS] if "task_reward" in self.names else []
        # their answers stand in a column of their own, which no other reward function reads
        problems = [
            Problem("", "", str(row.get("answer", row.get("solution"))), task=row.get("task") or "")
            for row in rows
        ]
        bad = accepts_gold("task", problems).count(False)
        if bad:
            (self.refusals if 2 * bad > len(rows) else self.warnings).append(
                f"task_reward rejects the answers to {bad} of the first {len(rows)} problems. Make"
                " the problems again: the installed reasoning-gym does not make those of the column"
                " task, or their answers are others."
            )

    # Rewards

    def look_at_rewards(self) -> None:
        if any(map(self.settings.get, ("tools", "environment_factory", "rollout_func"))):
            return  # which bring what rewards need
        rows = [self.rows[0], self.rows[-1]]
        answers = [answer for row in rows for answer in self._answers(row)]
        table = {
            name: rewards
            for name, function in zip(self.names, self.functions, strict=True)
            if (rewards := self._rewards(name, function, rows, answers))
        }
        self.lines += ["Rewards of a right, a wrong and an unreadable answer:"] if table else []
        for index, answer in enumerate(answers[:3] if table else ()):
            scores = ", ".join(f"{name} {rewards[index]}" for name, rewards in table.items())
            self.lines.append(f"  {_shortened(answer, 60)!r}: {scores}")

    def _rewards(
        self, name: str, function: Any, rows: Sequence[Row], answers: Sequence[str]
    ) -> list[float | None]:
        """Return the rewards of three answers to each row; none where the function is refused."""
        try:
            check_reward_columns([name], [function], [*rows[0]])
            rewards = checked(name, function)(**self._handed(rows, answers))
            rewards = asyncio.run(rewards) if inspect.iscoroutine(rewards) else rewards
        except ValueError as error:
            self.refusals.append(str(error))
            return []
        return [None if math.isnan(reward) else reward for reward in rewards]

    def _answers(self, row: Row) -> tuple[str, str, str]:
        """Return a right, a wrong and an unreadable answer to a row, as far as they are known."""
        options = tuple(row.get("options") or ()) if "choice_reward" in self.names else ()
        grader = "choice" if options else "task" if "task_reward" in self.names else "math"
        gold = row.get("solution")
        golds = [each.get("solution") for each in self.rows]
        if options:
            golds = [each for each in ascii_uppercase[: len(options)]
                     if option_index(each, options) != option_index(gold, options)]  # fmt: skip
        wrong = next((each for each in golds if each != gold), "-1")
        right, wrong = (
            own_answers(grader, Problem("", "", self._value(each, grader), options))[0]
            for each in (gold, wrong)
        )
        return right, wrong, UNPARSABLE

    def _value(self, gold: Any, grader: str) -> str:
        """Return what a right answer says of a gold, which may be a sentence around it."""
        return (read_reference(gold).answer if grader == "math" else "") or str(gold)

    def _handed(self, rows: Sequence[Row], answers: Sequence[str]) -> dict[str, Any]:
        """Return what TRL hands to a reward function for three answers to each row."""
        rows = [row for row in rows for _ in range(3)]
        forwarded = [
            name for name in rows[0] if name not in ("prompt", "completion", "completion_ids")
        ]
        completions: list[Any] = [*answers]
        if not isinstance(rows[0]["prompt"], str):
            completions = [[{"role": "assistant", "content": text}] for text in answers]
        return {
            **{name: [row.get(name) for row in rows] for name in forwarded},
            "prompts": [row["prompt"] for row in rows],
            "completions": completions,
            "completion_ids": [self.tokenizer(text)["input_ids"] for text in answers],
            "trainer_state": TrainerState(),
            "log_extra": lambda *args: None,
            "log_metric": lambda *args: None,
        }


def _words(prompt: Any) -> str:
    """Return the text of a prompt, with single blanks."""
    parts = [prompt] if isinstance(prompt, str) else [each.get("content") for each in prompt or ()]
    return " ".join(" ".join(map(str, parts)).split())


def _shortened(text: str, size: int = 1500) -> str:
    half = size // 2
    return text if len(text) <= size else f"{text[:half]} [...] {text[-half:]}"


# Of a recipe


def show(shown: Preview) -> None:
    """Print a preview and its warnings, by one process of a run, and refuse what it refuses.

    Raises:
        ValueError: A refusal, by every process.
    """
    if PartialState().is_main_process:
        lines = [] if is_quiet() and not shown.refusals else [str(shown)]
        lines += [f"Warning: {text}" for text in shown.warnings]
        print("\n".join(lines), end="\n" * bool(lines), file=sys.stderr, flush=True)
    shown.check()


def preview_recipe(
    args: Any, config: Any, model_args: Any, reward_funcs: Sequence[Any], data: Any
) -> Preview:
    """Return what a recipe would train, with where its rows come from and what its columns are."""
    rows = data[args.dataset_train_split]
    of_rows = preview(
        model_args.model_name_or_path,
        reward_funcs,
        config,
        rows,
        load_tokenizer(
            model_args.model_name_or_path,
            model_args.model_revision,
            trusts=bool(getattr(config, "trust_remote_code", False)),
        ),
        settings=vars(args),
        asks_for_form=args.dataset_name not in WORLDS,
    )
    return Preview((*_about(args, data, rows), *of_rows.lines), of_rows.refusals, of_rows.warnings)


def _about(args: Any, data: Any, rows: Any) -> Iterator[str]:
    name = str(args.dataset_name or "a mixture")
    how = f" ({describe_file(name)})" if name.lower().endswith(SUFFIXES) else ""
    sizes = [f"{len(part)} in {split}" for split, part in data.items() if hasattr(part, "__len__")]
    yield f"Data: {name}{how}: {', '.join(sizes) or 'a stream'}."
    if hasattr(rows, "__len__"):
        yield _columns(args, rows.column_names)
        if "prompt" in rows.column_names:
            yield _duplicates(rows["prompt"])


def _columns(args: Any, names: Sequence[str]) -> str:
    """Return in words which columns are used, and which are not."""
    used = {
        "question": [args.dataset_prompt_column],
        "answer": [args.dataset_solution_column],
        "options": args.options_columns or [args.dataset_options_column],
        "context": args.context_columns or [],
    }
    tops = {what: {each.partition(".")[0] for each in columns} for what, columns in used.items()}
    said = [
        f"{what} {', '.join(columns)}" for what, columns in used.items() if tops[what] & {*names}
    ]
    rest = {*names} - {*set.union(*tops.values()), "prompt", "solution", "options"}
    others = [name for name in names if name in rest]
    return f"Columns: {'; '.join(said) or 'none'}. Not shown: {', '.join(others) or 'none'}."


def _duplicates(prompts: Iterable[Any]) -> str:
    counts = Counter(" ".join(str(prompt).split()) for prompt in prompts)
    repeated = counts.total() - len(counts)
    if not repeated:
        return "Duplicates: none."
    prompt, count = counts.most_common(1)[0]
    return f"Duplicates: {repeated} rows repeat a prompt; {count} have the one {prompt[-80:]!r}."
