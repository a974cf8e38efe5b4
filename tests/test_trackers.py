"""Metrics in real trackers, all of them local."""

import pytest
from harness import trained
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trl_miner.runs.token_credit import read_credit

METRICS = ("groups/ph", "miner/tau_pos", "miner/scale", "rollouts/recovered", "micro_batches/rows")


def test_tensorboard_and_trackio_get_the_metrics_of_the_log(policy, tmp_path, monkeypatch):
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    settings = dict(
        report_to=["tensorboard", "trackio"], project="tests", run_name="me", max_steps=2
    )
    trainer = trained(policy, tmp_path / "run", **settings)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    rows = SQLiteStorage.get_logs("tests", "me")
    for name in METRICS:
        logged = pytest.approx([log[name] for log in trainer.state.log_history if name in log])
        assert [event.value for event in events.Scalars(f"train/{name}")] == logged
        assert [row[f"train/{name}"] for row in rows if f"train/{name}" in row] == logged


def test_token_records_are_traces_of_trackio(policy, tmp_path):
    from trackio.sqlite_storage import SQLiteStorage

    settings = dict(report_to="trackio", project="traces", run_name="me", max_steps=2)
    trained(policy, tmp_path, log_token_credit=2, **settings)
    traces = SQLiteStorage.get_traces("traces", "me")
    assert len(traces) == 12 and {trace["step"] for trace in traces} == {2}
    rows = read_credit(tmp_path).table.to_pylist()
    said = {trace["messages"][1]["content"]: trace["metadata"] for trace in traces}
    for row in rows:
        metadata = said[row["completion"]]
        assert metadata["kind"] in ("PH", "HE", "NH") and len(metadata["credit"]) <= 5
    assert {role["role"] for role in traces[0]["messages"]} == {"user", "assistant"}
