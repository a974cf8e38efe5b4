"""What a user's mistake costs: one line with rule, value and next step, and no start of a
training."""

import datetime
import json

import pytest
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.torch import load_file

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer, cli, rewards
from trl_miner import train as script
from trl_miner.common import errors
from trl_miner.launching.local import check_needs, launcher_arguments
from trl_miner.recipe.parsing import check_recipe, make_parser, split_words


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """`trl-miner train` starts a process: here it only looks at its command line."""

    def check(words):
        try:
            check_needs(launcher_arguments(list(words)))
        except ValueError as error:
            return errors.tell(error, "train")
        pytest.fail("it would start")

    monkeypatch.setattr("trl_miner.launching.supervise.run_training", check)


def one_line(capfd):
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said
    return said.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seed: [1\nlearning_rate: 1\n", "is not valid YAML: "),
        ("[" * 10_000, "is not valid YAML: "),
        ("seed: 1\nseed: 2\n", "is not valid YAML: 'seed' is there twice: line 2"),
        ("lerning_rate: 1\n", "unknown key 'lerning_rate'. Did you mean 'learning_rate'?"),
        (
            "env: {HF_HUB_OFFLINE: '1'}\n",
            "env comes too late for HF_HUB_OFFLINE: it has been read by then.",
        ),
        (
            "max_steps: 3.5\n",
            "max_steps is 3.5. It must be a valid integer, got a number with a fractional part.",
        ),
        (
            "save_strategy: no\n",
            "save_strategy is False. It must be 'no', 'steps', 'epoch' or 'best'.",
        ),
        ("env: 1\n", "env is 1. It must be a valid dictionary."),
    ],
)
def test_a_wrong_recipe(text, told, tmp_path, capfd):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    assert cli.main(["doctor", str(path)]) == 2
    said = one_line(capfd)
    assert said.startswith("trl-miner doctor: error: ") and told in said and str(path) in said


def test_a_value_of_a_wrong_type_is_an_error_in_one_line_that_names_the_setting():
    """Of all settings: none takes a date."""
    parser = make_parser()
    names = {action.dest for action in parser._actions} - {"help"}
    assert len(names) > 250
    for name in names:
        parser.recipe = {name: datetime.date(2026, 1, 1)}
        with pytest.raises(ValueError, match=f"^{name} is .*It must be ") as told:
            check_recipe(parser)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tran", "trl-miner: error: No command named 'tran'. Did you mean 'train'?"),
        (
            "train",
            "Nothing to train: there is no --model_name_or_path. Give a recipe (`trl-miner train",
        ),
        ("train --config", "--config needs a value."),
        (
            "train --learning_rte 1",
            "Unknown option --learning_rte. Did you mean '--learning_rate'?",
        ),
        ("train --learning_rate=abc", "--learning_rate 'abc' is not a number."),
        ("train --max_steps 3 4", "Unexpected argument '4'."),
        (
            "train --num_proceses 2",
            "Unknown option --num_proceses. Did you mean '--num_processes'?",
        ),
        ("train --config arithmetic/miner --num_processes 2", "torchrun --nproc_per_node 2"),
        ("report", "trl-miner report: error: RUN is missing. See trl-miner report --help."),
        ("report a --nope", "Unknown option --nope. See trl-miner report --help."),
        ("doctor nowhere.yaml", "No recipe or file named 'nowhere.yaml'."),
    ],
)
def test_a_wrong_command_line(words, told, capfd):
    quiet = ["--quiet"] if words.startswith("doctor") else []
    assert cli.main([*words.split(), *quiet]) == 2
    assert told in one_line(capfd)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            dict(reward_funcs=["nowhere.reward"]),
            "reward_funcs: 'nowhere.reward' could not be imported from",
        ),
        (
            dict(reward_funcs=["math_rewards"]),
            "No reward function named 'math_rewards'. Did you mean 'math_reward'",
        ),
        (
            dict(dataset_name=None),
            "dataset_name must be given: a Hub id, a file, a folder, trl_miner/arithmetic",
        ),
        (dict(dataset_name="/nowhere"), "Folder not found: /nowhere."),
        (dict(model_name_or_path=None), "model_name_or_path must be given"),
        (
            dict(model_name_or_path="/nowhere"),
            "Folder not found: /nowhere.",
        ),
        (dict(use_cpu=False, bf16=True), "doesn't support bf16/gpu. You need to assign use_cpu"),
    ],
)
def test_what_only_the_training_can_find_out(change, told, policy, tmp_path, capfd):
    recipe = dict(
        model_name_or_path=policy,
        dataset_name="trl_miner/arithmetic",
        output_dir=str(tmp_path / "run"),
    )
    recipe |= dict(
        use_cpu=True, bf16=False, per_device_train_batch_size=4, num_generations=4, report_to="none"
    )
    (tmp_path / "r.yaml").write_text(json.dumps(recipe | change))
    assert script._command(["--config", str(tmp_path / "r.yaml")]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1 and lines[0].startswith("trl-miner train: error: ") and told in lines[0]


def test_python_gets_the_same_texts(policy, tmp_path):
    settings = dict(use_cpu=True, bf16=False, report_to="none", output_dir=str(tmp_path))
    config = MinerGRPOConfig(per_device_train_batch_size=4, num_generations=4, **settings)
    rows = Dataset.from_list([{"question": "1+1", "solution": "2"}])
    with pytest.raises(
        ValueError, match="must have a column prompt: got question, solution. Rename"
    ):
        MinerGRPOTrainer(policy, rewards.math_reward, config, rows)


def test_a_traceback_is_shown_on_request(monkeypatch, capfd):
    monkeypatch.setenv(errors.TRACEBACK, "")  # so that the end of the test takes it back
    assert cli.main(["doctor", "nowhere.yaml", "--traceback"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith("Traceback") and said[-1].startswith(
        "trl-miner doctor: error: No recipe or file named"
    )


def test_an_unexpected_error_names_its_type_and_no_secret():
    assert errors.describe(KeyError("x")) == "KeyError: 'x'. --traceback shows where."
    assert (
        errors.describe(PermissionError(13, "Permission denied", "a.yaml"))
        == "a.yaml cannot be used: Permission denied."
    )
    assert "hf_planted0123456789" not in errors.describe(
        ValueError("got\nhub_token=hf_planted0123456789")
    )


def test_a_command_line_is_split_between_the_training_and_the_launcher():
    own = [
        "--learning-rate",
        "1e-6",
        "--reward_funcs",
        "a",
        "b",
        "--gradient_checkpointing",
        "--system_prompt",
        "- so",
    ]
    launcher = ["--num_processes", "2", "--main_process_port=1"]
    settings, *split = split_words([*own[:2], *launcher[:2], *own[2:], *launcher[2:]])
    assert split == [own, launcher]
    assert (settings.learning_rate, settings.reward_funcs, settings.system_prompt) == (
        1e-6,
        ["a", "b"],
        "- so",
    )
    assert settings.gradient_checkpointing is True
    assert split_words(["--no-gradient-checkpointing"])[0].gradient_checkpointing is False


def test_help_is_short_or_has_all_settings(capfd):
    names = []
    for which in ([], ["all"]):
        assert cli.main(["train", "--help", *which]) == 0
        names.append({word for word in capfd.readouterr().out.split() if word.startswith("--")})
    first, everything = names
    assert {"--model", "--max_steps", "--advantage_estimator"} < first and len(first) < 30
    assert {"--policy_loss_kwargs", "--warmup_steps"} < everything and len(everything) > 250


def test_damaged_weights_are_told_as_such(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ????")
    with pytest.raises(SafetensorError) as caught:
        load_file(tmp_path / "model.safetensors")
    assert errors.describe(caught.value).startswith(
        "The weights of a model are damaged or cut off ("
    )
