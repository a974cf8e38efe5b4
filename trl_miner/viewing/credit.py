"""Which tokens get credit, as a table."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.tables import Table
from ..runs.token_credit import KINDS, Credit, read_credit, token_counts
from .pages import Section

if TYPE_CHECKING:
    from pandas import DataFrame

_LISTED = 20  # tokens

__all__ = ["Credit", "credited_tokens", "read_credit"]


def credited_tokens(credit: Credit, kind: str = "PH") -> "DataFrame":
    """Return which tokens got the credit of one kind of prompt over all steps: a row per text, most
    credit first.

    `kind` is "PH" (all right), "HE" (mixed), "NH" (all wrong) or "unscorable". Columns: "token",
    its text; "count" of its records; "credit", its summed abs(advantage) after calibration, where
    that is finite; "share" of all credit of the kind, NaN where there is none; "mean", credit per
    occurrence.
    """
    import pandas as pd
    import pyarrow.compute as pc

    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}: got {kind!r}.")
    advantages = pc.list_flatten(credit.table["advantages"].combine_chunks()).to_numpy(
        zero_copy_only=False
    )
    tokens = pd.DataFrame(
        {"token": token_texts(credit.table).to_pandas(), "credit": np.abs(advantages, dtype=float)}
    )
    is_kind = np.repeat(credit.table["kind"].to_numpy() == kind, token_counts(credit.table))
    # NaN: a tool's
    own = tokens[is_kind & tokens["credit"].notna()].replace({"credit": np.inf}, 0.0)
    rows = (
        own.groupby("token", observed=True)["credit"].agg(count="size", credit="sum").reset_index()
    )
    rows = rows.assign(
        share=rows["credit"] / (rows["credit"].sum() or np.nan), mean=rows["credit"] / rows["count"]
    )
    rows["token"] = rows["token"].astype(object)
    return rows.sort_values(
        ["credit", "count", "token"], ascending=[False, False, True], ignore_index=True
    )


def credit_section(credit: Credit) -> Section:
    """Return what MINER would credit as a part of a report: its notes, and the tokens with most."""
    tokens = credited_tokens(credit).head(_LISTED)
    rows = [
        [repr(row.token)[1:-1], f"{row.count:,}", f"{row.share:.1%}", f"{row.mean:.2g}"]
        for row in tokens.itertuples()
        if row.credit
    ]
    header = ["Token", "Records", "Share of the credit", "Mean credit"]
    notes = ["trl-miner inspect shows the same rollout by rollout."]
    table = Table("Tokens with most credit", header, rows, notes) if rows else None
    return Section("What MINER would credit", [[*credit.notes], table])


def token_texts(table: Any) -> Any:
    """Return the texts of all tokens of the `table` of a `Credit`, as a pyarrow dictionary array;
    null is ""."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_flatten(table["tokens"].combine_chunks()), "").dictionary_encode()
