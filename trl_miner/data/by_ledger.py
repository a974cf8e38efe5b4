"""The rows of a training set by how their prompts came out in a run, as its prompt ledger says."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..progress import track
from ..runs.prompt_ledger import FILE, differences, header_of, key_text, prompt_key, read_ledger

KEEP = ("solved", "mixed", "unsolved", "unseen")  # at the last visit: `prompt_outcomes.KINDS`, and UNSEEN


def rows_to_keep(rows: Any, run: str | Path, keep: Collection[str]) -> tuple[list[int], dict[str, int]]:
    """Return the numbers of the rows whose prompts came out as asked for, and how many rows came out how.

    Args:
        rows: The `Dataset` that the run was trained on, with its column `prompt` as the trainer gets it.
        run: The run folder.
        keep: Of `KEEP`.

    Raises:
        FileNotFoundError: The folder has no ledger.
        ValueError: The ledger is damaged or of another training set, or no row is left.
    """
    if "prompt" not in rows.column_names:
        raise ValueError(
            f"The training set must have the column prompt: got {', '.join(rows.column_names)}. Set "
            f"dataset_prompt_column."
        )
    from ..runs.prompt_outcomes import UNSEEN, outcomes_of

    ledger = read_ledger(run)
    if ledger is None:
        raise FileNotFoundError(
            f"--ledger must be the folder of a run that has a {FILE}: {run} has none. It has "
            f"generated nothing yet: train it first."
        )
    if damage := [note for note in ledger.notes if "damaged" in note or not ledger.header]:
        raise ValueError(
            f"--ledger must be a run whose ledger can be read whole: {' '.join(damage)} Restore the file."
        )
    if not ledger.header:
        raise ValueError(f"--ledger must be a run that has begun to train: the {FILE} of {run} is empty.")
    if differing := differences(ledger.header, header_of(rows, ledger.header["correct_threshold"])):
        raise ValueError(
            f"--ledger must be of the training set that is given: {differing}. Give the recipe of that run, with the "
            f"same options."
        )
    last = dict(zip(ledger.keys, outcomes_of(ledger).last_P.tolist(), strict=True))
    columns = [name for name in ("prompt", "image", "images") if name in rows.column_names]
    prompts = track(rows.select_columns(columns), "looking up prompts", unit="rows")
    names = [KEEP[last.get(key_text(prompt_key(row)), UNSEEN)] for row in prompts]
    counts = {name: names.count(name) for name in KEEP}
    chosen = [place for place, name in enumerate(names) if name in keep]
    if not chosen:
        raise ValueError(f"--keep must leave some prompts: got {' '.join(keep)}, and there are {say_counts(counts)}.")
    return chosen, counts


def say_counts(counts: dict[str, int]) -> str:
    """Return "2 solved, 5 mixed, 3 unsolved, 0 unseen"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
