"""The study of `recipes/forks`: its statistics, and its pages from its raw results."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import logit

from trl_miner.data.base_model import BaseModelSettings, _new_model
from trl_miner.data.worlds import WORLDS
from trl_miner.runs.runs_file import read_runs

REPOSITORY = Path(__file__).parent.parent
FORKS = REPOSITORY / "recipes" / "forks"
forks = WORLDS["trl_miner/forks"]
TABLES = (FORKS / "tables.md").read_text()
analysis, gates = (runpy.run_path(str(FORKS / f"{name}.py")) for name in ("analysis", "gates"))


def test_an_effect_is_a_mean_over_seeds_with_students_interval():
    """0.1, 0.2, 0.3: mean .2, error .1/sqrt(3) = .0577, t .975 of 2 degrees 4.303: half width
    .2484."""
    found = analysis["effect"]([0.1, 0.2, 0.3])
    assert (found.seeds, round(found.mean, 4), round(found.half_width, 4)) == (3, 0.2, 0.2484)
    assert round(found.p, 4) == 0.0742  # t = 3.464
    # standard deviation 0.05, difference 0.1: two-sided t at 5 %, power 80 %, 5 pairs (91 %), not 4
    assert analysis["seeds_needed"]([-0.05, 0.0, 0.05]) == 5


def test_the_tables_of_the_second_protocol_are_those_of_its_raw_results(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FORKS))
    page, raw = tmp_path / "both_sides.md", FORKS / "results" / "both_sides.jsonl.gz"
    page.write_text((FORKS / "both_sides.md").read_text())
    monkeypatch.setattr("sys.argv", ["both_sides.py", str(raw), "--page", str(page)])
    runpy.run_path(str(FORKS / "both_sides.py"), run_name="__main__")
    assert page.read_text() == (FORKS / "both_sides.md").read_text()
    # MINER less GRPO of the same seed, from the counts, as GRPO's share of right samples and its
    # own
    runs = {
        (run.method, run.seed): run.held_out.after
        for run in read_runs(raw)
        if run.settings["dataset_name"] == "trl_miner/forks"
        and float(run.settings["learning_rate"]) == 2e-4
    }
    shares = {
        key: sum(after.num_correct) / (len(after.num_correct) * after.num_samples)
        for key, after in runs.items()
    }
    differences = [
        logit(shares["miner", seed]) - logit(shares["grpo", seed]) for seed in range(1, 11)
    ]
    assert re.search(
        rf"\| miner, forks, 2e-4 +\| +10 \| \{np.mean(differences):+.2f} \(", page.read_text()
    )


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.20, 0.22, 0.21, 0.19], "higher"),
        ([-0.20, -0.22, -0.21, -0.19], "lower"),
        ([0.01, -0.01, 0.02, -0.02], "no difference beyond the margin"),
        ([0.04, 0.05, 0.06, 0.05], "higher, within the margin"),
        ([0.3, -0.3, 0.2, -0.2], "not decided"),
        ([0.3], "not decided"),
    ],
)
def test_a_verdict_says_direction_and_size(differences, verdict):
    assert analysis["effect"](differences).verdict == verdict


@pytest.fixture(scope="module")
def measured():
    raw = [FORKS / "results" / name for name in ("study.jsonl.gz", "real_model.jsonl.gz")]
    worlds = analysis["by_world"](run for path in raw for run in read_runs(path))
    return worlds | analysis["by_world"](
        read_runs(FORKS / "results" / "again.jsonl.gz"), analysis["AGAIN"]
    )


def test_the_tables_are_those_of_the_raw_results(measured):
    (quoted,) = analysis["MARKED"].findall(TABLES)
    assert quoted == analysis["sections"](measured), (
        "run analysis.py with --page tables.md, and read the pages again"
    )


def test_padding_changes_no_log_prob():
    """Problems of unlike lengths in one batch, against each rollout alone."""
    torch.manual_seed(0)
    tokenizer = forks.build_tokenizer()
    settings = BaseModelSettings(
        world=forks.NAME, hidden_size=16, intermediate_size=16, num_layers=1
    )
    model = _new_model(settings, tokenizer)
    problems = [forks.Problem((7, 3, 1, 4), "b"), forks.Problem((1, 2, 3, 4), "abcd")]
    batch = gates["Batch"](model.eval(), tokenizer, problems, seed=0)
    prompt, row = tokenizer(problems[0].prompt)["input_ids"], batch.tokens[0]
    logits = (
        model(torch.tensor([[*prompt, *row]])).logits[0, len(prompt) - 1 : -1].log_softmax(dim=1)
    )
    expected = logits[range(len(row)), row]
    torch.testing.assert_close(batch.logps_NT[0, : len(row)], expected, atol=1e-5, rtol=1e-5)
    assert int(batch.mask_NT[0].sum()) == len(row)


def test_the_gates_of_one_world_are_not_measured_on_runs_of_another():
    runs = read_runs(FORKS / "results" / "study.jsonl.gz")
    own = gates["of_world"](runs, "trl_miner/forks_mirror")
    assert {run.settings["dataset_name"] for run in own} == {"trl_miner/forks_mirror"}
    with pytest.raises(ValueError, match="must be of the world of --model: got trl_miner/forks_mi"):
        gates["of_world"](read_runs(FORKS / "results" / "pilot.jsonl.gz"), "trl_miner/forks_mirror")
