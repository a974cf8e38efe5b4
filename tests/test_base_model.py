"""The base models of the embedded worlds: the weights that come with the package, and the training
that made them."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.data import base_model
from trl_miner.data.base_model import BaseModelSettings, find_model, settings_of
from trl_miner.data.worlds import WORLDS

# Big enough to build, far too small to solve anything.
TINY = BaseModelSettings(
    hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, rows=64, steps=4, batch_size=8
)
# Nats a token on 256 new solutions. They tell the worlds apart: forks' solutions are the mirror's
# with other shares.
LOSSES = {
    "trl_miner/arithmetic": 0.5196,
    "trl_miner/forks": 0.1825,
    "trl_miner/forks_mirror": 0.1018,
}


def loss(folder: str | Path, world: str) -> float:
    """Return the mean loss of a model on the tokens of new solutions of a world."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    losses = []
    for row in base_model._examples(dataclasses.replace(settings_of(world), seed=1, rows=256)):
        prompt, ids = (
            tokenizer(text)["input_ids"]
            for text in (row["prompt"], row["prompt"] + row["completion"])
        )
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
        losses.append(
            torch.nn.functional.cross_entropy(
                logits, torch.tensor(ids[len(prompt) :]), reduction="none"
            )
        )
    return torch.cat(losses).mean().item()


def test_a_name_of_the_hub_stays_and_missing_weights_are_named(monkeypatch, tmp_path):
    assert find_model("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    monkeypatch.setattr(base_model, "_folder_of", lambda world: tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match="Make them, .*: python -m trl_miner.data.base_model trl_miner/forks"
    ):
        find_model("trl_miner/forks")


@pytest.mark.parametrize("world", LOSSES)
def test_the_weights_are_those_of_the_world_as_it_is(world):
    """Whoever changes a world, a tokenizer or the settings of a model has to make its weights
    anew."""
    folder = Path(find_model(world))
    assert (
        AutoTokenizer.from_pretrained(folder).get_vocab()
        == WORLDS[world].build_tokenizer().get_vocab()
    )
    assert loss(folder, world) == pytest.approx(LOSSES[world], abs=1e-3)


@pytest.mark.slow
def test_the_training_makes_such_a_model(tmp_path):
    """On the machine that made them these are the same weights; another processor rounds
    differently."""
    base_model.train(settings_of("trl_miner/arithmetic"), tmp_path)
    assert loss(tmp_path, "trl_miner/arithmetic") == pytest.approx(
        LOSSES["trl_miner/arithmetic"], abs=0.02
    )


def test_equal_settings_make_equal_weights(tmp_path):
    made = []
    for name, settings in {
        "one": TINY,
        "again": TINY,
        "other": dataclasses.replace(TINY, seed=1),
    }.items():
        base_model.train(settings, tmp_path / name)
        made.append((tmp_path / name / "model.safetensors").read_bytes())
    assert made[0] == made[1] != made[2]


def test_a_base_model_loads_like_any_other():
    folder = find_model("trl_miner/arithmetic")
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    assert model.dtype == torch.float32 and tokenizer.padding_side == "left"
    assert (model.config.eos_token_id, model.config.pad_token_id) == (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
    text = "Compute 17 + 4.\nso 17 + 4 = 21"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
