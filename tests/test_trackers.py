"""Metrics and the page of token credit in real trackers, all of them local."""

import pytest
import wandb
from harness import mixed_reward, trained
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trl_miner.train import main

RECORDED = dict(log_token_credit=2, max_steps=4)
METRICS = ("groups/ph", "miner/tau_pos", "miner/scale", "rollouts/recovered", "micro_batches/rows")


def logged(trainer, name):
    return [log[name] for log in trainer.state.log_history if name in log]


def test_tensorboard(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    trainer = trained(policy, tmp_path / "run", report_to="tensorboard", **RECORDED)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in METRICS:
        assert [event.value for event in events.Scalars(f"train/{name}")] == pytest.approx(logged(trainer, name))
    (text,) = events.Tensors("token_credit/text_summary")
    assert text.step == 4 and b"| Token " in text.tensor_proto.string_val[0]
    (picture,) = events.Images("token_credit")
    assert picture.encoded_image_string.startswith(b"\x89PNG") and picture.width > 300


def test_trackio(policy, tmp_path):
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.utils import MEDIA_DIR

    trainer = trained(policy, tmp_path / "run", report_to="trackio", project="tests", run_name="me", **RECORDED)
    rows = SQLiteStorage.get_logs("tests", "me")
    for name in METRICS:
        found = [row[f"train/{name}"] for row in rows if f"train/{name}" in row]
        assert found == pytest.approx(logged(trainer, name))
    (page,) = (row for row in rows if "token_credit" in row)
    assert page["train/global_step"] == 4
    sent = MEDIA_DIR / page["token_credit"]["file_path"]
    assert sent.read_bytes() == (tmp_path / "run" / "inspect.html").read_bytes()


@pytest.mark.parametrize(("share", "steps"), [(1e9, [1, 2, 3, 4]), (1e-9, [1, 4])])
def test_checkpoints_send_the_page_while_that_costs_little_and_the_end_sends_it_anyhow(
    policy, tmp_path, monkeypatch, share, steps
):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    monkeypatch.setattr("trl_miner.training_callbacks._SHARE", share)
    settings = dict(report_to="tensorboard", save_strategy="steps", save_steps=1)
    trained(policy, tmp_path / "run", **settings, **{**RECORDED, "log_token_credit": 1})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [text.step for text in events.Tensors("token_credit/text_summary")] == steps


@pytest.mark.parametrize("tracker", ["trackio", "tensorboard"])
def test_a_page_that_cannot_be_made_does_not_end_the_training(policy, tmp_path, tracker, caplog, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))

    def damaging_reward(prompts, completions, **kwargs):
        (tmp_path / "run" / "credit").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "credit" / "credit_00001.parquet").write_text("no Parquet")
        return mixed_reward(prompts, completions)

    settings = dict(report_to=tracker, log_token_credit=10, max_steps=2)
    trainer = trained(policy, tmp_path / "run", reward=damaging_reward, **settings)
    assert trainer.state.global_step == 2
    assert f"did not reach {tracker}" in caplog.text


def test_wandb(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "wandb"))
    (tmp_path / "wandb").mkdir()
    trained(policy, tmp_path / "run", report_to="wandb", **RECORDED)
    wandb.finish()
    (page,) = (tmp_path / "wandb").rglob("*.html")
    assert page.read_bytes() == (tmp_path / "run" / "inspect.html").read_bytes()


@pytest.fixture
def logged_out(tmp_path, monkeypatch):
    """A home without a login at Weights & Biases, and no session of an earlier test."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()
    yield tmp_path
    wandb.teardown()


def try_tracker(tracker, tmp_path):
    """Start a training whose model is missing: which of the two does it say?"""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {tmp_path}/no_model\ndataset_name: trl_miner/arithmetic\nuse_cpu: true\nbf16: false\n"
        f"output_dir: {tmp_path}/run\nreport_to: [{tracker}]\nnum_generations: 4\nper_device_train_batch_size: 4\n"
    )
    with pytest.raises(ValueError) as raised:
        main(["--config", str(recipe)])
    return str(raised.value)


def test_wandb_without_a_login_is_refused_before_the_model_loads(logged_out, monkeypatch):
    assert "report_to: wandb needs a login" in try_tracker("wandb", logged_out)
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert "report_to: wandb needs a login: WANDB_API_KEY invalid" in try_tracker("wandb", logged_out)


@pytest.mark.parametrize("how", ["key", "netrc", "offline", "disabled"])
def test_wandb_with_a_login_or_offline_is_not_refused(how, logged_out, monkeypatch):
    key = "0123456789abcdef0123456789abcdef01234567"
    if how == "key":
        monkeypatch.setenv("WANDB_API_KEY", key)
    elif how == "netrc":
        (logged_out / ".netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {key}\n")
        (logged_out / ".netrc").chmod(0o600)
    else:
        monkeypatch.setenv("WANDB_MODE", how)
    assert "no_model" in try_tracker("wandb", logged_out)


@pytest.mark.parametrize(
    ("tracker", "said"),
    [("comet_ml", "are installed: got 'comet_ml'"), ("mlflow", "'mlflow'"), ("wandbb", "mean 'wandb'")],
)
def test_a_tracker_that_is_unknown_or_not_installed_is_refused_before_the_model_loads(tracker, said, tmp_path):
    assert said in try_tracker(tracker, tmp_path)
