import json

import pytest

from trl_miner.viewing.curves import draw_training, read_log


def write_run(folder, steps=4):
    logs = [
        {
            "step": step,
            "reward": 0.5 + step / 100,
            "groups/ph": 0.25,
            "groups/he": 0.5,
            "groups/nh": 0.25,
            "rollouts/grpo": 0.5,
            "rollouts/recovered": 0.1,
            "rollouts/used": 0.6,
        }
        for step in range(1, steps + 1)
    ]
    logs.append({"step": steps, "train_loss": 0.0})
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": logs}))


def test_a_run_becomes_a_picture(tmp_path):
    write_run(tmp_path)
    path = draw_training(tmp_path)
    assert path == tmp_path / "training.png" and path.read_bytes()[:4] == b"\x89PNG"


def test_a_stopped_run_is_read_from_its_newest_checkpoint(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        write_run(tmp_path / f"checkpoint-{step}", steps=step)
    assert len(read_log(tmp_path)) == 10


def test_metrics_that_a_run_lacks_are_left_out(tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "reward": 1.0}]}))
    assert draw_training(tmp_path).is_file()


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no trainer_state.json"):
        read_log(tmp_path)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": []}))
    with pytest.raises(ValueError, match="no logged training step"):
        draw_training(tmp_path)
