"""A page of prompts with their completions side by side, each token as dark as its credit."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .page import inside, render
from .runs import COMPLETIONS, read_run, run_folder

if TYPE_CHECKING:
    from pandas import DataFrame

PAGE = "inspect.html"
KINDS = {
    "PH": "All right",
    "HE": "Mixed",
    "NH": "All wrong",
    "unscorable": "Unscorable",
    "": "Logged completions",  # of TRL's trainer, which does not say
}
_DARKEST = 0.6  # opacity of the largest credit: the text stays readable


def write_page(
    run: str | Path, output: str | Path | None = None, *, steps: Sequence[int] | None = None
) -> Path:
    """Write the page of a run's recorded tokens as one HTML file, and return its path.

    Args:
        run: The `output_dir` of a run with `log_token_credit`, or of one with `log_completions`:
            there each completion is as dark as its advantage.
        output: The file. Default: `inspect.html` in the run's folder.
        steps: Recorded steps to show. Default: all.

    Raises:
        ValueError: The run has recorded nothing, or nothing at these steps.
    """
    folder = run_folder(run)
    path = Path(output) if output else inside(folder, PAGE)
    by_token = any(folder.glob("credit/credit_*.parquet"))
    if not by_token and not any(folder.glob(COMPLETIONS)):
        raise ValueError(
            f"No recorded tokens in {run}. Train with `log_token_credit: 10`, or with TRL's"
            " `log_completions: true` to see whole completions."
        )
    method, table = _of_tokens(folder) if by_token else _of_completions(folder)
    recorded = {*table["step"]}
    if unknown := {*(steps or ())} - recorded:
        raise ValueError(
            f"Nothing was recorded at step {min(unknown)} of {run}. Recorded: {sorted(recorded)}."
        )
    prompts = [*_prompts(table[table["step"].isin(steps or recorded)])]
    path.parent.mkdir(parents=True, exist_ok=True)
    name = folder.resolve().name
    text = render(
        "inspect.jinja", name=name, method=method, kinds=KINDS, prompts=prompts, by_token=by_token
    )
    path.write_text(text, "utf-8")
    return path


def _of_tokens(folder: Path) -> tuple[str, "DataFrame"]:
    """Return what trained, and a row per completion, a list per token in the last columns."""
    from ..run.token_credit import read_credit

    credit = read_credit(folder)
    table = credit.table.to_pandas()
    table["about"] = [
        f"reward {row.reward:g} | GRPO's advantage {row.grpo_advantage:+.3g} | mean credit"
        f" {row.advantage:+.3g} | {row.nll:.3f} nats a token"
        for row in table.itertuples()
    ]
    table["titles"] = [
        [f"credit {own:+.3g}, log p {logp:.3g}" for own, logp in zip(*lists, strict=True)]
        for lists in zip(table["advantages"], table["old_logps"], strict=True)
    ]
    return " + ".join(credit.methods) or "a method that was not recorded", table


def _of_completions(folder: Path) -> tuple[str, "DataFrame"]:
    """Return the same of logged completions, each taken for one token."""
    run = read_run(folder)
    table = run.completions
    assert table is not None
    rewards = [name for name in table if f"rewards/{name}/mean" in run.log]
    table["about"] = [
        " | ".join(f"{name} {row[name]:g}" for name in (*rewards, "advantage"))
        for row in table.to_dict("records")
    ]
    sources = {"tokens": "completion", "advantages": "advantage", "titles": "about"}
    for name, source in sources.items():
        table[name] = [[value] for value in table[source]]
    return run.method, table.assign(kind="")


def _prompts(table: "DataFrame") -> Iterator[dict[str, Any]]:
    """Yield step, kind and text of each prompt, and of its completions a line and the tokens: text,
    shade, and what it got. A shade has the sign of the credit, and its size is the opacity."""
    for (step, _), group in table.groupby(["step", "group"]):
        largest = max((abs(value) for values in group["advantages"] for value in values), default=0)
        completions = [
            (
                row.about,
                [
                    (text, round(_DARKEST * own / (largest or 1), 2), title)
                    for text, own, title in zip(row.tokens, row.advantages, row.titles, strict=True)
                ],
            )
            for row in group.itertuples()
        ]
        text, kind = group["prompt"].iloc[0], group["kind"].iloc[0]
        yield {"step": step, "kind": kind, "text": text, "completions": completions}
