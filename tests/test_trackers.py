"""Metrics in real trackers, all of them local, and trackers that cannot be used."""

import pytest
import wandb
from harness import trained
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trl_miner.trackers import check_trackers
from trl_miner.train import main

METRICS = ("groups/ph", "miner/tau_pos", "miner/scale", "rollouts/recovered", "micro_batches/rows")


def test_tensorboard_and_trackio_get_the_metrics_of_the_log(policy, tmp_path, monkeypatch):
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    settings = dict(report_to=["tensorboard", "trackio"], project="tests", run_name="me", max_steps=2)
    trainer = trained(policy, tmp_path / "run", **settings)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    rows = SQLiteStorage.get_logs("tests", "me")
    for name in METRICS:
        logged = pytest.approx([log[name] for log in trainer.state.log_history if name in log])
        assert [event.value for event in events.Scalars(f"train/{name}")] == logged
        assert [row[f"train/{name}"] for row in rows if f"train/{name}" in row] == logged


@pytest.fixture
def logged_out(tmp_path, monkeypatch):
    """A home without a login at Weights & Biases, and no session of an earlier test."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()
    yield tmp_path
    wandb.teardown()


def test_wandb_without_a_login_is_refused(logged_out, monkeypatch):
    with pytest.raises(ValueError, match="report_to: wandb needs a login"):
        check_trackers(["wandb"])
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(ValueError, match="report_to: wandb needs a login: WANDB_API_KEY invalid"):
        check_trackers(["wandb"])


@pytest.mark.parametrize("how", ["key", "offline"])
def test_wandb_with_a_login_or_offline_is_not_refused(how, logged_out, monkeypatch):
    if how == "key":  # wandb's own login with a key asks the network, and its end may wait for ever without one
        monkeypatch.setattr(wandb, "login", lambda prompt, verify: True)
    else:
        monkeypatch.setenv("WANDB_MODE", how)
    check_trackers(["wandb"])


@pytest.mark.parametrize(
    ("tracker", "said"),
    [("comet_ml", "comet_ml is not installed"), ("wandbb", "mean 'wandb'")],
)
def test_a_tracker_that_is_unknown_or_not_installed_is_refused_before_the_model_loads(tracker, said, tmp_path):
    """The model is missing: which of the two does a training say?"""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {tmp_path}/no_model\ndataset_name: trl_miner/arithmetic\nuse_cpu: true\nbf16: false\n"
        f"output_dir: {tmp_path}/run\nreport_to: [{tracker}]\nnum_generations: 4\nper_device_train_batch_size: 4\n"
    )
    with pytest.raises(ValueError, match=said):
        main(["--config", str(recipe)])
