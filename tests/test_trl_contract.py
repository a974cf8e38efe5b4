"""What trainer.py takes for granted about TRL's private side. TRL releases every few weeks; this says what moved."""

import collections
import importlib
import inspect
import re

import pytest
import torch
import trl
from harness import config, mixed_reward, problems
from trl import GRPOTrainer

from trl_miner import MinerGRPOTrainer
from trl_miner.model_card import MARKER, NO_BASE_MODEL
from trl_miner.trainer import _AVERAGED_BY_SEQUENCE_RATIO, _MULTIMODAL_KEYS, _REWARD_KWARGS

WRITTEN_AGAINST = "1.16.0"


def moved(what):
    return f"{what} is not what trainer.py was written against (TRL {WRITTEN_AGAINST}); installed is {trl.__version__}"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_compute_loss", ["self", "model", "inputs"]),
        ("create_model_card", ["self", "model_name", "dataset_name", "tags"]),
    ],
)
def test_methods_keep_their_signatures(name, parameters):
    assert hasattr(GRPOTrainer, name), moved(f"GRPOTrainer.{name} (gone)")
    found = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert found == parameters, moved(f"GRPOTrainer.{name}{tuple(found)}")


def test_the_forward_takes_what_it_is_given():
    name = "_get_per_token_logps_and_entropies"
    assert hasattr(GRPOTrainer, name), moved(f"GRPOTrainer.{name} (gone)")
    found = inspect.signature(getattr(GRPOTrainer, name)).parameters
    needed = {"model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values())  # TRL 1.14
    assert takes_any or needed | set(_MULTIMODAL_KEYS) <= set(found), moved(f"GRPOTrainer.{name}{tuple(found)}")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = {n for n, p in found.items() if p.default is inspect.Parameter.empty and p.kind in named} - {"self"}
    assert required <= needed, moved(f"GRPOTrainer.{name} (it now requires {required - needed})")


def test_no_multimodal_input_is_unknown():
    """Whatever the loss hands to the forward besides tokens, the forward over PH rows must hand to it as well."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    passed = set(re.findall(r'(\w+)=inputs\.get\("\1"\)', source)) - {"importance_sampling_ratio"}
    assert passed == set(_MULTIMODAL_KEYS), moved("GRPOTrainer._compute_loss (what it hands to the forward)")


def test_constructor_starts_with_model_rewards_and_args():
    found = list(inspect.signature(GRPOTrainer.__init__).parameters)[:4]
    assert found == ["self", "model", "reward_funcs", "args"], moved(f"GRPOTrainer.__init__{tuple(found)}")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("trl.models.utils", "disable_gradient_checkpointing"),
        ("trl.models", "unwrap_model_for_generation"),
        ("trl.trainer.utils", "split_pixel_values_by_grid"),
        ("trl.trainer.utils", "unsplit_pixel_values_by_grid"),
        ("trl.cli.accelerate_config", "resolve_accelerate_config_argument"),
    ],
)
def test_helpers_are_where_they_were(module, name):
    assert hasattr(importlib.import_module(module), name), moved(f"{module}.{name} (gone)")


@pytest.mark.parametrize(
    ("method", "fact", "what"),
    [
        ("_calculate_rewards", r"= gather\(rewards_per_func\)", "rewards come back gathered"),
        ("_calculate_rewards", r'reward_kwargs\["log_metric"\]', "reward functions are handed log_metric"),
        ("_generate_and_score_completions", r'"train" if self\.model\.training else "eval"', "the mode's rule"),
        (
            "_generate_and_score_completions",
            r"unscorable_mask = torch\.isnan\(rewards_per_func\)\.all\(dim=1\)",
            "unscorable is when every reward is NaN",
        ),
        ("_generate_and_score_completions", r'_logs\["advantages"\]\.extend', "advantages are logged here"),
        ("_generate_and_score_completions", r"process_index \* len\(prompts\)", "rows lie in rank order"),
        ("_compute_loss", r'inputs\["completion_mask"\]', "the loss masks by completion_mask"),
        ("_compute_loss", r'inputs\["tool_mask"\]', "and by tool_mask"),
        ("_prepare_inputs", r"_generate_and_score_completions\(generation_batch\)", "one call per generation"),
    ],
)
def test_source_facts(method, fact, what):
    source = inspect.getsource(getattr(GRPOTrainer, method))
    assert re.search(fact, source), moved(f"GRPOTrainer.{method} ({what})")


def test_no_reward_argument_is_unknown():
    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    handed = set(re.findall(r'\breward_kwargs\["(\w+)"\] =', source)) | {"prompts", "completions", "completion_ids"}
    assert handed == _REWARD_KWARGS, moved("GRPOTrainer._calculate_rewards (what it hands to a reward function)")


def test_no_loss_type_is_unknown():
    """A new one must be sorted: does a sequence-level ratio average token advantages away in it?"""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    lists = re.findall(r"self\.loss_type in (\[[^\]]+\])", source)
    found = set(re.findall(r'self\.loss_type [!=]= "(\w+)"', source)) | {
        name for names in lists for name in re.findall(r'"(\w+)"', names)
    }
    assert found == _AVERAGED_BY_SEQUENCE_RATIO | {"cispo", "vespo"}, moved("GRPOTrainer._compute_loss (its losses)")


@pytest.fixture(scope="module")
def stepped(policy, tmp_path_factory):
    trainer = GRPOTrainer(policy, mixed_reward, config(tmp_path_factory.mktemp("grpo"), num_iterations=2), problems())
    rows = [problems()[i // 4] for i in range(12)]
    trainer.model.train()
    return trainer, trainer._generate_and_score_completions(rows)


def test_the_batch_has_the_keys_that_are_read(stepped):
    trainer, batch = stepped
    needed = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "old_per_token_logps"}
    assert needed <= set(batch), moved(f"the batch (it lacks {needed - set(batch)})")
    assert batch["advantages"].shape == (12,), moved("batch['advantages'] (its shape)")
    assert batch["old_per_token_logps"].shape == batch["completion_ids"].shape, moved("batch['old_per_token_logps']")
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert 'output["sampling_per_token_logps"]' in source, moved("batch['sampling_per_token_logps'] (gone)")


def test_the_attributes_are_what_they_were(stepped):
    trainer, _ = stepped
    assert isinstance(trainer._metrics["train"], collections.defaultdict), moved("GRPOTrainer._metrics")
    assert isinstance(trainer._logs["advantages"], collections.deque), moved("GRPOTrainer._logs['advantages']")
    assert len(trainer._logs["advantages"]) == 12, moved("GRPOTrainer._logs['advantages'] (how much it keeps)")
    assert trainer.reward_func_names == ["mixed_reward"], moved("GRPOTrainer.reward_func_names")
    assert trainer.reward_weights.tolist() == [1.0], moved("GRPOTrainer.reward_weights")
    assert (trainer.num_generations, trainer.rollout_func) == (4, None), moved("GRPOTrainer.num_generations")


@pytest.mark.parametrize("loss_type", sorted(_AVERAGED_BY_SEQUENCE_RATIO | {"cispo", "vespo"}))
def test_the_loss_takes_an_advantage_for_every_token(stepped, loss_type):
    """No trainer inside TRL passes (B, T) any more. A constant row must mean what one number does, bit for bit."""
    trainer, batch = stepped
    trainer.loss_type = loss_type
    trainer.current_gradient_accumulation_steps = 1
    rows = batch["advantages"]
    per_row = trainer._compute_loss(trainer.model, batch)
    per_token = trainer._compute_loss(
        trainer.model, {**batch, "advantages": rows.unsqueeze(1).expand(batch["completion_ids"].shape).clone()}
    )
    assert rows.abs().sum() > 0 and torch.equal(per_row, per_token), moved("GRPOTrainer._compute_loss ((B, T))")


def test_the_model_card_has_the_places_that_are_filled(stepped, tmp_path):
    trainer, _ = stepped
    trainer.create_model_card(model_name="m")
    from pathlib import Path

    card = (Path(trainer.args.output_dir) / "README.md").read_text()
    assert MARKER in card and NO_BASE_MODEL in card, moved("the model card's template")


def test_only_trainer_touches_what_is_private():
    """`import trl.something` and `self._private` of GRPOTrainer stay in one file."""
    from pathlib import Path

    package = Path(inspect.getfile(MinerGRPOTrainer)).parent
    private = re.compile(
        r"_calculate_rewards|_generate_and_score_completions|_compute_loss|_get_per_token_logps|\b_metrics\[|\b_logs\["
    )
    users = {path.name for path in package.rglob("*.py") if private.search(path.read_text())}
    assert users == {"trainer.py"}
