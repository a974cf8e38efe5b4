"""Many runs in one file of JSON lines: nothing that a report reads is lost, and what is no such
file is named."""

import gzip
import json
import math
from dataclasses import fields

import numpy as np
import pytest
from studies import write_study

from trl_miner.cli import main
from trl_miner.runs.history import read_run
from trl_miner.runs.runs_file import METRIC_PREFIXES, METRICS, collect_runs, read_runs, write_runs
from trl_miner.viewing.charts import CHARTS
from trl_miner.viewing.inputs import read_inputs


def edit(path, **more):
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


@pytest.mark.parametrize("is_packed", [False, True])
def test_what_a_report_reads_of_the_file_is_what_it_reads_of_the_folders(tmp_path, is_packed):
    write_study(tmp_path / "study", seeds=2)
    of_folders = read_inputs([tmp_path / "study"]).runs
    path = tmp_path / "runs.jsonl"
    write_runs(of_folders, path)
    if is_packed:
        path = tmp_path / "packed.jsonl.gz"
        path.write_bytes(gzip.compress((tmp_path / "runs.jsonl").read_bytes()))
    of_file = read_inputs([path]).runs
    assert len(of_file) == 6
    for found, known in zip(of_file, of_folders, strict=True):
        for name in {field.name for field in fields(known)} - {"folder", "columns"}:
            assert getattr(found, name) == getattr(known, name), name
        for key in found.columns:
            np.testing.assert_allclose(found.points(key), known.points(key), rtol=1e-5)


def test_a_packed_file_that_is_damaged_is_named(tmp_path):
    packed = tmp_path / "packed.jsonl.gz"
    for content in (gzip.compress(b"{}" * 99)[:-20], b"{}"):
        packed.write_bytes(content)
        with pytest.raises(
            ValueError, match="packed.jsonl.gz must be packed by gzip: .* Restore it"
        ):
            read_runs(packed)


def test_logs_keep_six_digits_gaps_and_what_reports_read(tmp_path):
    folder = write_study(tmp_path)[0]
    logs = [
        {"step": 1, "reward": 0.12345678, "num_tokens": 123456789.0, "learning_rate": 1e-4},
        {"step": 2, "reward": math.nan, "kl": 0.5},
    ]
    edit(folder / "trainer_state.json", log_history=logs)
    write_runs([read_run(folder)], path := tmp_path / "runs.jsonl")
    (run,) = read_runs(path)
    assert run.values("num_tokens") == [(1, 123456789)] and "learning_rate" not in run.columns
    assert run.values("reward") == [(1, 0.123457)] and run.values("kl") == [(2, 0.5)]


def test_every_metric_of_a_chart_is_kept():
    keys = {panel.key for chart in CHARTS for panel in chart.panels}
    assert keys and all(key in METRICS or key.startswith(METRIC_PREFIXES) for key in keys)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "must hold at least one run: it is empty"),
        (b'{"prompt": "1 + 1"}\n', "runs.jsonl, line 1: name: Field required"),
        (
            None,
            (
                "is missing. Restore it, or run trl-miner compare again, which writes"
                " OUTPUT/runs.jsonl."
            ),
        ),
    ],
)
def test_what_is_no_file_of_runs_is_named(tmp_path, capsys, content, message):
    path = tmp_path / "runs.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["report", str(path), "--quiet"]) == 2
    told = capsys.readouterr().err
    assert message in told and str(path) in told and len(told.strip().splitlines()) == 1


def test_a_comparison_keeps_the_runs_of_earlier_calls_and_survives_damaged_ones(tmp_path):
    folders = write_study(tmp_path, after={"miner": 0.7, "grpo": 0.6}, seeds=10, problems=8, logs=1)
    (folders[0] / "trainer_state.json").write_text("{")  # miner/seed1
    (folders[1] / "trainer_state.json").unlink()
    collect_runs(tmp_path)
    names = [run.name for run in read_runs(tmp_path / "runs.jsonl")]
    assert names == [
        *(f"grpo/seed{seed}" for seed in range(1, 11)),
        *(f"miner/seed{seed}" for seed in range(3, 11)),
    ]
    collect_runs(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
