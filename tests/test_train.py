"""The run that the README promises, and what a wrong call gets."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from harness import call_on_ranks, metrics_of
from safetensors.torch import load_file

from trl_miner import rewards
from trl_miner.evaluation.in_training import EvaluationCallback
from trl_miner.recipe.parsing import MinerScriptArguments, load_reward_funcs, make_parser
from trl_miner.runs.checkpoints import list_checkpoints
from trl_miner.runs.held_out import HeldOut, Moment, read_held_out, write_held_out
from trl_miner.train import main, run
from trl_miner.trainer.reward_functions import find_verifier
from trl_miner.training.callbacks import why_unmoved

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
REDUCED = (
    "--max_steps 4 --logging_steps 1 --held_out 6 --score_samples 2 "
    "--per_device_train_batch_size 32 --num_generations 4 --max_completion_length 24"
).split()


def readme_run():
    """The first command of the README."""
    command = re.search(r"^trl-miner (train \S+)$", README, re.MULTILINE)
    return command[1].split()


def test_the_readmes_script_runs_as_it_stands(tmp_path, monkeypatch):
    """But for the number of its steps."""
    (script,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = script.replace("max_steps=20", "max_steps=1")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(script, scope)
    assert scope["trainer"].state.global_step == 1


@pytest.mark.slow
def test_the_readmes_run_leaves_what_it_promises(tmp_path):
    """The README's first command in a reduced form, in a fresh process, as a user runs it."""
    output = tmp_path / "miner"
    command = [
        sys.executable,
        "-m",
        "trl_miner.cli",
        *readme_run(),
        *REDUCED,
        "--output_dir",
        str(output),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, done.stderr[-4000:]
    for name in (
        "model.safetensors",
        "tokenizer.json",
        "README.md",
        "trainer_state.json",
        "training.png",
    ):
        assert (output / name).stat().st_size > 0, name
    scores = read_held_out(output).scores
    assert set(scores) == {"before", "after"}
    assert all(
        set(s) == {"pass@1", "pass@2"} and 0 <= s["pass@1"] <= s["pass@2"] <= 1
        for s in scores.values()
    )
    steps = [
        log["step"]
        for log in json.loads((output / "trainer_state.json").read_text())["log_history"]
        if "reward" in log
    ]
    assert steps == [1, 2, 3, 4]
    assert "before training, on 6 held-out problems: Pass@1" in done.stdout
    card = (output / "README.md").read_text()
    assert (
        "### Evaluation" in card
        and "| Pass@1 |" in card
        and "None" not in card.split("### Settings")[0]
    )


def write_recipe(folder, text):
    path = folder / "recipe.yaml"
    path.write_text(text)
    return str(path)


def test_rewards_load_by_name_and_by_path(tmp_path):
    from harness import config

    from trl_miner.rewards import math_reward

    args = MinerScriptArguments(
        reward_funcs=["math_reward", "get_soft_overlong_punishment", "zlib.crc32"]
    )
    loaded = load_reward_funcs(args, config(tmp_path))
    assert loaded[0] is math_reward and all(callable(function) for function in loaded)


def tiny_run(policy, output, *options):
    """Train in this process, with dropout: what was drawn, and in which mode, shows in the
    weights."""
    recipe = dict(
        model_name_or_path=policy,
        dataset_name="trl_miner/arithmetic",
        output_dir=str(output),
        use_cpu=True,
    )
    recipe |= dict(
        bf16=False,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=8,
        max_steps=4,
    )
    recipe |= dict(
        learning_rate=1e-2, advantage_estimator="grpo", reward_funcs=["harness.mixed_reward"]
    )
    recipe |= dict(
        held_out=4, score_samples=2, save_strategy="steps", save_steps=2, disable_tqdm=True, seed=3
    )
    recipe |= dict(
        logging_steps=1, gradient_checkpointing=True, model_init_kwargs=dict(attention_dropout=0.2)
    )
    output.mkdir(exist_ok=True)
    path = write_recipe(
        output, "".join(f"{key}: {json.dumps(value)}\n" for key, value in recipe.items())
    )
    return run(*make_parser().parse_args_and_config(["--config", path, *options]))


@pytest.fixture(scope="module")
def unscored(policy, tmp_path_factory):
    with warnings.catch_warnings():  # the embedded world keeps its splits apart
        warnings.filterwarnings("error", message=".*held-out problems are in the training data")
        return tiny_run(policy, tmp_path_factory.mktemp("unscored"))


class Trained:
    """What a training leaves of which the last line speaks."""

    def __init__(self, before, after, used, rate=1e-6):
        self.evaluation = {"before": {"pass@1": before}, "after": {"pass@1": after}}
        logs = [{"rollouts/used_total": used}]
        self.state = SimpleNamespace(log_history=logs, global_step=100)
        self.args = SimpleNamespace(learning_rate=rate)


@pytest.mark.parametrize(
    ("trained", "says"),
    [
        (Trained(0.5, 0.75, 9), "^$"),
        (Trained(0.569, 0.569, 9), "100 steps at learning_rate 1e-06 .*--learning_rate 1e-05"),
        (Trained(0.0, 0.0, 0), "no completion had an advantage"),
        (Trained(1.0, 1.0, 3), "take harder ones"),
    ],
)
def test_scores_that_stay_as_they_are_are_explained(trained, says):
    assert re.search(says, why_unmoved(trained))


def assert_same_weights(trainer, other):
    for found, expected in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.slow
def test_scoring_in_between_changes_nothing_but_the_scores(policy, unscored, tmp_path):
    more = ("--score_steps", "1", "--score_batch_size", "3", "--score_final_samples", "6")
    scored = tiny_run(policy, tmp_path, *more)
    assert_same_weights(scored, unscored)
    assert metrics_of(scored)[:4] == metrics_of(unscored)[:4] and any(
        m["grad_norm"] for m in metrics_of(scored)[:4]
    )
    assert list(scored.evaluation) == ["before", "step 1", "step 2", "step 3", "after"]
    assert scored.evaluation["before"] == unscored.evaluation["before"]
    assert scored.evaluation["after"].keys() == {"pass@1", "pass@6"}
    logged = [log["eval_pass@1"] for log in scored.state.log_history if "eval_pass@1" in log]
    assert logged == [scores["pass@1"] for scores in scored.evaluation.values()]
    assert scored.model.is_gradient_checkpointing
    assert read_held_out(tmp_path).scores == scored.evaluation
    card = (tmp_path / "README.md").read_text()
    assert "Step 1" not in card and "| Metric | Before | After |" in card
    kept = json.loads((tmp_path / "held_out.json").read_text())
    assert kept["problems"]["level"] == [1, 2, 3, 4] and kept["problems"]["trained_levels"] == [
        1,
        2,
        3,
        4,
    ]
    assert [(one["step"], one["num_samples"]) for one in kept["moments"].values()] == [
        (0, 2), (1, 2), (2, 2), (3, 2), (4, 6),
    ]  # fmt: skip
    for moment, one in kept["moments"].items():  # Pass@1 is the share of right samples
        share = sum(one["num_correct"]) / (4 * one["num_samples"])
        assert scored.evaluation[moment]["pass@1"] == pytest.approx(share, abs=1e-6)


def test_a_resumed_run_keeps_its_scores_up_to_the_checkpoint(policy, unscored, tmp_path):
    """Killed after step 3, and while checkpoint 4 was being written: goes on from checkpoint 2."""
    tiny_run(policy, tmp_path, "--score_steps", "1")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    counts = json.loads((tmp_path / "held_out.json").read_text())
    size = len(counts["moments"]["before"]["num_correct"])
    for step in (2, 3):
        counts["moments"][f"step {step}"] |= {"num_samples": 9, "num_correct": [9] * size}
    (tmp_path / "held_out.json").write_text(json.dumps(counts))
    resumed = tiny_run(policy, tmp_path, "--score_steps", "1", "--resume_from_checkpoint", "latest")
    assert_same_weights(resumed, unscored)
    again = json.loads((tmp_path / "held_out.json").read_text())["moments"]
    assert [again[f"step {step}"]["num_samples"] == 9 for step in (2, 3)] == [True, False]
    assert resumed.evaluation["step 2"] == {"pass@1": 1.0, "pass@9": 1.0}
    assert list(resumed.evaluation) == ["before", "step 1", "step 2", "step 3", "after"]


LATEST = ("--resume_from_checkpoint", "latest")


@pytest.fixture
def over(policy, unscored, tmp_path):
    """Return a copy of the folder of a finished run."""
    shutil.copytree(unscored.args.output_dir, tmp_path / "run")
    return tmp_path / "run"


def test_a_finished_run_makes_no_step_again_unless_more_are_wanted(policy, over, unscored, capsys):
    for wanted in (LATEST, (*LATEST, "--max_steps", "3")):
        again = tiny_run(policy, over, *wanted)
        assert again.state.global_step == 4 and again.evaluation == unscored.evaluation
        assert_same_weights(again, unscored)
    assert capsys.readouterr().out.count("No step is left: checkpoint-4 has done 4 of") == 2
    assert tiny_run(policy, over, *LATEST, "--max_steps", "5").state.global_step == 5
    again = tiny_run(policy, over, "--resume_from_checkpoint", str(over / "checkpoint-2"))
    assert again.state.global_step == 4  # an earlier checkpoint is named: its steps are made again


@pytest.mark.parametrize(
    "killed", ["before the score", "while the model was written", "before the card"]
)
def test_a_run_killed_after_its_last_checkpoint_is_completed_without_a_step(
    policy, over, unscored, killed
):
    (over / "README.md").unlink()
    if killed != "before the card":
        (over / "trainer_state.json").unlink()
        content = (over / "model.safetensors").read_bytes()
        (over / "model.safetensors").unlink()
        if killed == "while the model was written":
            (over / "model.safetensors").write_bytes(content[: len(content) // 2])
        else:
            write_held_out(over, read_held_out(over).until(0))
    completed = tiny_run(policy, over, *LATEST)
    assert completed.state.global_step == 4 and completed.evaluation == unscored.evaluation
    assert_same_weights(completed, unscored)
    assert (over / "model.safetensors").read_bytes() == (
        Path(unscored.args.output_dir) / "model.safetensors"
    ).read_bytes()
    assert (over / "README.md").is_file() and [path.name for path in list_checkpoints(over)] == [
        "checkpoint-2", "checkpoint-4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (dict(held_out=4, score_steps=-1), "score_steps is -1. It must be at least 0"),
        (dict(score_samples=0), "score_samples is 0. It must be at least 1"),
        (
            dict(held_out="aime"),
            "No benchmark named 'aime' for held_out. Did you mean 'aime25'.*aime24",
        ),
        (dict(held_out="gsm8k:0"), "A benchmark needs at least 1 problem: got 'gsm8k:0'"),
        (
            dict(held_out=1.5),
            "held_out must be a whole number, or a share between 0 and 1: got 1.5",
        ),
    ],
)
def test_scores_that_cannot_be_had_are_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        MinerScriptArguments(**settings)


def test_a_benchmark_can_be_what_is_scored(policy, tmp_path):
    """By its own verifier, at 1, whatever the threshold of the run is; without a box, where the
    recipe says so."""
    rows = [{"problem": f"Compute {a} + 1.\n", "answer": str(a + 1)} for a in range(5)]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trained = tiny_run(
        policy,
        tmp_path / "run",
        "--held_out",
        f"dev={path}:3",
        "--max_steps",
        "1",
        "--math_accept_unboxed",
        "true",
    )
    assert trained.evaluation["after"].keys() == {"pass@1", "pass@2"}
    callback = next(
        c for c in trained.callback_handler.callbacks if isinstance(c, EvaluationCallback)
    )
    assert callback.problems["solution"] == ["1", "2", "3"]
    # a bare question, as in the world's training
    assert callback.problems["prompt"][0].strip() == "Compute 0 + 1."
    trained.args.correct_threshold = 2.0
    columns = {"prompts": [""] * 2, "solution": ["1", "2"]}
    assert callback.grade(columns, ["The answer is 1.", r"\boxed{1}"], [[1]] * 2).tolist() == [
        1.0,
        0.0,
    ]
    assert EvaluationCallback(trained, None, reward_func=rewards.math_reward).threshold == 1.0


@pytest.fixture
def callback(unscored, tmp_path):
    """A callback whose run folder is empty."""
    known, unscored.args.output_dir = unscored.args.output_dir, str(tmp_path)
    yield EvaluationCallback(unscored, None)
    unscored.args.output_dir = known


def test_a_first_start_reads_no_scores_not_even_damaged_ones(callback, tmp_path):
    """On several processes an error in reading would leave the others waiting for this one."""
    (tmp_path / "held_out.json").write_text("{")
    assert not callback.restore(None)


def test_counts_of_other_problems_do_not_stop_a_resumption(callback, unscored, tmp_path):
    write_held_out(tmp_path, HeldOut({"before": Moment(0, 2, (1, 0))}, fingerprint="other"))
    callback.problems = unscored.train_dataset
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    unscored.state.save_to_json(str(checkpoint / "trainer_state.json"))
    known = dict(unscored.evaluation)
    try:
        with pytest.warns(UserWarning, match="problems are others now"):
            assert callback.restore(str(checkpoint))
        assert not callback.held_out
    finally:
        unscored.evaluation.clear()
        unscored.evaluation.update(known)


def graded(trainer, rewards, *, prompts=("1 + 1",) * 2, texts=("a", "b")):
    """The rewards that decide, of completions of held-out problems; `rewards` by the name of their
    function."""
    known = trainer.verifier, trainer.reward_funcs
    trainer.verifier, trainer.reward_funcs = find_verifier([*rewards]), [*rewards.values()]
    try:
        callback = EvaluationCallback(trainer, None)
        return callback.grade({"prompts": [*prompts]}, [*texts], [[1], [2]]).tolist()
    finally:
        trainer.verifier, trainer.reward_funcs = known


def test_held_out_problems_are_graded_by_what_decides_in_training(unscored):
    """In TRL's shape of completions, with what TRL passes, awaited where it must be."""

    def by_length(completions, completion_ids, log_metric, **kwargs):
        return [len(text) + ids[0] for text, ids in zip(completions, completion_ids, strict=True)]

    async def by_content(completions, **kwargs):
        return [float(messages[0]["content"] == "a") for messages in completions]

    chat = [[{"role": "user", "content": "1 + 1"}]] * 2
    answers = [[{"role": "assistant", "content": text}] for text in "ab"]
    form = {"think_format_reward": lambda completions, **kwargs: [1.0, 1.0]}
    assert graded(
        unscored, form | {"accuracy_reward": by_content}, prompts=chat, texts=answers
    ) == [1.0, 0.0]
    # the smaller of 1 and 2, 1 and 3
    assert graded(unscored, form | {"mine": by_length}) == [1.0, 1.0]
    with pytest.raises(ValueError, match="'mine' must be a number"):
        graded(unscored, form | {"mine": lambda **kwargs: [0.0, float("inf")]})


@pytest.mark.slow
def test_scores_do_not_depend_on_the_number_of_processes(policy, unscored, tmp_path):
    """Two gloo processes score half of the problems each; the model before training is the same."""
    recipe = json.loads(
        json.dumps(yaml.safe_load((Path(unscored.args.output_dir) / "recipe.yaml").read_text()))
    )
    recipe |= {
        "output_dir": str(tmp_path),
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "held_out": 7,
    }
    scores = {}
    for processes in (1, 2):
        recipe["output_dir"] = str(tmp_path / str(processes))
        path = write_recipe(tmp_path, json.dumps(recipe))
        call_on_ranks(processes, main, ["--config", path])
        scores[processes] = [
            (found := read_held_out(tmp_path / str(processes)).moments["before"]).scores,
            found,
        ]
    assert scores[1] == scores[2] and 0 < scores[1][0]["pass@1"] < 1


def test_held_out_problems_that_are_trained_on_are_named(policy, tmp_path):
    """Both splits are one: all 3 problems."""
    with pytest.warns(UserWarning, match="3 of 3 held-out problems are in the training data too"):
        tiny_run(
            policy, tmp_path, "--dataset_test_split", "train", "--held_out", "3", "--max_steps", "1"
        )


def test_a_lora_runs_folder_goes_on_as_a_model(tmp_path):
    """Its adapter is trained further, with a penalty towards what it was, and nothing else is."""
    words = [
        "--config",
        *readme_run()[1:],
        *REDUCED,
        "--max_steps",
        "1",
        "--held_out",
        "0",
        "--quiet",
    ]
    words += ["--use_peft", "true", "--lora_r", "2", "--lora_target_modules", "q_proj", "v_proj"]
    first, second = tmp_path / "first", tmp_path / "second"
    main([*words, "--output_dir", str(first)])
    words += ["--model_name_or_path", str(first), "--beta", "0.1", "--learning_rate", "0.01"]
    main([*words, "--output_dir", str(second)])
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (first, second))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert not (second / "model.safetensors").exists()
