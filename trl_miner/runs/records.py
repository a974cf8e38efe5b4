"""What each JSON file of a run, a comparison and an evaluation must hold: a record per file, which pydantic checks.

A record is an ordinary dictionary. Fields that it does not name are left alone, and those of `total=False` may be
missing. Text is text and a number is a number: nothing is converted.
"""

import math
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

LARGEST = 2**63  # of whole numbers, as in Parquet and numpy
Count = Annotated[int, Field(strict=True, ge=0, lt=LARGEST)]
Positive = Annotated[int, Field(strict=True, ge=1, lt=LARGEST)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1 + 1e-9)]  # the mean of shares may be a little above 1
Scalar = str | int | Number


def number(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else that JSON may hold, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no largest one
        return None


class Record(TypedDict):
    """The base of all records."""

    __pydantic_config__ = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)  # type: ignore[misc]


# A run folder


class Named(Record):
    """A model or a data set: its id on the Hub, or the last name of its folder."""

    name: str
    hub: bool


class Segment(Record):
    """A part of a run, from one start to the next with other settings: see `segments`."""

    step: Count
    methods: list[str]
    settings: dict[str, str]


class Verifier(Record):
    """The reward functions that decide what is correct, and whether all of them must have scored a rollout."""

    names: list[str]
    all_must_score: bool


class Compared(Record):
    """What `trl-miner compare` decided of a run before it began."""

    method: str
    recipe: NotRequired[dict[str, Any] | None]
    options: NotRequired[list[Any] | None]
    seed: NotRequired[Count | None]
    optimizer_steps_per_step: NotRequired[AboveZero | None]


class Training(Record, total=False):
    """`training.json`."""

    base_model: Named | None
    dataset: Named | None
    held_out: Named | None
    is_chat: bool | None
    methods: list[str] | None
    papers: dict[str, tuple[str, str | None]] | None  # label and arXiv id
    settings: dict[str, str] | None
    other_settings: dict[str, str] | None
    seed: Count | None
    license: dict[str, str] | None
    versions: dict[str, str] | None
    git: str | None
    segments: list[Segment] | None
    optimizer_steps_per_step: AboveZero | None
    verifier: Verifier | None
    compared: Compared | None
    finished: dict[Literal["steps", "epochs"], Number | None] | None


class State(Record, total=False):
    """`trainer_state.json`, which transformers writes."""

    global_step: Number | None
    max_steps: Number | None
    log_history: list[Any] | None
    stateful_callbacks: dict[str, Any] | None


class Problems(Record, total=False):
    """The held-out problems in `held_out.json`."""

    fingerprint: str | None
    level: list[Scalar] | None
    trained_levels: list[Scalar] | None


class Scoring(Record):
    """One moment in `held_out.json`. In `runs.jsonl` counts below 10 are one text, with a digit for each problem."""

    step: Count
    num_samples: Positive
    num_correct: list[Count] | Annotated[str, Field(pattern=r"^[0-9]+$")]
    num_scored: NotRequired[list[Count] | None]


class HeldOutFile(Record):
    """`held_out.json`."""

    problems: Problems
    moments: dict[str, Scoring]


class LedgerHeader(Record):
    """The first line of `prompt_ledger.jsonl`; null: a stream."""

    correct_threshold: Number
    rows: NotRequired[Count | None]
    digest: NotRequired[str | None]


class FormFile(Record):
    """`prompt_form.json`, beside a model."""

    style: Literal["plain", "chat"]
    system_prompt: NotRequired[str | None]
    prompt_template: NotRequired[str | None]
    chat_template_kwargs: dict[str, Any]
    is_known: bool


class AdapterBase(Record):
    """`adapter_config.json`, where the base model is asked for."""

    base_model_name_or_path: str


class AdapterRank(Record):
    """`adapter_config.json`, where the rank is asked for."""

    r: Positive


# A comparison


class RunLine(Record):
    """A line of `runs.jsonl`."""

    name: str
    method: str | None
    seed: Count | None
    settings: dict[str, str]
    versions: dict[str, str]
    notes: list[str]
    steps: Count
    planned: Positive | None
    per_step: AboveZero | None
    finished: bool
    scores: dict[str, dict[str, Share]]
    held_out: NotRequired[HeldOutFile | None]
    logs: dict[str, list[int | Number | Literal["nan"] | None]]


# An evaluation


class Sampling(Record, total=False):
    """`settings.json`."""

    model: str | None
    temperature: Annotated[float, Field(ge=0)] | None
    max_tokens: Positive | None
    fingerprint: dict[str, str | None] | None
    versions: dict[str, str] | None


class Benchmark(Record):
    """`benchmark.json`."""

    title: str
    grader: Literal["math", "choice", "task"]
    samples: Positive
    fingerprint: str
    source: Any


class Problem(Record):
    """A line of `problems.jsonl`."""

    id: str
    question: str
    solution: str
    options: NotRequired[list[str] | None]


class Sample(Record):
    """A line of `samples.jsonl`."""

    problem: str
    sample: Count
    text: str
    tokens: Count
    truncated: bool
    limit: NotRequired[Count | None]


class Mean(Record):
    """A share, beside its confidence interval."""

    mean: Share


class Scores(Record):
    """A benchmark's in `scores.json`."""

    title: str
    problems: Positive
    samples: Positive
    k: Positive
    intervals: dict[str, Mean]


class ScoresFile(Record):
    """`scores.json`."""

    benchmarks: dict[str, Scores]


# Of PEFT's `adapter_config.json`.
BASE_MODEL, RANK = TypeAdapter(AdapterBase), TypeAdapter(AdapterRank)
OBJECT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
