"""What a user's mistake costs: one line with rule, value and next step, and no start of a training."""

import json
import os
import subprocess
import sys

import pytest
from datasets import Dataset

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer, cli, errors, options, rewards
from trl_miner import train as script

GOOD = "model_name_or_path: m\ndataset_name: trl_miner/arithmetic\n"


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    monkeypatch.setattr("trl_miner.launching.supervise.run_training", lambda arguments: pytest.fail("it started"))


def one_line(capfd):
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said
    return said.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must hold a mapping of settings: got NoneType. Write key: value."),
        ("- a\n", "must hold a mapping of settings: got list."),
        ("seed: [1\n", "must be YAML: "),
        ("seed: 1\nseed: 2\n", "must be YAML: 'seed' is there twice: line 2"),
        ("lerning_rate: 1\n", "unknown key 'lerning_rate'. Did you mean 'learning_rate'?"),
        ("miner_lambda_max: lots\n", "miner_lambda_max must be a number or None: got 'lots'. The default is 0.0015."),
        ("max_steps: [3]\n", "max_steps must be a whole number: got [3]. The default is -1."),
        ("max_steps: 3.5\n", "max_steps must be a whole number: got 3.5."),
        ("learning_rate:\n", "learning_rate must be a number: got None."),
        ("learning_rate: {a: 1}\n", "learning_rate must be a number: got {'a': 1}."),
        ("learning_rate: true\n", "learning_rate must be a number: got True."),
        ("use_peft: 2\n", "use_peft must be true or false: got 2. The default is False."),
        (
            "save_strategy: no\n",
            'got False. YAML reads no as false: write "no".',
        ),
        (
            "reward_funcs: math_reward\n",
            "reward_funcs must be a list or None: got 'math_reward'. Write [math_reward].",
        ),
        ("reward_funcs: [math_rewrd]\n", "got 'math_rewrd'. Did you mean 'math_reward'?"),
        ("run_name: 5\n", 'run_name must be a text or None: got 5. Write "5".'),
        ("chat_template_kwargs: '{a'\n", "chat_template_kwargs must be a mapping in JSON: got '{a' (Expecting prop"),
        ("env: 1\n", "env must be a mapping of variables: got 1."),
    ],
)
def test_a_wrong_recipe(text, told, tmp_path, capfd):
    path = tmp_path / "r.yaml"
    path.write_text(text if text in ("", "- a\n", "seed: [1\n") else GOOD + text)
    assert cli.main(["train", "--config", str(path)]) == 2
    said = one_line(capfd)
    assert (
        said.startswith("trl-miner train: error: ")
        and (str(path) in said or "rewrd" in said)
        and told.replace("line 2", "line 4") in said
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "trl-miner: error: This needs COMMAND: got none. See trl-miner --help."),
        ("tran", "trl-miner: error: Unknown command 'tran'. Did you mean 'train'? See trl-miner --help."),
        ("train", "A training needs a recipe, or --model_name_or_path and --dataset_name: got no model_name_or_path."),
        ("train --config", "--config must be followed by a value: got nothing."),
        ("train --config .", "A recipe must be a file, or one that `trl-miner recipes` lists: got ., a folder here."),
        ("train --config nowhere.yaml", "got nowhere.yaml, no such file."),
        ("train arithmetic/miner", "got 'arithmetic/miner' alone. Did you mean --config arithmetic/miner?"),
        ("train --learning_rte 1", "Unknown option --learning_rte. Did you mean '--learning_rate'?"),
        ("train --learning_rate=abc", "learning_rate must be a number: got 'abc'. The default is 1e-06."),
        ("train --max_steps", "--max_steps must be followed by a value: got nothing. The default is -1."),
        ("train --max_steps 3 4", "Every argument must belong to an option: got '4' alone, behind --max_steps."),
        ("train --bf16 maybe", "bf16 must be true, false or None: got 'maybe'."),
        ("train --num_processes two", "num_processes must be a whole number: got 'two'."),
        (
            "compare --recipes a --seeds x",
            "trl-miner compare: error: --seeds must be a number or a range, at least 1: got 'x'.",
        ),
        (
            "compare --recipes a --seeds 1 --jobs x",
            "trl-miner compare: error: --jobs must be a whole number: got 'x'. See",
        ),
        ("compare --recipes arithmetic/miner --seeds 1 --max_stepz 1", "Unknown option --max_stepz. Did you mean"),
        ("launch a --only both", "--only must be one of 'server', 'train': got 'both'."),
        ("report", "trl-miner report: error: This needs RUN: got none. See trl-miner report --help."),
        ("report a --nope", "Unknown option --nope. See trl-miner report --help."),
        ("data deepscaler --tokenizer", "--tokenizer must be followed by a value: got nothing."),
        ("train --bf16", "--bf16 must be followed by a value: got nothing. Write --bf16 true."),
        ("train --run_name", "--run_name must be followed by a value: got nothing. See trl-miner train --help all."),
        ("doctor nowhere.yaml", "got nowhere.yaml, no such file."),
        ("doctor recipes/arithmetic/miner.yaml --seeed 1", "Unknown option --seeed. Did you mean '--seed'?"),
        ("launch recipes/arithmetic/miner.yaml --seed x", "seed must be a whole number: got 'x'. The default is 42."),
    ],
)
def test_a_wrong_command_line(words, told, capfd):
    assert cli.main([*words.split(), *(["--quiet"] if words.startswith("compare") else [])]) == 2
    assert told in one_line(capfd)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(reward_funcs=["nowhere.reward"]), "reward_funcs: 'nowhere.reward' could not be imported from"),
        (dict(dataset_name="/nowhere"), "dataset_name must be a Hub id, a file, a folder, "),
        (dict(dataset_train_split="tran"), "dataset_train_split must be a split of the data set: got 'tran'."),
        (dict(model_name_or_path="/nowhere"), "model_name_or_path must be a folder with a model, a Hub id, or trl_mi"),
        (dict(use_cpu=False, bf16=True), "bf16 needs a GPU that has it: got no GPU. To train on a CPU, set use_cpu"),
        (dict(use_peft=True, lora_target_modules=["nope"]), "Target modules"),
        (dict(resume_from_checkpoint="/nowhere"), "/nowhere"),
    ],
)
def test_what_only_the_training_can_find_out(change, told, policy, tmp_path, capfd):
    recipe = dict(model_name_or_path=policy, dataset_name="trl_miner/arithmetic", output_dir=str(tmp_path / "run"))
    recipe |= dict(use_cpu=True, bf16=False, per_device_train_batch_size=4, num_generations=4, report_to="none")
    (tmp_path / "r.yaml").write_text(json.dumps(recipe | change))
    assert script._command(["--config", str(tmp_path / "r.yaml")]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1 and lines[0].startswith("trl-miner train: error: ") and told in lines[0]


def test_python_gets_the_same_texts(policy):
    settings = dict(use_cpu=True, bf16=False, report_to="none", output_dir="unused")
    assert MinerGRPOConfig(miner_gamma="2", **settings).miner_gamma == 2.0  # as in a recipe
    with pytest.raises(ValueError, match=r"miner_gamma must be a number: got 'two'\. The default is"):
        MinerGRPOConfig(miner_gamma="two", **settings)
    with pytest.raises(ValueError, match="learning_rate must be a number: got 'x'"):
        MinerGRPOConfig(learning_rate="x", **settings)
    config = MinerGRPOConfig(per_device_train_batch_size=4, num_generations=4, **settings)
    rows = Dataset.from_list([{"question": "1+1", "solution": "2"}])
    with pytest.raises(ValueError, match="must have a column prompt: got question, solution. Rename"):
        MinerGRPOTrainer(policy, rewards.math_reward, config, rows)


def test_a_traceback_is_shown_on_request(monkeypatch, capfd):
    monkeypatch.setenv(errors.TRACEBACK, "")  # so that the end of the test takes it back
    assert cli.main(["train", "--config", "nowhere.yaml", "--traceback"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("Traceback") and said.rstrip().splitlines()[-1].startswith(
        "trl-miner train: error: A recipe"
    )


def test_an_unexpected_error_names_its_type_and_no_secret():
    assert errors.describe(KeyError("x")) == "KeyError: 'x'. --traceback shows where."
    assert errors.describe(PermissionError(13, "Permission denied", "a.yaml")) == (
        "a.yaml cannot be used: Permission denied."
    )
    assert "hf_planted0123456789" not in errors.describe(ValueError("got\nhub_token=hf_planted0123456789"))


def test_a_command_line_splits_as_argparse_would():
    given = ["--learning-rate", "-1e-6", "--reward_funcs", "a", "b", "--gradient_checkpointing", "--num_proc", "2"]
    own, launcher, values = options.load().split(given)
    assert (own, launcher) == (given[:-2], ["--num_processes", "2"])  # in full: accelerate takes no abbreviation
    assert values == {"learning_rate": -1e-6, "reward_funcs": ["a", "b"], "gradient_checkpointing": True}
    own, _, values = options.load().split(
        ["--learning", "1", "--gradient_checkpointing", "false", "--system_prompt", "- be brief"]
    )
    assert own[0] in ("--learning_rate", "--learning-rate") and values["gradient_checkpointing"] is False
    assert values["system_prompt"] == "- be brief"
    assert options.load().split(["--no-gradient-checkpointing"])[2] == {"gradient_checkpointing": False}
    with pytest.raises(ValueError, match="got 'true' alone, behind --no_gradient_checkpointing"):
        options.load().split(["--no_gradient_checkpointing", "true"])


def test_help_begins_with_our_settings_by_group(capfd):
    assert cli.main(["train", "--help"]) == 0
    ours = capfd.readouterr().out
    assert ours.index("--advantage_estimator") < ours.index("Settings of MINER:\n  --miner_gamma float\n")
    assert "--miner_lambda_max" in ours and "\n  --learning_rate float" not in ours
    assert cli.main(["train", "--help", "all"]) == 0
    everything = capfd.readouterr().out
    assert (
        3 * len(ours) < 2 * len(everything)
        and ours.splitlines()[-1] in everything
        and "\n  --learning_rate float" in everything
    )
    assert "--deepspeed_config_file" in everything


def test_options_come_from_a_file_without_torch_and_a_damaged_one_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_MINER_CACHE", str(tmp_path))
    options.load.cache_clear()
    made = options.load()
    (file,) = tmp_path.iterdir()
    code = "import sys; from trl_miner.cli import main; sys.exit(main(sys.argv[1:]) + 7 * ('torch' in sys.modules))"
    command = [sys.executable, "-c", code, "train", "--config", "arithmetic/miner", "--max_stepz", "1"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Unknown option --max_stepz. Did you mean '--max_steps'?" in done.stderr
    file.write_text("{")
    options.load.cache_clear()
    assert options.load() == made
    options.load.cache_clear()
