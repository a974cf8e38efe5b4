"""What each JSON file of a run, a comparison and an evaluation must hold, which pydantic checks.

A record is an ordinary dictionary. Fields that it does not name are left alone. Text is text and a
number is a number: nothing is converted.
"""

from typing import Annotated, Any, Literal, NotRequired, Optional

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]  # as in Parquet and numpy
Positive = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
# of each problem; metrics take time and memory for each
Samples = Annotated[int, Field(strict=True, ge=1, le=10**6)]
# larger than any measurement; sums of squares stay finite
_LARGEST = 1e100
Number = Annotated[float, Field(strict=True, ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
# the mean of shares may be a little above 1
Share = Annotated[float, Field(strict=True, ge=0, le=1 + 1e-9)]
Texts = dict[str, str]


def number(value: Any) -> float | None:
    """Return a number up to 1e100 as a float; None for anything else that JSON may hold, booleans
    included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None


def record(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Any:
    """Return the type of a record by its fields; the optional ones may be missing, or null."""
    fields = required | {
        name: NotRequired[Optional[kind]]  # noqa: UP045
        for name, kind in (optional or {}).items()
    }
    made = TypedDict("Record", fields)  # type: ignore[misc]
    return with_config(ConfigDict(strict=True, extra="allow", allow_inf_nan=False))(made)


# A model or a data set: its id on the Hub, or the last name of its folder.
Named = record({"name": str, "hub": bool})
# `compared.json`.
Compared = record({"method": str}, {"recipe": dict[str, Any], "options": list[Any], "seed": Count})
# Settings with which a run went on from a step, with the values before and behind it.
Change = record({"step": Count, "settings": dict[str, tuple[str, str]]})
# `training.json`; `papers` are label and arXiv id.
Training = record(
    {},
    {
        **dict.fromkeys(("base_model", "dataset"), Named),
        **dict.fromkeys(("settings", "versions"), Texts),
        **dict.fromkeys(("methods", "tags"), list[str]),
        "changes": list[Change],  # type: ignore[valid-type]
        "papers": dict[str, tuple[str, str | None]],
        "seed": Count,
        "git": str,
        "optimizer_steps_per_step": AboveZero,
    },
)
# `trainer_state.json`, which transformers writes.
State = record({}, {"global_step": Number, "max_steps": Number, "log_history": list[Any]})
# A file in `files.json` of a checkpoint.
Contents = record({"bytes": Count, "checksum": str})
# `prompt_form.json`, beside a model.
FormFile = record(
    {"style": Literal["plain", "chat"], "chat_template_kwargs": dict[str, Any], "is_known": bool},
    {"system_prompt": str, "prompt_template": str},
)
# `settings.json`, `benchmark.json`, lines of `problems.jsonl` and `samples.jsonl`, and
# `scores.json` of an evaluation.
Sampling = record(
    {},
    {
        "model": str,
        "temperature": Annotated[float, Field(ge=0)],
        "max_tokens": Positive,
        "fingerprint": dict[str, str | None],
        "versions": Texts,
    },
)
Benchmark = record(
    {
        "title": str,
        "grader": Literal["math", "choice", "task"],
        "samples": Samples,
        "fingerprint": str,
        "source": Any,
    },
    {"decimal_comma": bool},
)
Problem = record({"id": str, "question": str, "solution": str}, {"options": list[str], "task": str})
Sample = record({"problem": str, "sample": Count, "text": str, "tokens": Count, "truncated": bool})
Scores = record(
    {
        "title": str,
        **dict.fromkeys(("problems", "samples", "k"), Samples),
        "intervals": dict[str, record({"mean": Share})],  # type: ignore[misc]
    }
)
ScoresFile = record({"benchmarks": dict[str, Scores]})  # type: ignore[valid-type]

# Of PEFT's `adapter_config.json`, where base model or rank is asked for.
BASE_MODEL = TypeAdapter(record({"base_model_name_or_path": str}, {"revision": str}))
RANK = TypeAdapter(record({"r": Positive}))
OBJECT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
