"""A run goes on with the settings of its checkpoint but for those that leave prompts, rewards and
model alone; of others an error names what differs, with both values."""

import ast
import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from harness import (
    At,
    call_on_ranks,
    config,
    mixed_reward,
    never_all_right,
    problems,
    stop_training,
)
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import ModelConfig

import trl_miner
from trl_miner import MinerGRPOConfig
from trl_miner.recipe.parsing import MinerScriptArguments
from trl_miner.runs.history import read_run
from trl_miner.runs.settings import differences, refused, settings_of
from trl_miner.train import main
from trl_miner.trainer.async_config import MinerAsyncGRPOConfig
from trl_miner.training import RunTrainer

SAVED = dict(max_steps=2, save_strategy="steps", save_steps=2)


def trainer(
    policy, folder, reward=mixed_reward, rows=48, change=None, peft=None, callbacks=(), **settings
):
    args = config(folder, **{**SAVED, **settings})
    data = problems(rows) if change is None else problems(rows).map(change)
    callbacks = list(callbacks)
    return RunTrainer(policy, reward, args, data, peft_config=peft, callbacks=callbacks)


@pytest.fixture(scope="module")
def trained(policy, tmp_path_factory):
    """A trainer of two steps, and its folder with checkpoint-2."""
    made = trainer(policy, tmp_path_factory.mktemp("run"))
    made.train()
    return made


@pytest.fixture
def run(trained, tmp_path):
    """A copy of its folder."""
    return Path(shutil.copytree(trained.args.output_dir, tmp_path / "run"))


def test_any_setting_is_compared_but_for_those_that_are_harmless():
    args, others = config("run"), (MinerScriptArguments(dataset_name="a/b"), ModelConfig("a/b"))
    fields = {
        field.name for one in (args, *others) for field in dataclasses.fields(one) if field.init
    }
    compared = settings_of(args, others).keys()
    left_out = fields - compared
    assert not [
        name
        for name in left_out
        if re.match("miner|dose|advantage|policy|prompt|seed|data_seed|beta", name)
    ]
    assert {
        "learning_rate",
        "temperature",
        "held_out",
        "loss_type",
        "dataset_name",
        "dtype",
    } <= compared
    assert {
        "max_steps",
        "save_steps",
        "hub_token",
        "eval_steps",
        "per_device_train_batch_size",
    } <= left_out


def test_reports_read_the_settings_that_the_trainer_has_recorded(run):
    settings = read_run(run).settings
    assert (settings["learning_rate"], settings["miner_gamma"]) == (
        "0.001",
        "2.0",
    ) and "max_steps" not in settings
    assert settings["advantage_estimator"] == "miner"


# What the trainer was given is compared, too.

OTHERS = {
    "temperature: 1.0 -> 0.5": dict(temperature=0.5),
    "train_dataset: 48.*24": dict(rows=24),
    # the same prompts with other golds
    "train_dataset": dict(change=lambda row: {"solution": "0"}),
    "reward functions": dict(reward=never_all_right),
    "adapter": dict(peft=LoraConfig(r=2, target_modules=["q_proj"])),
    "optimizer_batch_size": dict(gradient_accumulation_steps=2),
    "generation_batch_size": dict(steps_per_generation=2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_told_with_the_one_way_to_go_on(policy, run, name):
    before = (run / "training.json").read_bytes()
    with pytest.raises(ValueError, match=f"{name}.* model_name_or_path: .*checkpoint-2"):
        trainer(policy, run, max_steps=4, **OTHERS[name]).train(resume_from_checkpoint="latest")
    assert (run / "training.json").read_bytes() == before


# What moves numbers by rounding may differ, and so may the size of a step and what computes it,
# which is told and recorded.


@pytest.mark.parametrize(
    "free",
    [
        dict(gradient_checkpointing=True),
        dict(max_tokens_per_micro_batch=100),
        dict(compute_less=False),
        dict(per_device_train_batch_size=6, gradient_accumulation_steps=2),
    ],
    ids=lambda free: next(iter(free)),
)
def test_a_run_goes_on_without_a_word_where_numbers_move_by_rounding_alone(
    policy, run, caplog, trained, free
):
    again = trainer(policy, run, max_steps=4, **free)
    again.train("latest")
    assert again.state.global_step == 4 and "other settings" not in caplog.text
    assert json.loads((run / "training.json").read_text())["changes"] == []


def rates(trainer):
    """Return the learning rates of the steps, as they are logged."""
    return [log["learning_rate"] for log in trainer.state.log_history if "loss" in log]


def test_a_lower_learning_rate_acts_from_the_checkpoint_on_and_is_recorded(policy, run, caplog):
    """Linear from 0.001 to 0 in 2 steps, so that the checkpoint's own is 0; then from 0.0004 in
    8."""
    settings = dict(max_steps=8, learning_rate=4e-4, max_grad_norm=0.5, save_steps=4)
    again = trainer(policy, run, **settings)
    again.train("latest")
    # 0.0004 * (8 - step) / 8 from step 3 on; the first of these is what the checkpoint holds
    assert rates(again) == pytest.approx([1e-3, 5e-4, 0, 2.5e-4, 2e-4, 1.5e-4, 1e-4, 5e-5])
    change = {"learning_rate": ["0.001", "0.0004"], "max_grad_norm": ["1.0", "0.5"]}
    recorded = [{"step": 2, "settings": change}]
    assert json.loads((run / "training.json").read_text())["changes"] == recorded
    (line,) = [text for text in caplog.messages if "other settings" in text]
    assert line.startswith("From step 2 on, the run has other settings: learning_rate: 0.001 ->")
    assert read_run(run).settings["learning_rate"] == "0.0004 (until step 2: 0.001)"
    caplog.clear()
    trainer(policy, run, **settings | dict(max_steps=9)).train("latest")  # no change any more
    assert json.loads((run / "training.json").read_text())["changes"] == recorded
    assert "other settings" not in caplog.text


def test_a_change_that_no_checkpoint_has_seen_is_made_again(policy, run):
    """A run that dies before its next checkpoint leaves one of the old learning rate."""
    constant = dict(max_steps=4, lr_scheduler_type="constant")
    shutil.rmtree(run)
    trainer(policy, run, **constant, save_steps=3, callbacks=[At(3, stop_training)]).train()
    for _ in range(2):
        again = trainer(policy, run, **constant, save_steps=9, learning_rate=1e-4)
        again.train(str(run / "checkpoint-3"))
        assert rates(again) == [1e-3, 1e-3, 1e-3, 1e-4]
        (change,) = json.loads((run / "training.json").read_text())["changes"]
        assert change["settings"] == {"learning_rate": ["0.001", "0.0001"]}


def test_attention_may_be_another_kernel(policy, run, caplog):
    again = trainer(policy, run, max_steps=3, model_init_kwargs={"attn_implementation": "eager"})
    again.train("latest")
    assert again.state.global_step == 3 and again.model.config._attn_implementation == "eager"
    assert "attn_implementation: sdpa -> eager" in caplog.text


# What our own errors and guides say to a run that has begun, which must be able to go on so.

PACKAGE = Path(trl_miner.__file__).parent
AT_THE_START = ("config.py", "async_config.py", "rules.py")  # they speak before a run begins
SPEAKERS = [
    *{*(PACKAGE / "trainer").glob("*.py")} - {PACKAGE / "trainer" / name for name in AT_THE_START},
    *(PACKAGE / "launching").glob("*.py"),
    *(PACKAGE / name for name in ("doctor/checks.py", "evaluation/in_training.py")),
    *(
        PACKAGE.parent / "docs" / "source" / "howto" / f"{name}.md"
        for name in ("speed_and_memory", "several_gpus", "checkpoints", "one_gpu")
    ),
]
NAMES = {
    field.name
    for one in (MinerGRPOConfig, MinerAsyncGRPOConfig, MinerScriptArguments, ModelConfig)
    for field in dataclasses.fields(one)
}
ORDERS = re.compile(r"\b([Ss]et|[Ll]ower|[Rr]aise|[Rr]educe|[Ll]eave)\b[^.;]*")
RESUMES = dict(
    accelerate_config="zero3.yaml",
    attn_implementation="eager",
    bf16=True,
    gradient_checkpointing=True,
    learning_rate=1e-4,
    max_steps=9,
    max_tokens_per_micro_batch=64,
    num_train_epochs=9,
    score_batch_size=2,
    use_cpu=False,
    use_vllm=True,
    vllm_enable_sleep_mode=True,
    vllm_gpu_memory_utilization=0.5,
    vllm_importance_sampling_correction=False,
    vllm_mode="server",
    vllm_tensor_parallel_size=2,
    watchdog_seconds=9.0,
)
# These change rewards, rollouts or the model, or speak to a recipe that has never begun.
NEW_RUN = {
    "correct_reward_func",
    "correct_threshold",
    "gate_on_correctness",
    "generation_kwargs",
    "held_out",
    "load_in_4bit",
    "load_in_8bit",
    "math_accept_unboxed",
    "max_completion_length",
    "rollout_func",
    "tool_seconds",
}
OTHERWISE_TESTED = {"per_device_train_batch_size", "resume_from_checkpoint", "output_dir"}


def texts_of(path):
    """Yield the texts of a program that people read, but for docstrings, or a guide."""
    if path.suffix == ".md":
        yield " ".join(path.read_text().split())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value if "\n\n" not in node.value else ""


def advised():
    """Return the settings that the speakers tell a reader to change."""
    orders = (
        order[0] for path in SPEAKERS for text in texts_of(path) for order in ORDERS.finditer(text)
    )
    words = [re.findall(r"\w+", order) for order in orders]
    return {
        word for order in words if {*order[1:2]} & {*NAMES, "that", "out"} for word in order
    } & NAMES


def test_every_advice_to_a_run_that_has_begun_is_known_here():
    assert {"learning_rate", "attn_implementation", "gradient_checkpointing"} < advised()
    assert advised() <= RESUMES.keys() | NEW_RUN | OTHERWISE_TESTED


@pytest.mark.parametrize("name", RESUMES)
def test_a_run_goes_on_with_what_it_is_told_to_change(tmp_path, name):
    def settings(**change):
        args, recipe = config(tmp_path), (MinerScriptArguments(), ModelConfig("a/b"))
        for one in (args, *recipe):
            vars(one).update({key: value for key, value in change.items() if key in vars(one)})
        return settings_of(args, recipe)

    assert not refused(differences(settings(), settings(**{name: RESUMES[name]})))


def test_the_same_adapter_is_no_change(policy, tmp_path):
    lora = dict(r=2, target_modules=["q_proj", "v_proj", "o_proj"])
    trainer(policy, tmp_path, max_steps=1, save_steps=1, peft=LoraConfig(**lora)).train()
    again = trainer(policy, tmp_path, peft=LoraConfig(**lora))
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 2
    with pytest.raises(ValueError, match="adapter"):
        trainer(policy, tmp_path, max_steps=4, peft=LoraConfig(**lora, lora_alpha=99)).train(
            "latest"
        )


def test_the_same_model_by_another_path_is_no_change(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(policy, "model")
    trainer("model", "run").train()
    trainer(str(tmp_path / "model"), "run", max_steps=3).train(resume_from_checkpoint="latest")
    model = AutoModelForCausalLM.from_pretrained("model")
    model.lm_head.weight.data += 1
    model.save_pretrained("model")
    with pytest.raises(ValueError, match="model: "):
        trainer("model", "run", max_steps=5).train(resume_from_checkpoint="latest")


@pytest.mark.parametrize(
    "first, second",
    [
        (dict(beta=0, temperature=1), dict(beta=0.0, temperature=1.0)),
        (
            dict(generation_kwargs={"processor": object()}),
            dict(generation_kwargs={"processor": object()}),
        ),
        (
            dict(optimizer_batch_size=12),
            dict(optimizer_batch_size=12, per_device_train_batch_size=6),
        ),
    ],
    ids=["numbers", "objects", "batches"],
)
def test_another_spelling_of_a_setting_is_no_change(tmp_path, first, second):
    assert not differences(
        settings_of(config(tmp_path, **first)), settings_of(config(tmp_path, **second))
    )


def test_a_checkpoint_that_does_not_say_its_settings_is_told(policy, run):
    (run / "training.json").unlink()
    with pytest.raises(ValueError, match="does not say with which settings checkpoint-2 was made"):
        trainer(policy, run, max_steps=4).train(resume_from_checkpoint="latest")


def test_another_number_of_processes_is_no_change_where_the_batches_stay(policy, tmp_path):
    settings = dict(
        per_device_train_batch_size=6, optimizer_batch_size=12, num_generations=2, **SAVED
    )
    call_on_ranks(2, on_a_rank, policy, str(tmp_path), settings)
    again = RunTrainer(
        policy, mixed_reward, config(tmp_path, **settings | {"max_steps": 4}), problems()
    )
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 4
    del settings["optimizer_batch_size"]
    with pytest.raises(ValueError, match="rollouts per optimizer step .*: 12.0 -> 6.0"):
        RunTrainer(
            policy, mixed_reward, config(tmp_path, **settings | {"max_steps": 6}), problems()
        ).train("latest")


def on_a_rank(policy, folder, settings, resume=None):
    RunTrainer(policy, mixed_reward, config(folder, **settings), problems()).train(resume)


def test_the_command_line_tells_other_settings_of_its_own_too(policy, tmp_path, capsys):
    recipe = [
        "--config",
        "arithmetic/miner",
        "--model_name_or_path",
        policy,
        "--output_dir",
        str(tmp_path),
    ]
    recipe += "--use_cpu true --bf16 false --held_out 0 --task_size 12 --quiet true".split()
    recipe += "--save_strategy steps --save_steps 1".split()
    recipe += (
        "--max_steps 1 --num_generations 4 --per_device_train_batch_size 12"
        " --max_completion_length 8".split()
    )
    recipe += ["--resume_from_checkpoint", "latest"]
    main(recipe)
    main(recipe)
    assert "No step is left: checkpoint-1 has done 1 of 1." in capsys.readouterr().out
    for name, more in {
        "temperature": "--temperature 0.5",
        "task_seed": "--max_steps 2 --task_seed 5",
    }.items():
        with pytest.raises(ValueError, match=name):
            main([*recipe, *more.split()])
