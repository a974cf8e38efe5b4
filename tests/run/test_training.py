"""A training from a recipe: what it prints, what it leaves in its folder, and how it goes on."""

import json
import os
import shutil
from pathlib import Path

import pytest
from run.runs import MODEL, recipe, same, train, weights

from trl_miner.run.record import Source, read_record

SECRETS = {"HF_TOKEN": "hf_of-the-environment", "WANDB_API_KEY": "0123456789abcdef"}
TYPED = "hf_of-the-command-line"


@pytest.fixture(autouse=True, scope="module")
def no_picture():
    """A picture takes as long as the rest of a run; tests/hub has one drawn."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trl_miner.report.plots.draw", lambda runs, path: None)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder, and what the training into FOLDER/run printed; the machine has secrets."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in SECRETS.items():
            patched.setenv(name, value)
        words = ["--hub_token", TYPED, "--model_init_kwargs", json.dumps({"token": TYPED})]
        code, out, err = train(recipe(folder, log_token_credit=2), *words)
        assert code == 0, err
        assert os.environ["HF_TOKEN"] == TYPED  # where huggingface_hub looks for it
    return folder, out


@pytest.fixture
def interrupted(run, tmp_path):
    """The folder as if the run had been killed behind its second step; its recipe."""
    shutil.copytree(run[0] / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    for name in ("model.safetensors", "trainer_state.json"):
        (tmp_path / "run" / name).unlink()
    return recipe(tmp_path, log_token_credit=2)


def go_on(path, *words):
    return train(path, "--resume_from_checkpoint", "latest", *words)


def test_it_prints_the_data_the_scores_a_line_a_step_and_what_is_next(run):
    folder, out = run
    lines = out.splitlines()
    before, after = (
        next(place for place, line in enumerate(lines) if line.startswith(f"{moment}, 5 held-out"))
        for moment in ("before", "after")
    )
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 4 and steps[0].startswith("step 1 of 4: reward 0.")
    assert lines[before + 1] == steps[0] and lines[after - 1] == steps[-1]
    assert lines[-4:] == [
        "Wrote",
        f"  {folder / 'run'}",
        "Next",
        f"  trl-miner report {folder / 'run'}",
    ]


def test_it_leaves_a_model_its_checkpoints_and_its_records(run):
    names = {path.name for path in (run[0] / "run").iterdir()}
    assert names >= {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "training_args.bin",
        "trainer_state.json",
        "training.json",
        "held_out.json",
        "README.md",
        "prompt_form.json",
        "credit",
        "checkpoint-2",
        "checkpoint-4",
    }
    for step in (2, 4):
        checkpoint = run[0] / "run" / f"checkpoint-{step}"
        sums = json.loads((checkpoint / "checksums.json").read_text())
        files = {path.name for path in checkpoint.iterdir()} - {"checksums.json"}
        assert {*sums} == files and "prompt_form.json" in files


def test_the_record_says_what_the_run_is(run):
    record = read_record(run[0] / "run")
    assert record.base_model == record.dataset == Source(MODEL, on_hub=False)
    assert record.methods == ("MINER",) and record.papers == {"MINER": "2601.04731"}
    assert record.seed == 42 and {"trl", "torch", "trl_miner", "python"} <= {*record.versions}
    assert record.rows.startswith("2000 rows, ")
    kept = {
        "learning_rate": "0.001",
        "max_steps": "4",
        "held_out": "5",
        "advantage_estimator": "miner",
    }
    assert kept.items() <= record.settings.items()
    assert {"output_dir", "hub_token", "resume_from_checkpoint"}.isdisjoint(record.settings)
    assert str(run[0]) not in (run[0] / "run" / "training.json").read_text()


def test_no_file_holds_a_secret(run):
    for path in (run[0] / "run").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in (*SECRETS.values(), TYPED):
            assert secret.encode() not in content, path


def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(run, interrupted):
    whole, folder = run[0] / "run", Path(interrupted).parent / "run"
    code, out, err = go_on(interrupted)
    assert code == 0, err
    assert "before," not in out and "step 3 of 4" in out and "step 2 of 4" not in out
    assert same(weights(folder), weights(whole))
    for name in ("held_out.json",):
        assert (folder / name).read_text() == (whole / name).read_text()
    states = [json.loads((each / "trainer_state.json").read_text()) for each in (whole, folder)]
    rewards = [
        [log["reward"] for log in state["log_history"] if "reward" in log] for state in states
    ]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 4


def test_a_finished_run_makes_no_step_again_unless_more_are_wanted(run, tmp_path):
    shutil.copytree(run[0] / "run", tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"killed in its last save")
    path = recipe(tmp_path, log_token_credit=2)
    code, out, err = go_on(path)
    assert code == 0 and "step " not in out.replace("step_", ""), err
    assert same(weights(tmp_path / "run"), weights(run[0] / "run"))
    code, out, err = go_on(path, "--max_steps", "5")
    assert code == 0 and "step 5 of 5" in out and "step 4 of" not in out, err


def test_other_settings_are_told_and_others_go_on(interrupted):
    code, out, err = go_on(interrupted, "--learning_rate", "1e-4", "--max_steps", "3")
    assert code == 0, err
    [line] = [line for line in out.splitlines() if line.startswith("The run goes on with")]
    assert "learning_rate (was 0.001, is 0.0001)" in line and "max_steps (was 4, is 3)" in line
    assert line.count("(was") == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--advantage_estimator", "grpo"],
            "advantage_estimator, all_right or policy_loss: it was",
        ),
        (["--all_right", "entropy"], "begun with MINER, not "),
        (["--policy_loss", "kl_cov"], "policy_loss"),
        (["--dataset_name", "rows.jsonl"], "dataset_name: it was begun with trl_miner/arithmetic,"),
        (
            ["--model", "model"],
            "model_name_or_path: it was begun with trl_miner/arithmetic, not model",
        ),
    ],
)
def test_another_run_is_not_resumed(interrupted, base_model_folder, monkeypatch, words, told):
    folder = Path(interrupted).parent
    monkeypatch.chdir(folder)
    shutil.copytree(base_model_folder, folder / "model")
    rows = [{"question": f"{n} plus {n}", "answer": str(n + n)} for n in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before = (folder / "run" / "training.json").read_text()
    code, _, err = go_on(interrupted, *words)
    assert code == 2 and told in err and err.count("\n") == 1, err
    assert (folder / "run" / "training.json").read_text() == before


def test_the_same_file_with_other_rows_is_another_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{n} plus {n + 1}", "answer": str(2 * n + 1)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = recipe(tmp_path, dataset_name="rows.jsonl", held_out=0, max_steps=2)
    code, _, err = train(path)
    assert code == 0, err
    rows[7]["answer"] = "8"
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, _, err = go_on(path, "--max_steps", "3")
    assert code == 2 and "other values of the training data" in err, err


def test_a_checkpoint_of_plain_trl_is_taken_up(tmp_path, base_model_folder):
    from trl import GRPOConfig, GRPOTrainer

    from trl_miner.data.arithmetic import load_dataset
    from trl_miner.recipe.reading import read
    from trl_miner.rewards import math_reward

    path = recipe(tmp_path, advantage_estimator="grpo", held_out=0)
    ours = read([path]).config.to_dict()
    settings = {name: ours[name] for name in GRPOConfig.__dataclass_fields__ if name in ours}
    settings |= {"output_dir": str(tmp_path / "plain"), "max_steps": 2, "hub_token": None}
    settings |= {"generation_batch_size": None}
    args = GRPOConfig(**settings)
    GRPOTrainer(base_model_folder, math_reward, args, load_dataset("train")).train()
    checkpoint = tmp_path / "plain" / "checkpoint-2"
    code, out, err = train(path, "--resume_from_checkpoint", checkpoint)
    assert code == 0 and "step 3 of 4" in out and "step 2 of 4" not in out, err


def test_a_file_of_ones_own_leaves_a_recipe_that_trains_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n} plus {n + 1},{2 * n + 1}" for n in range(40)]
    (tmp_path / "sums.csv").write_text("\n".join(["question,answer", *rows]))
    words = ["--model", MODEL, "--max_steps", "2", "--use_cpu", "true", "--bf16", "false"]
    words += ["--prompt_template", "{question}", "--max_completion_length", "16"]
    words += ["--math_accept_unboxed", "true", "--prompt_style", "plain"]
    code, out, err = train("sums.csv", *words)
    assert code == 0, err
    assert "learning_rate: 1e-06  # TRL's default; small for LoRA and for models below 1 B" in out
    made = tmp_path / "runs" / "sums" / "recipe.yaml"
    code, _, err = train(made, "--output_dir", "again")
    assert code == 0, err
    assert same(weights("again"), weights("runs/sums"))


def test_quiet_says_its_scores_alone_with_logged_completions_too(tmp_path):
    code, out, err = train(recipe(tmp_path, log_completions=True, max_steps=2, quiet=True))
    assert code == 0, err
    assert [line.partition(",")[0] for line in out.splitlines()] == ["before", "after"], out
    assert [*(tmp_path / "run" / "completions").glob("*.parquet")]


def test_trls_own_evaluation_chooses_the_best_model(tmp_path):
    path = recipe(
        tmp_path,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_reward",
        per_device_eval_batch_size=4,
    )
    code, _, err = train(path)
    assert code == 0, err
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    scores = [log["eval_reward"] for log in state["log_history"] if "eval_reward" in log]
    best = Path(state["best_model_checkpoint"])
    assert best.name == f"checkpoint-{1 + scores.index(max(scores))}"
    assert same(weights(tmp_path / "run"), weights(best))
