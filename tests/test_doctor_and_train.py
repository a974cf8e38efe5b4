"""`trl-miner doctor` refuses what the training refuses before its first step, and nothing else."""

from pathlib import Path

import pytest
import yaml

from trl_miner import train
from trl_miner.doctor import examination
from trl_miner.doctor.context import FAILED, NOT_CHECKED, this_machine
from trl_miner.launching.local import launcher_arguments

RECIPES = Path(__file__).parent.parent / "recipes"
ARITHMETIC, PAPER = RECIPES / "arithmetic" / "miner.yaml", RECIPES / "Qwen3-4B-Base" / "miner.yaml"
# The paper's recipe on this machine: an own model and the embedded problems, without server, GPUs
# or DeepSpeed.
HERE = {
    "dataset_name": "trl_miner/arithmetic",
    "use_vllm": False,
    "accelerate_config": None,
    "use_cpu": True,
}
HERE |= {
    "bf16": False,
    "vllm_max_model_length": None,
    "optimizer_batch_size": 64,
    "beta": 0.0,
    "max_completion_length": 16,
}

WRONG = {  # by what finds it; the rules of single settings are in test_config*.py
    # the reader of recipes
    "unknown key": {"learning_speed": 1},
    # our configuration, TRL's and transformers'
    "negative gamma": {"miner_gamma": -1},
    "groups that do not divide": {"num_generations": 7},
    "16 bits twice": {"bf16": True, "fp16": True},
    # rewards, data and the trainer
    "weights for other rewards": {"reward_weights": [1.0, 2.0]},
    "reward without its column": {"reward_funcs": ["harness.by_thirds"]},
    "rollout function that cannot be imported": {"rollout_func": "no_such_module.rollout"},
    "dynamic sampling from too few": {
        "dynamic_sampling": True,
        "advantage_estimator": "grpo",
        "dataset_name": "few",
    },
    "prompts selected from a stream": {
        "prompt_selection": "greso",
        "dataset_name": "few",
        "dataset_streaming": True,
    },
    "no data set": {"dataset_name": None},
    "unknown split": {"dataset_train_split": "tran"},
    "no model": {"model_name_or_path": None},
    "folder without a model": {"model_name_or_path": "empty"},
    "LoRA on layers that are not there": {
        "use_peft": True,
        "lora_target_modules": ["q_projection"],
    },
    "reference without KL": {"sync_ref_model": True, "beta": 0.0},
    "a schedule without its number": {"lr_scheduler_type": "cosine_with_min_lr"},
    # the launch and the folder
    "4 bits without bitsandbytes": {"load_in_4bit": True, "use_peft": True},
    "accelerate's configuration is missing": {"accelerate_config": "zero9"},
    "checkpoint that is not there": {"resume_from_checkpoint": "/nowhere/checkpoint-5"},
}
RIGHT = {
    "as it is": {},
    "LoRA": {"use_peft": True, "lora_target_modules": ["q_proj", "v_proj"]},
    "GRPO with a KL term": {"advantage_estimator": "grpo", "beta": 0.01},
    "DAPO": {"advantage_estimator": "grpo", "dynamic_sampling": True, "epsilon_high": 0.28},
    "held-out problems": {"held_out": 4, "score_steps": 1},
    "off-policy Clip-Cov": {"policy_loss": "clip_cov", "num_iterations": 2},
}
BROKEN = ("max_steps:\t[1", "- max_steps: 1")


@pytest.fixture
def write(tmp_path, policy, monkeypatch):
    """Writes a recipe with changes, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "train.jsonl").write_text('{"prompt": "1 + 1", "solution": "2"}\n')

    def write(base, changes):
        settings = yaml.safe_load(base.read_text()) | {
            "model_name_or_path": policy,
            "output_dir": "run",
        }
        settings |= {"per_device_train_batch_size": 64, "held_out": 0, "report_to": "none"}
        settings |= HERE if base == PAPER else {}
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(settings | changes))
        return path

    return write


def doctor_refuses(path):
    """What the command makes of it: a failed check, or an error that reads as one."""
    try:
        findings, _ = examination.examine(path, [], this_machine())
    except (Exception, SystemExit) as error:
        return [repr(error)]
    return [f"{finding.about}: {finding.text}" for finding in findings if finding.status == FAILED]


def train_refuses(path, monkeypatch):
    """What ends the training of the recipe before its first step, with everything real up to
    there."""

    def begin(trainer, *rest):
        """What `_run` and the training do first."""
        trainer.find_checkpoint(trainer.args.resume_from_checkpoint)
        trainer.create_optimizer_and_scheduler(1)

    monkeypatch.setattr(train, "_run", begin)
    try:
        launcher_arguments(["--config", str(path)])
        train.main(["--config", str(path)])
    except (Exception, SystemExit) as error:
        return repr(error)
    return ""


@pytest.mark.parametrize(
    ("name", "base"),
    [(name, (ARITHMETIC, PAPER)[number % 2]) for number, name in enumerate(WRONG)],
    ids=WRONG,
)
def test_both_refuse(name, base, write, monkeypatch, capsys):
    path = write(base, WRONG[name])
    assert train_refuses(path, monkeypatch)
    assert doctor_refuses(path)


@pytest.mark.parametrize(
    ("name", "base"),
    [(name, (PAPER, ARITHMETIC)[number % 2]) for number, name in enumerate(RIGHT)],
    ids=RIGHT,
)
def test_both_take(name, base, write, monkeypatch, capsys):
    path = write(base, RIGHT[name])
    assert not doctor_refuses(path)
    assert not train_refuses(path, monkeypatch)


@pytest.mark.parametrize("text", BROKEN)
def test_both_refuse_a_file_that_is_no_recipe(text, tmp_path, monkeypatch, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert train_refuses(path, monkeypatch)
    assert doctor_refuses(path)


@pytest.mark.parametrize(
    "config", [{"distributed_type": "DEEPSPEED"}, ["distributed_type"]], ids=["GPUs", "a list"]
)
def test_a_configuration_of_accelerate_that_does_not_fit_is_refused(config, write, tmp_path):
    (tmp_path / "accelerate.yaml").write_text(yaml.safe_dump(config))
    assert doctor_refuses(write(ARITHMETIC, {"accelerate_config": "accelerate.yaml"}))


def test_a_model_of_the_hub_that_cannot_be_asked_is_not_checked(write):
    findings, _ = examination.examine(
        write(ARITHMETIC, {"model_name_or_path": "some/model"}), [], this_machine()
    )
    assert [finding.about for finding in findings if finding.status == NOT_CHECKED] == ["model"]
    assert not {"memory", "trainer"} & {finding.about for finding in findings}
    assert not [finding for finding in findings if finding.status == FAILED]
