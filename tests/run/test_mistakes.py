"""What a user gets wrong: one line with the fix and code 2, or code 1 once the training began."""

import json
import sys

import pytest
from run.runs import contents, recipe, train

OWN = """
import sys
def parity(completions):
    return [float(len(text) % 2) for text in completions]
def late(kwargs): return getattr(kwargs.get("trainer_state"), "global_step", 0) == 2
def raises(completions, **kwargs):
    if late(kwargs): raise KeyError("price")
    return parity(completions)
def leaves(completions, **kwargs):
    if late(kwargs): sys.exit(0)
    return parity(completions)
def infinite(completions, **kwargs):
    return [float("inf")] * len(completions) if late(kwargs) else parity(completions)
def a_dict(completions, **kwargs): return {"right": 1.0}
def a_set(completions, **kwargs): return {1.0}
def nan(completions, **kwargs): return [float("nan")] * len(completions)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "empty.csv").write_text("question,answer\n")
    yield tmp_path
    sys.modules.pop("own", None)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"reward_weights": [0.0]}, "reward_weights are [0.0]"),
        ({"model_name_or_path": "nothere"}, "The model 'nothere' cannot be loaded"),
        ({"dataset_name": "nothere.csv"}, "nothere.csv"),
        ({"dataset_name": "empty.csv"}, "empty.csv"),
        ({"reward_funcs": ["own.a_dict"]}, "a_dict"),
        ({"reward_funcs": ["own.a_set"]}, "a_set"),
        ({"reward_funcs": ["own.nan"]}, "nan"),
        ({"reward_funcs": ["math_rewrad"]}, "Did you mean 'math_reward'?"),
        ({"num_generations": 7}, "7"),
        ({"held_out": "gsm9k"}, "gsm9k"),
        ({"advantage_estimator": "grpoo"}, "grpo"),
        ({"all_right": "entropie"}, "entropy"),
        ({"correct_reward_func": "choice_reward"}, "correct_reward_func"),
        ({"eval_strategy": "steps", "held_out": 0}, "held_out"),
        ({"tools": ["own.tool"]}, "own has no 'tool'"),
        ({"resume_from_checkpoint": "nothere"}, "nothere cannot be resumed"),
        ({"optimizer_batch_size": 24}, "optimizer_batch_size"),
        ({"optimizer_batch_size": 2**20}, "no step would be trained"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_mistake_is_one_line_and_trains_nothing(here, settings, told):
    code, out, err = train(recipe(here, **settings))
    assert code == 2 and told in err, err
    lines = [line for line in err.splitlines() if line.startswith("trl-miner train: error: ")]
    assert len(lines) == 1 and "step 1" not in out
    written = here / "run"
    assert not written.exists() or {path.name for path in written.iterdir()} <= {".lock"}


@pytest.mark.parametrize("name", ["raises", "leaves", "infinite"])
def test_what_fails_in_the_training_is_code_1(here, name):
    code, out, err = train(recipe(here, reward_funcs=[f"own.{name}"], held_out=0))
    assert code == 1 and "step 1 of 4" in out and "step 4 of 4" not in out
    told = {"raises": "KeyError: 'price'", "leaves": "sys.exit(0) in code of your own"}
    assert told.get(name, "infinite") in err


def test_a_model_without_an_end_is_told_before_anything_is_loaded(here, base_model_folder):
    import shutil

    shutil.copytree(base_model_folder, here / "model")
    path = here / "model" / "tokenizer_config.json"
    known = json.loads(path.read_text())
    del known["eos_token"]
    path.write_text(json.dumps(known))
    (here / "model" / "special_tokens_map.json").unlink(missing_ok=True)
    (here / "model" / "model.safetensors").write_bytes(b"not read")
    code, out, err = train(recipe(here, model_name_or_path="model"))
    assert code == 2 and "The tokenizer of model has no token that ends a completion" in err
    assert out == ""


def test_an_adapter_is_told_as_such(here, base_model_folder):
    import shutil

    shutil.copytree(base_model_folder, here / "model")
    (here / "model" / "adapter_config.json").write_text("{}")
    code, _, err = train(recipe(here, model_name_or_path="model"))
    assert code == 2 and "model is a LoRA adapter. Merge it" in err


def test_a_folder_that_is_someone_elses_stays_as_it_is(here, base_model_folder):
    import shutil

    shutil.copytree(base_model_folder, here / "model")
    (here / "model" / "README.md").write_text("mine")
    before = contents(here)
    for words in ([], ["--resume_from_checkpoint", "latest"]):
        path = recipe(here, model_name_or_path="model", output_dir="model")
        code, _, err = train(path, *words)
        assert code == 2 and "is the model's own folder" in err
        code, _, err = train(recipe(here, output_dir="model"), *words)
        assert code == 2 and "which no run wrote" in err
    assert {path: sum for path, sum in contents(here).items() if path.name != "a.yaml"} == before


def test_several_gpus_need_a_launch(here, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    code, _, err = train(recipe(here), "--use_cpu", "false")
    assert code == 2 and "4 GPUs found, and this is one process. Use trl-miner launch" in err


def test_a_traceback_is_shown_on_request(here):
    code, _, err = train(recipe(here, learning_rate=0), "--traceback")
    assert code == 2 and "Traceback" in err and err.endswith("Choose a positive one.\n")
