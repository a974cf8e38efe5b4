"""Which tokens and which prompts get credit, as tables."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.token_credit import KINDS, Credit, groups_of, read_credit, token_counts, token_numbers

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Credit", "credited_tokens", "read_credit"]


def credited_tokens(credit: Credit, kind: str = "PH") -> "DataFrame":
    """Return which tokens got the credit of one kind of prompt over all steps: a row per text, most credit first.

    `kind` is "PH" (all right), "HE" (mixed), "NH" (all wrong) or "unscorable". Columns: "token", its text; "count" of
    its records; "credit", its summed abs(advantage) after calibration, where that is finite; "share" of all
    credit of the kind, NaN where there is none; "mean", credit per occurrence.
    """
    import pandas as pd

    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}: got {kind!r}.")
    texts, advantages = token_texts(credit.table), token_numbers(credit.table, "advantages")
    is_kind = np.repeat(credit.table["kind"].to_numpy() == kind, token_counts(credit.table))
    is_kind &= ~np.isnan(advantages)  # a tool's
    tokens = pd.DataFrame({"text": texts.indices.to_numpy()[is_kind], "credit": _absolute(advantages[is_kind])})
    rows = tokens.groupby("text")["credit"].agg(count="size", credit="sum")
    rows.insert(0, "token", np.array([*texts.dictionary.to_pylist(), None], dtype=object)[rows.index])
    rows = rows.assign(share=rows["credit"] / (rows["credit"].sum() or np.nan), mean=rows["credit"] / rows["count"])
    return rows.sort_values(["credit", "count", "token"], ascending=[False, False, True], ignore_index=True)


def token_texts(table: Any) -> Any:
    """Return the texts of all tokens of the `table` of a `Credit`, as a pyarrow dictionary array; null is ""."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_flatten(table["tokens"].combine_chunks()), "").dictionary_encode()


def prompts_of(table: Any) -> "DataFrame":
    """Return a row for each prompt of the `table` of a `Credit`.

    Columns: "step", "group", "kind"; "first", its first row, and "size", its rollouts; "tokens"; "reward", their mean,
    NaN where none is known; "credited", rollouts with an advantage; "credit", the sum and "largest", the largest
    abs(advantage) of a token.
    """
    import pandas as pd

    rows = table.select(["step", "group", "kind", "reward"]).to_pandas()
    rows["tokens"] = token_counts(table)
    credit = pd.Series(_absolute(token_numbers(table, "advantages")))
    of_row = credit.groupby(np.repeat(np.arange(table.num_rows), rows["tokens"]))
    rows["credit"], rows["largest"] = (of_row.agg(what).reindex(rows.index, fill_value=0.0) for what in ("sum", "max"))
    starts, sizes = groups_of(table)
    rows["credited"], rows["reward"] = rows["largest"] > 0, rows["reward"].astype(float)
    of_prompt = rows.groupby(np.repeat(np.arange(len(starts)), sizes))
    whats = {"step": "first", "group": "first", "kind": "first", "reward": "mean", "largest": "max"}
    whats |= dict.fromkeys(("tokens", "credited", "credit"), "sum")
    return of_prompt.agg(whats).assign(first=starts, size=sizes)


def _absolute(advantages: np.ndarray) -> np.ndarray:
    """Return abs(advantages) in float64, 0 where it is not finite."""
    return np.where(np.isfinite(advantages), np.abs(advantages.astype(np.float64)), 0.0)
