"""`keep_best` and `early_stop`: the model with the best held-out score, and an end without a better
one. The trained model is asked by `trl-miner try`."""

import io
import re

import pytest
import torch
from harness import write_recipe
from safetensors.torch import load_file

from trl_miner import cli, train
from trl_miner.recipe.parsing import MinerScriptArguments
from trl_miner.runs.held_out import read_held_out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of twelve steps whose rate is far too high: the first score is the best."""
    folder = tmp_path_factory.mktemp("best")
    settings = dict(model_name_or_path="trl_miner/arithmetic", output_dir=folder / "run")
    settings |= dict(max_steps=12, learning_rate=3e-2, lr_scheduler_type="constant")
    settings |= dict(per_device_train_batch_size=32, max_completion_length=40, disable_tqdm=False)
    scored = dict(held_out=10, score_samples=2, score_steps=1, keep_best=True, early_stop=3)
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", said)
        train.main(["--config", write_recipe(folder / "r.yaml", **settings, **scored)])
    return folder / "run", said.getvalue()


def test_a_run_without_a_better_score_stops_and_keeps_the_best(run):
    folder, said = run
    scores = {moment: found["pass@1"] for moment, found in read_held_out(folder).scores.items()}
    steps = [*scores]
    best = max(scores, key=scores.get)
    assert steps[-1] == "after" and len(steps) < 13
    # three scores in a row behind the best, and that of the end
    assert steps.index(best) == len(steps) - 5
    assert f"are no better than {scores[best]:.3f}, {best}." in said
    assert (folder / "best").is_dir() == (best != "before")


def test_a_log_is_followed_by_a_sample(run):
    logs = re.findall(r"^step \d+: reward .*\n  Compute .* -> .* \(reward [01]\)$", run[1], re.M)
    assert len(logs) >= 3


def test_the_best_model_is_saved_and_later_worse_ones_not(tmp_path, policy):
    class Scores(train.BestScore):
        def on_step_end(self, args, state, control, **kwargs):
            score = {1: 0.5, 2: 0.75, 3: 0.75}[state.global_step]
            moment = "after" if state.global_step == 3 else f"step {state.global_step}"
            self._trainer.evaluation[moment] = {"pass@1": score}
            weights.append(self._trainer.model.lm_head.weight.detach().clone())
            super().on_step_end(args, state, control, **kwargs)

    weights = []
    settings = dict(model_name_or_path=policy, output_dir=tmp_path / "run", max_steps=3)
    settings |= dict(learning_rate=1e-2, reward_funcs=["harness.mixed_reward"], keep_best=True)
    recipe = write_recipe(tmp_path / "r.yaml", **settings, held_out=2, score_steps=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "BestScore", Scores)
        train.main(["--config", recipe])
    saved = load_file(tmp_path / "run" / "best" / "model.safetensors")
    assert torch.equal(saved["lm_head.weight"], weights[1])


@pytest.mark.parametrize("setting", [{"keep_best": True}, {"early_stop": 2}])
def test_the_best_of_no_scores_is_an_error(setting):
    with pytest.raises(ValueError, match=f"{next(iter(setting))} needs scores during the training"):
        MinerScriptArguments(dataset_name="trl_miner/arithmetic", held_out=5, **setting)


def test_a_trained_model_is_asked_in_the_form_of_its_training(run, capsys, monkeypatch):
    words = ["try", "trl_miner/arithmetic", "--temperature", "0"]
    assert cli.main([*words, "Compute 3 + 4."]) == 0
    assert r"\boxed{7}" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("Compute 3 + 4.\n\nCompute 20 - 5.\n"))
    assert cli.main([*words, "--samples", "2", "--max-tokens", "3"]) == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == 4 and all("cut off at 3 tokens" in answer for answer in answers)
    assert cli.main(["try", str(run[0]), "Compute 3 + 4."]) == 0
    assert cli.main(["try", "./nowhere", "?"]) == 2
    assert "Folder not found: ./nowhere" in capsys.readouterr().err
