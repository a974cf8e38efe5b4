"""What trl_miner/trainer takes for granted about TRL's private side. TRL releases often; this says
what moved."""

import importlib
import inspect
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import trl
from harness import config, in_a_fork, mixed_reward, problems, trained
from packaging.version import Version
from transformers import Trainer
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.trainer import grpo_trainer

import trl_miner
from trl_miner import MinerGRPOTrainer
from trl_miner.recipe.parsing import make_parser
from trl_miner.trainer import trl_asynchronous
from trl_miner.trainer.base import TrainerBase
from trl_miner.trainer.finite_gradients import FiniteGradients
from trl_miner.trainer.generation_batch import (
    COMPLETION_IDS,
    COMPLETIONS,
    EXTRA_FIELDS,
    SAMPLER_LOGPS,
    TOOL_MASK,
)
from trl_miner.trainer.micro_batches import ROW_MEAN, SUMMED
from trl_miner.trainer.reward_functions import REWARD_KWARGS
from trl_miner.trainer.rules import AVERAGED_BY_SEQUENCE_RATIO, ONE_OF
from trl_miner.trainer.scoring import MULTIMODAL_KEYS
from trl_miner.trainer.trl_names import OVERRIDDEN, READ, check

WRITTEN_AGAINST = "1.16.0"
PACKAGE = Path(trl_asynchronous.__file__).parent.parent


def moved(what):
    return (
        f"{what} is not what trl_miner/trainer was written against, TRL {WRITTEN_AGAINST}: got"
        f" {trl.__version__}"
    )


# What trl_miner/asynchronous takes for granted about TRL's asynchronous trainer, beside the members
# that trl_asynchronous.MEMBERS lists: how their source reads.
ASYNCHRONOUS_FACTS = {
    ("RolloutQueueDataset", "__iter__"): {
        r"sample = self\.queue\.get\(": "what is yielded is what the queue gave last",
        r"continue  # drop stale": "a stale sample is dropped without a word",
    },
    ("AsyncGRPOTrainer", "compute_loss"): {
        r'global_n_tokens = inputs\["global_n_tokens"\]\[0\]': "tokens of all processes",
        r"loss = loss / tokens_per_rank": "a micro-batch is divided by these",
        r"loss = loss / self\.current_gradient_accumulation_steps": "and by the micro-batches",
    },
    ("AsyncGRPOTrainer", "_save_checkpoint"): {
        r"for g in itertools\.count\(\) if g not in trained": "a resume begins there",
    },
    ("_AsyncRolloutLoop", "_score_group"): {
        r"for seq in sequences:": "rows of a rollout follow each other",
    },
}


def test_the_asynchronous_trainer_has_what_is_replaced_and_read():
    """Each name is looked up as an import does. An earlier TRL is refused, with its version."""
    if Version(trl.__version__) < Version("1.16"):
        with pytest.raises(ImportError, match=f"written for TRL 1.16: TRL {trl.__version__} has"):
            trl_asynchronous.TREE_ATTENTION  # noqa: B018
        return
    found = {name: getattr(trl_asynchronous, name) for name in trl_asynchronous.MODULES}
    for (owner, method), facts in ASYNCHRONOUS_FACTS.items():
        source = inspect.getsource(getattr(found[owner], method))
        for fact, what in facts.items():
            assert re.search(fact, source), moved(f"{owner}.{method} ({what})")


since_1_16 = pytest.mark.skipif(
    Version(trl.__version__) < Version("1.16"),
    reason="the asynchronous trainer needs TRL 1.16; that an earlier one is refused is tested above",
)
ASYNCHRONOUS_MODULES = ("async_grpo_trainer", "async_rollout_worker", "packing")


class Renamed:
    """Finds no module of this name, as after a release that has renamed it."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name.startswith(self.name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def forget(*names):
    """Have the next import read the modules anew."""
    for name in [name for name in sys.modules if name.startswith(names)]:
        del sys.modules[name]


OURS = (
    "trl_miner.trainer.trl_asynchronous",
    "trl_miner.trainer.async_config",
    "trl_miner.asynchronous",
)


def train_where_modules_are_renamed(folder, policy):
    forget("trl.experimental.async_grpo", *OURS)
    sys.meta_path.insert(0, Renamed("trl.experimental.async_grpo"))
    says = "written for TRL 1.16: TRL .* has no .*trl.experimental.async_grpo.*MinerGRPOTrainer"
    for name in ("MinerAsyncGRPOTrainer", "MinerAsyncGRPOConfig"):
        with pytest.raises(ImportError, match=says):
            getattr(trl_miner, name)
    with pytest.raises(ValueError, match=f"^asynchronous: true: .*{says}"):
        make_parser(["--asynchronous", "true"])
    trained(policy, folder, max_steps=1)


def test_renamed_modules_of_the_asynchronous_trainer_are_one_clear_error(tmp_path, policy):
    """And none to the synchronous trainer."""
    code, said = in_a_fork(train_where_modules_are_renamed, tmp_path, policy)
    assert code == 0, said[-3000:]


def import_where_modules_have_moved():
    """As TRL 1.18 has them: one module in `trl.trainer`, and two names in `trl`."""
    moved_to = types.ModuleType("trl.trainer.async_grpo_trainer")
    for name in ASYNCHRONOUS_MODULES:
        old = importlib.import_module(f"trl.experimental.async_grpo.{name}")
        vars(moved_to).update({key: value for key, value in vars(old).items() if key[:2] != "__"})
    trl.AsyncGRPOTrainer = moved_to.AsyncGRPOTrainer
    trl.AsyncGRPOConfig = moved_to.AsyncGRPOConfig
    forget("trl.experimental.async_grpo", *OURS)
    sys.modules[moved_to.__name__] = moved_to
    sys.meta_path.insert(0, Renamed("trl.experimental.async_grpo"))
    assert issubclass(trl_miner.MinerAsyncGRPOTrainer, trl.AsyncGRPOTrainer)


@since_1_16
def test_modules_that_have_moved_into_trl_are_found():
    code, said = in_a_fork(import_where_modules_have_moved)
    assert code == 0, said[-3000:]


@since_1_16
def test_a_class_that_has_lost_what_is_overridden_is_named(monkeypatch):
    loop = trl_asynchronous._AsyncRolloutLoop
    monkeypatch.delattr(trl_asynchronous, "_AsyncRolloutLoop")  # what was looked up is kept
    monkeypatch.setattr(loop, "_generate_one_turn", lambda self, prompt_ids, images: None)
    with pytest.raises(
        ImportError, match=r"a _AsyncRolloutLoop without _generate_one_turn\(self, p"
    ):
        trl_asynchronous._AsyncRolloutLoop  # noqa: B018


@since_1_16
def test_the_list_of_asynchronous_names_is_what_the_code_uses():
    """Nothing private of TRL's classes is overridden, replaced or read that is not listed, and
    nothing is listed in vain."""
    sources = {path: path.read_text() for path in (PACKAGE / "asynchronous").glob("*.py")}
    text = "\n".join(sources.values())
    outside = (PACKAGE / "trainer" / "async_config.py", PACKAGE / "launching" / "server.py")
    imported = text + "".join(path.read_text() for path in outside)
    for name in trl_asynchronous.MODULES:
        assert re.search(rf"\b{name}\b", imported), f"{name} is listed in vain"
    assert not re.search(r"(import|from) trl\.experimental|trl\.trainer\.async", imported)
    listed = {name.split("(")[0] for names in trl_asynchronous.MEMBERS.values() for name in names}
    kinds = [getattr(trl_asynchronous, name) for name in trl_asynchronous.MEMBERS]
    trls = "".join(inspect.getsource(kind) for kind in kinds) + inspect.getsource(Trainer)
    private = set(re.findall(r"self\.(_[a-z]\w+)", trls))
    private |= {name for kind in kinds for name in vars(kind) if re.match(r"_[a-z]", name)}
    used = set(re.findall(r"(?:self|super\(\)|callback|trainer)\.(_[a-z]\w+)", text))
    used |= set(re.findall(r"def (_[a-z]\w+)\(self", text))
    assert used & private - {"_name", "_paper", "_tag_names"} <= listed


def test_overridden_methods_keep_their_signatures():
    """Those of the private ones are looked at by every import."""
    parameters = {"create_model_card": "self model_name dataset_name tags"}
    parameters["save_model"] = "self output_dir _internal_call"
    for name, expected in parameters.items():
        found = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
        assert found == expected.split(), moved(f"GRPOTrainer.{name}{tuple(found)}")


def test_the_private_side_of_trl_is_what_is_listed():
    """Each private name that the trainer folder overrides, reads or writes has its reason in
    trl_names.py, and no other has one; no other file there names a module of TRL's."""
    private = set(
        re.findall(
            r"self\.(_[a-z]\w+)", inspect.getsource(GRPOTrainer) + inspect.getsource(Trainer)
        )
    )
    private |= {name for name in vars(GRPOTrainer) if re.match(r"_[a-z]", name)}
    private -= {"_name", "_paper", "_tag_names"}  # those of the model card
    used = set()
    for path in Path(inspect.getfile(MinerGRPOTrainer)).parent.glob("*.py"):
        # the two lists, and what extends the public GRPOConfig
        is_outside = path.stem in ("trl_names", "trl_asynchronous", "config")
        assert is_outside or not re.search(r"^\s*(from|import) trl\b", path.read_text(), re.M), path
        if path.stem != "quantized_sync":  # of TRL's link to vLLM
            used |= set(re.findall(r"(?:self|trainer|super\(\))\.(_[a-z]\w+)", path.read_text()))
            used |= set(re.findall(r"holding\(\w+, (_\w+)=", path.read_text()))
    classes = (MinerGRPOTrainer, TrainerBase, FiniteGradients)
    overridden = {name for cls in classes for name in vars(cls)} & private
    assert overridden == {member.partition("(")[0] for member in OVERRIDDEN}
    assert (used & private) - overridden == READ.keys()
    assert len(OVERRIDDEN) <= 10 and len(READ) <= 8


def test_a_trainer_of_trls_that_lacks_what_is_used_is_one_error_at_import():
    """A renamed method, and one with other parameters."""

    class Renamed(GRPOTrainer):
        def _generate(self, prompts, images): ...

    with pytest.raises(ImportError, match="written for TRL 1.14.2 to 1.16.*_generate"):
        check(Renamed)
    check(GRPOTrainer)


def test_a_model_is_saved_with_the_settings_of_the_trainer():
    """`save_model` stands in for `_save`, which pickles them, secrets and all."""
    source = inspect.getsource(Trainer)
    saves = len(re.findall(r"self\._save\(", source))
    assert saves == len(re.findall(r"self\._save\(", inspect.getsource(Trainer.save_model))), moved(
        "Trainer._save"
    )


def test_the_link_to_vllm_has_what_is_replaced_for_a_model_in_4_bits():
    link = vllm_generation.VLLMGeneration
    names = [
        "_init_vllm",
        "_fix_param_name_to_vllm",
        *(["_iter_named_params"] if trl.__version__.startswith("1.16") else []),
    ]
    assert all(hasattr(link, name) for name in names), moved("VLLMGeneration")
    assert grpo_trainer.VLLMGeneration is link and vllm_generation.is_bitsandbytes_available, moved(
        "what makes it"
    )


@pytest.mark.parametrize("name", ONE_OF)
def test_settings_take_no_value_that_ours_refuse(name):
    """What TRL's help quotes; the help of one setting quotes values of others."""
    known = {value for values in ONE_OF.values() for value in values}
    quoted = set(
        re.findall(r"['`](\w+)'", config("unused").__dataclass_fields__[name].metadata["help"])
    )
    assert quoted <= known, moved(f"{name}, with {quoted - known},")


def test_the_forward_takes_what_it_is_given():
    name = "_get_per_token_logps_and_entropies"
    assert hasattr(GRPOTrainer, name), moved(f"GRPOTrainer.{name} (gone)")
    found = inspect.signature(getattr(GRPOTrainer, name)).parameters
    needed = {"model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values())  # TRL 1.14
    assert takes_any or needed | set(MULTIMODAL_KEYS) <= set(found), moved(
        f"GRPOTrainer.{name}{tuple(found)}"
    )
    first = ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]
    assert list(found)[:5] == first or list(found)[2] == "args", moved(
        f"GRPOTrainer.{name}{tuple(found)}"
    )
    assert "batch_size" in found, moved(f"GRPOTrainer.{name}{tuple(found)}")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = {
        n for n, p in found.items() if p.default is inspect.Parameter.empty and p.kind in named
    } - {"self"}
    assert required <= needed, moved(f"GRPOTrainer.{name} (it now requires {required - needed})")


def test_no_multimodal_input_is_unknown():
    """Whatever the loss hands to the forward besides tokens, the forward over PH rows must hand to
    it as well."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    passed = set(re.findall(r'(\w+)=inputs\.get\("\1"\)', source)) - {"importance_sampling_ratio"}
    assert passed == set(MULTIMODAL_KEYS), moved(
        "GRPOTrainer._compute_loss (what it hands to the forward)"
    )


FACTS = {
    "_calculate_rewards": {r"= gather\(rewards_per_func\)": "rewards come back gathered"},
    "_generate_and_score_completions": {
        r'"train" if self\.model\.training else "eval"': "the mode's rule",
        r"unscorable_mask = torch\.isnan\(rewards_per_func\)\.all\(dim=1\)": (
            "unscorable: every reward is NaN"
        ),
        r"process_index \* len\(prompts\)": "rows lie in rank order",
        r"_pending_extra_logs\.clear\(\)": "extra columns wait for the batch",
        r"for key, values in extra_fields\.items\(\)": "rollouts add columns",
    },
    "_compute_loss": {
        r"if self\.beta != 0\.0:\s+per_token_loss = per_token_loss \+": (
            "the KL penalty is off at beta 0"
        ),
        r"if x\.shape\[1\] == 1": "one column is one number per row, so that trimming leaves two",
    },
    "_prepare_inputs": {
        r"_buffered_inputs\[self\._step % self\.args\.steps_per_generation\]": (
            "slices follow each other"
        ),
        r"self\._step % generate_every == 0 or self\._buffered_inputs is None": (
            "rollouts are used up first"
        ),
    },
}


@pytest.mark.parametrize("method", FACTS)
def test_source_facts(method):
    source = inspect.getsource(getattr(GRPOTrainer, method))
    for fact, what in FACTS[method].items():
        assert re.search(fact, source), moved(f"GRPOTrainer.{method} ({what})")


def test_no_reward_argument_is_unknown():
    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    handed = set(re.findall(r'\breward_kwargs\["(\w+)"\] =', source)) | {
        "prompts",
        "completions",
        "completion_ids",
    }
    assert handed == REWARD_KWARGS, moved(
        "GRPOTrainer._calculate_rewards (what it hands to a reward function)"
    )


def test_no_loss_type_is_unknown():
    """A new one must be sorted: does a sequence-level ratio average token advantages away in it?"""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    lists = re.findall(r"self\.loss_type in (\[[^\]]+\])", source)
    found = set(re.findall(r'self\.loss_type [!=]= "(\w+)"', source)) | {
        name for names in lists for name in re.findall(r'"(\w+)"', names)
    }
    assert found == AVERAGED_BY_SEQUENCE_RATIO | {"cispo", "vespo"}, moved(
        "GRPOTrainer._compute_loss (its losses)"
    )
    assert found == SUMMED | ROW_MEAN | {"bnpo"}, (
        "what the gradient is a sum of must be known of every loss"
    )


def test_the_loss_gathers_what_has_one_number_for_each_row_alone():
    """In a plan, processes may have unlike numbers of rows, and `gather` returns what it is given:
    see `TokenMeans`. The policy loss is gathered for the entropy bonus, which has no plan."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    gathered = set(re.findall(r"self\.accelerator\.gather\((\w+)", source))
    assert gathered <= {"masked_seq_mean", "policy_loss"}, moved(
        f"GRPOTrainer._compute_loss (gathers {gathered})"
    )
    logged = set(re.findall(r"\[\"([\w/]+)\"\]\.append\(nan(?:min|max)\(", source))
    assert all(name.endswith(("_min", "_max")) for name in logged), moved(
        f"what the loss logs: {logged}"
    )


def test_a_generation_is_the_tuple_it_was():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    names = (
        re.search(r"\(\s*((?:\w+,\s*)+)\) = self\._generate\(prompts\)", source)
        .group(1)
        .replace(",", " ")
        .split()
    )
    places = {
        "completion_ids_list": COMPLETION_IDS,
        "tool_mask_list": TOOL_MASK,
        "completions": COMPLETIONS,
    }
    places |= {"sampling_per_token_logps_list": SAMPLER_LOGPS, "extra_fields": EXTRA_FIELDS}
    assert {name: names.index(name) for name in places} == places, moved(
        "GRPOTrainer._generate (what it returns)"
    )


@pytest.fixture(scope="module")
def stepped(policy, tmp_path_factory):
    trainer = GRPOTrainer(
        policy, mixed_reward, config(tmp_path_factory.mktemp("grpo"), num_iterations=2), problems()
    )
    rows = [problems()[i // 4] for i in range(12)]
    trainer.model.train()
    return trainer, trainer._generate_and_score_completions(rows)


@pytest.mark.parametrize("loss_type", sorted(AVERAGED_BY_SEQUENCE_RATIO | {"cispo", "vespo"}))
def test_the_loss_takes_an_advantage_for_every_token(stepped, loss_type):
    """No trainer inside TRL passes (B, T) any more. A constant row must mean what one number does,
    bit for bit."""
    trainer, batch = stepped
    trainer.loss_type = loss_type
    trainer.current_gradient_accumulation_steps = 1
    rows = batch["advantages"]
    per_row = trainer._compute_loss(trainer.model, batch)
    per_token = trainer._compute_loss(
        trainer.model,
        {**batch, "advantages": rows.unsqueeze(1).expand(batch["completion_ids"].shape).clone()},
    )
    assert rows.abs().sum() > 0 and torch.equal(per_row, per_token), moved(
        "GRPOTrainer._compute_loss ((B, T))"
    )


def test_only_the_trainer_touches_what_is_private():
    """`import trl.something` and `self._private` of GRPOTrainer stay in one folder, and those of the
    asynchronous trainer in its own."""
    folders = {PACKAGE / "trainer", PACKAGE / "asynchronous"}
    private = re.compile(
        r"_calculate_rewards|_generate_and_score_completions|_compute_loss|_get_per_token_logps|\b_metrics\[|\b_logs\["
        r"|\b_generate\(|_buffered_inputs|_pending_extra_logs|_get_train_sampler|_prepare_inputs|_save_checkpoint\("
        r"|_get_output_dir|_generate_single_turn|_entropy_bonus_enabled|_set_sync_gradients"
    )
    users = {path for path in PACKAGE.rglob("*.py") if private.search(path.read_text())}
    assert {path.parent for path in users} == folders
