"""`MinerGRPOTrainer` in a script that was written for TRL's `GRPOTrainer`: one name is replaced, and
nothing else."""

import inspect
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from harness import (
    OF_FORKS,
    config,
    in_a_fork,
    metrics_of,
    mixed_reward,
    problems,
    wait_until,
    weights,
)
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer
from trl_miner.trainer.config import RunConfig
from trl_miner.training import RunTrainer

# TRL's quick start, with a model and problems of this machine, and few steps on a CPU.
QUICK_START = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

dataset = load_dataset("json", data_files={data!r}, split="train")
training_args = GRPOConfig(
    output_dir={output!r}, max_steps=3, save_steps=2, num_generations=4, max_completion_length=8,
    use_cpu=True, bf16=False, report_to="none", disable_tqdm=True, per_device_train_batch_size=8,
)
trainer = GRPOTrainer(
    model={model!r},
    reward_funcs=accuracy_reward,
    args=training_args,
    train_dataset=dataset,
)
trainer.train()
"""
AGAIN = """
trainer.train()
"""
RESUMED = """
trainer.train(resume_from_checkpoint=True)
"""
CHANGED = QUICK_START.replace("max_steps=3", "max_steps=4, learning_rate=1e-3, save_total_limit=1")


@pytest.fixture
def places(tmp_path, policy):
    rows = problems(24).map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    rows.to_json(tmp_path / "rows.jsonl")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = tmp_path / "model"
    model.mkdir()
    for path in Path(policy).iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    (model / "chat_template.jinja").write_text(template)
    return {
        "data": str(tmp_path / "rows.jsonl"),
        "output": str(tmp_path / "out"),
        "model": str(model),
    }


def run_script(text, places, cls):
    """Run a script with TRL's class replaced by another."""
    name = f"from {cls.__module__} import {cls.__name__} as GRPOTrainer"
    text = text.replace("import GRPOConfig, GRPOTrainer", f"import GRPOConfig\n{name}")
    exec(text.format(**places), {"__name__": "__main__"})


@pytest.mark.parametrize("cls", [MinerGRPOTrainer, RunTrainer])
def test_the_signature_is_trls(cls):
    assert inspect.signature(cls) == inspect.signature(GRPOTrainer)


@pytest.mark.parametrize(
    "scripts",
    [
        [QUICK_START],
        [QUICK_START + AGAIN],
        [QUICK_START, QUICK_START],
        [QUICK_START, CHANGED],
        [QUICK_START, QUICK_START + RESUMED],
    ],
    ids=["once", "train() twice", "the script twice", "changed", "resumed"],
)
def test_trls_quick_start_does_what_it_does_with_trls_class(places, tmp_path, scripts):
    left = {}
    for cls in (GRPOTrainer, MinerGRPOTrainer):
        folder = tmp_path / cls.__name__
        for script in scripts:
            code, said = in_a_fork(run_script, script, {**places, "output": str(folder)}, cls)
            assert code == 0, said[-3000:]
        left[cls] = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    more = left[MinerGRPOTrainer] ^ left[GRPOTrainer]
    # a step of 8 rollouts is half of one generation cycle of TRL's
    assert {path.name for path in more} <= {"miner_state.json", "rollouts_0.pt"}


def train_interrupted_and_again(policy, folder, cls, started):
    args = GRPOConfig(
        output_dir=str(folder),
        max_steps=100_000,
        save_steps=1,
        save_total_limit=1,
        num_generations=4,
        per_device_train_batch_size=12,
        max_completion_length=8,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = cls(policy, mixed_reward, args, problems())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    done = trainer.state.global_step
    args.max_steps = trainer.args.max_steps = 2
    trainer.train()  # anew, in the same process
    assert done > 0 and trainer.state.global_step == 2
    started.set()


def test_after_ctrl_c_it_trains_again(policy, tmp_path):
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    process = context.Process(
        target=train_interrupted_and_again, args=(policy, tmp_path, MinerGRPOTrainer, ended)
    )
    process.start()
    wait_until(lambda: list(tmp_path.glob("checkpoint-*/trainer_state.json")))
    os.kill(process.pid, signal.SIGINT)
    process.join(120)
    process.kill()
    assert process.exitcode == 0 and ended.is_set()


def test_trls_settings_train_miner_with_its_defaults(policy, tmp_path, caplog):
    """What TRL has derived from others, such as the generation batch, stays as it is."""
    args = config(tmp_path / "trl", cls=GRPOConfig, steps_per_generation=2, max_steps=2)
    found = MinerGRPOTrainer(policy, mixed_reward, args, problems())
    found.train()
    assert caplog.text.count("MINER trains with its defaults: miner_gamma=2") == 1
    caplog.clear()
    same = config(tmp_path / "ours", cls=MinerGRPOConfig, steps_per_generation=2, max_steps=2)
    expected = MinerGRPOTrainer(policy, mixed_reward, same, problems())
    expected.train()
    assert "defaults" not in caplog.text
    assert metrics_of(found) == metrics_of(expected)
    for name, weight in weights(expected).items():
        assert torch.equal(weights(found)[name], weight)
    assert type(args) is GRPOConfig and not hasattr(args, "miner_gamma")  # left as it was
    of_run = {"output_dir", "logging_dir", "run_name", "distributed_state"}
    assert {name: value for name, value in vars(found.args).items() if name not in of_run} == {
        name: value for name, value in vars(expected.args).items() if name not in of_run
    }


def test_settings_of_another_trainer_are_refused(policy, tmp_path):
    from trl import SFTConfig

    args = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(ValueError, match="or TRL's GRPOConfig: got SFTConfig"):
        MinerGRPOTrainer(policy, mixed_reward, args, problems())


CYCLE = dict(per_device_train_batch_size=3, steps_per_generation=4)


@pytest.mark.parametrize(
    "settings",
    [
        CYCLE | dict(prompt_selection="greso", dynamic_sampling=True, advantage_estimator="grpo"),
        CYCLE | dict(prompt_selection="thompson", advantage_estimator="grpo"),
        CYCLE | dict(advantage_estimator=f"{OF_FORKS}boundary_gate"),
        CYCLE | dict(dose_share=0.01),
    ],
    ids=str,
)
def test_it_goes_on_exactly_without_a_run_folder(policy, tmp_path, settings):
    """From a checkpoint alone, inside a generation cycle: there is no ledger."""

    def train(resume=None):
        saves = dict(max_steps=6, save_strategy="steps", save_steps=3, shuffle_dataset=True)
        args = config(tmp_path, cls=MinerGRPOConfig, **saves, **settings)
        trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems(13))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train()
    assert not list(tmp_path.glob("*.jsonl"))
    resumed = train(str(tmp_path / "checkpoint-3"))
    assert metrics_of(resumed)[:6] == metrics_of(whole)[:6]
    for name, weight in weights(whole).items():
        assert torch.equal(weights(resumed)[name], weight)


def test_a_second_training_of_a_trainer_counts_from_the_start(policy, tmp_path):
    """The prompt stream, its selection, the past of prompts, the dose and the totals."""
    args = config(
        tmp_path,
        cls=MinerGRPOConfig,
        prompt_selection="greso",
        dose_share=0.05,
        learning_rate=0.0,
        max_steps=2,
    )
    trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems())
    seen = []
    for _ in range(2):
        torch.manual_seed(0)
        trainer.train()
        log = next(log for log in trainer.state.log_history if "rollouts/generated_total" in log)
        seen.append((log["rollouts/generated_total"], trainer.history.state_dict()))
    assert seen[0][0] == seen[1][0] == 12
    past, again = (state["selection"] for _, state in seen)
    assert (
        past["batches"] == again["batches"] == 2 and past["pasts"].keys() == again["pasts"].keys()
    )


def test_a_frozen_adapter_is_refused(policy, tmp_path):
    """With a KL penalty TRL would train a copy of it, and the adapter would stay as it is."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    get_peft_model(model, LoraConfig(r=2)).save_pretrained(tmp_path / "adapter")

    def load(**options):
        model = AutoModelForCausalLM.from_pretrained(policy)
        return PeftModel.from_pretrained(model, tmp_path / "adapter", **options)

    args = config(tmp_path / "run", cls=MinerGRPOConfig, beta=0.1, max_steps=1)
    with pytest.raises(ValueError, match=r"no parameter.*is_trainable=True"):
        MinerGRPOTrainer(load(), mixed_reward, args, problems())
    trainer = MinerGRPOTrainer(load(is_trainable=True), mixed_reward, args, problems())
    before = weights(trainer)
    trainer.train()
    assert any(
        not torch.equal(before[name], weight)
        for name, weight in weights(trainer).items()
        if "default" in name
    )


def test_a_runs_settings_are_a_runs(policy, tmp_path):
    with pytest.raises(TypeError, match="log_token_credit"):
        MinerGRPOConfig(str(tmp_path), log_token_credit=1)
    args = config(tmp_path, cls=MinerGRPOConfig)
    made = RunTrainer(policy, mixed_reward, args, problems()).args
    assert isinstance(made, RunConfig) and made.log_token_credit == 0


@pytest.mark.parametrize(
    ("method", "named", "paper"), [("miner", "MINER", "2601.04731"), ("ucas", "UCAS", "")]
)
def test_trls_card_names_the_method_that_trains(policy, tmp_path, method, named, paper):
    args = config(tmp_path, cls=MinerGRPOConfig, advantage_estimator=method)
    trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems())
    trainer.create_model_card(model_name="mine")
    card = (tmp_path / "README.md").read_text()
    assert f"This model was trained with {named}" in card and paper in card
    assert ("2601.04731" in card) == (method == "miner")
