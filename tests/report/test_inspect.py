"""The page of token credit."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report.trl_run import write_trl_run

from trl_miner.report.inspect import write_page
from trl_miner.run.token_credit import FOLDER, schema


def row(
    step=1, group=0, rollout=0, kind="HE", tokens=("so ", "7"), advantages=(0.5, -0.25), **more
):
    """Return a row of a credit file."""
    known = {"step": step, "group": group, "rollout": rollout, "kind": kind}
    known |= {"prompt": f"question {group}", "completion": "".join(tokens), "reward": 1.0}
    known |= {"grpo_advantage": 0.7, "advantage": 0.125, "nll": 0.5, "length": len(tokens)}
    known |= {
        "tokens": list(tokens),
        "advantages": list(advantages),
        "old_logps": [-0.5] * len(tokens),
    }
    return {name: None for name in schema().names} | known | more


def write_credit(folder, *rows):
    """Write the rows as the credit of a run, a file per step."""
    (folder / FOLDER).mkdir(parents=True)
    for step in {each["step"] for each in rows}:
        table = pa.Table.from_pylist([each for each in rows if each["step"] == step], schema())
        pq.write_table(table, folder / FOLDER / f"credit_{step:05d}.parquet")
    return folder


def spans(page):
    """Return class, opacity and text of each shaded token."""
    found = re.findall(r'<span class="(\w+)" style="--o:([\d.]+)" title="[^"]*">([^<]*)<', page)
    return [(kind, float(opacity), text) for kind, opacity, text in found]


def test_a_token_is_as_dark_as_its_credit_among_its_prompts(tmp_path):
    folder = write_credit(
        tmp_path / "run",
        row(rollout=0, advantages=(0.5, -0.25)),
        row(rollout=1, advantages=(0.0, 1.0)),
        row(group=1, kind="PH", advantages=(0.001, 0.0)),
    )
    page = write_page(folder).read_text()
    # The largest of the first prompt is 1, of the second 0.001; the darkest is 0.6 opaque.
    assert spans(page) == [
        ("plus", 0.6, "so "),  # all-right prompts come first
        ("plus", 0.3, "so "),
        ("minus", 0.15, "7"),
        ("plus", 0.6, "7"),
    ]
    assert re.search(r"All right: 1 prompt<.*Mixed: 1 prompt<", page, re.DOTALL)
    assert "credit +0.001, log p -0.5" in page


def test_text_from_a_model_is_shown_and_never_runs(tmp_path):
    bad = "<img src=x onerror=alert(1)>"
    folder = write_credit(tmp_path / "run", row(tokens=(bad, "'\""), prompt=bad))
    page = write_page(folder).read_text()
    assert "<img" not in page
    assert page.count("&lt;img") == 3  # in the summary, the prompt and the completion
    assert "Token credit of run, trained with" in page


def test_steps_limit_the_page(tmp_path):
    folder = write_credit(tmp_path / "run", *(row(step=step) for step in (1, 11, 21)))
    page = write_page(folder, steps=[11]).read_text()
    assert "Step 11" in page and "Step 1:" not in page
    with pytest.raises(ValueError, match=r"step 12 of .*Recorded: \[1, 11, 21\]"):
        write_page(folder, steps=[11, 12])


def test_of_a_plain_run_each_completion_is_as_dark_as_its_advantage(tmp_path):
    folder = write_trl_run(tmp_path / "run", [[[1, 0], [1, 1]]])
    page = write_page(folder).read_text()
    assert spans(page) == [("plus", 0.6, "answer 1 0"), ("minus", 0.6, "answer 1 1")]
    assert "trained with TRL&#39;s GRPOTrainer" in page
    assert "accuracy 1 | advantage 0.5" in page


def test_a_run_without_records_is_refused_with_the_setting(tmp_path):
    with pytest.raises(ValueError, match="log_token_credit: 10"):
        write_page(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        write_page(tmp_path / "none")
