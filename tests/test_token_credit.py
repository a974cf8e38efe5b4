"""`log_token_credit`: what each token was paid, on disk."""

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from harness import crc, trained
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trl_miner.methods.groups import GroupKinds
from trl_miner.runs.token_credit import TokenTexts
from trl_miner.trainer.generation_batch import steps_of_batch
from trl_miner.training.token_records import choose_rollouts, due_step

EVERY_STEP = dict(log_token_credit=1)


def records(folder):
    """Rows by file name."""
    return {
        path.name: pq.read_table(path).to_pylist()
        for path in sorted((folder / "credit").glob("*.parquet"))
    }


@pytest.fixture(scope="module")
def run(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return trained(policy, folder, **EVERY_STEP), records(folder)


def test_it_records_what_the_loss_was_given(run):
    trainer, files = run
    assert list(files) == [f"credit_{step:05d}.parquet" for step in range(1, 6)]
    for rows, batch, given in zip(
        files.values(), trainer.batches, trainer.token_advantages, strict=True
    ):
        assert len(rows) == 12
        for number, row in enumerate(rows):
            assert (row["group"], row["rollout"]) == divmod(number, 4)
            length = row["length"]
            assert row["token_ids"][:length] == batch["completion_ids"][number, :length].tolist()
            assert row["advantages"] == given[number, : len(row["advantages"])].tolist()
            assert row["advantage"] == pytest.approx(np.mean(row["advantages"]), abs=1e-7)
            assert row["nll"] == pytest.approx(-np.mean(row["old_logps"]), rel=1e-6)
            assert "".join(row["tokens"]) == trainer.processing_class.decode(row["token_ids"])
            assert row["completion"] == trainer.processing_class.decode(
                row["token_ids"], skip_special_tokens=True
            )


def test_credit_of_all_right_prompts_is_weight_times_gap_times_scale(run):
    trainer, files = run
    for rows, log in zip(files.values(), trainer.state.log_history, strict=False):
        paid = 0.0
        for kind in ("PH", "HE", "NH"):
            own = [row for row in rows if row["kind"] == kind]
            assert len(own) == 4
            mean = np.mean([row["nll"] for row in own])
            for row in own:
                if kind != "PH":
                    assert row["weights"] is None and row["advantages_before"] == row["advantages"]
                    continue
                weights = (1 - np.exp(row["old_logps"])) ** 2  # focal, gamma 2
                before = weights * max(0.0, row["nll"] - mean)
                np.testing.assert_allclose(row["weights"], weights, rtol=1e-5)
                np.testing.assert_allclose(row["advantages_before"], before, rtol=1e-4, atol=1e-8)
                np.testing.assert_allclose(
                    row["advantages"], before * log["miner/scale"], rtol=1e-4, atol=1e-9
                )
                paid += np.abs(row["advantages"]).sum()
        assert paid == pytest.approx(log["miner/tau_pos"] * log["miner/scale"], rel=1e-5)
        assert paid <= trainer.args.miner_lambda_max * log["miner/tau_ref"] * (1 + 1e-5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (dict(log_token_credit=3), [3]),
        # a generation for two steps: 1-2, 3-4, 5-6
        (
            dict(log_token_credit=1, steps_per_generation=2, per_device_train_batch_size=6),
            [1, 3, 5],
        ),
        # two generations for one step: the first is recorded
        (dict(log_token_credit=2, steps_per_generation=1, gradient_accumulation_steps=2), [2, 4]),
    ],
)
def test_every_so_many_steps(policy, tmp_path, settings, expected):
    trained(policy, tmp_path, **settings)
    assert list(records(tmp_path)) == [f"credit_{step:05d}.parquet" for step in expected]


def test_tokens_without_a_log_prob_or_out_of_the_loss(policy, tmp_path, unchecked_sampler):
    """The sampler has none for each rollout's second token, and the third is a tool's."""

    def rollouts(prompts, trainer):
        ids = [[5 + crc(prompt) % 7, 6, 7, 8 + place % 4] for place, prompt in enumerate(prompts)]
        logprobs = [[-0.5, float("nan"), -9.0, -1.0 - place % 4] for place in range(len(prompts))]
        prompt_ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
        masks = [[1, 1, 0, 1]] * len(prompts)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": ids,
            "logprobs": logprobs,
            "env_mask": masks,
        }

    trained(policy, tmp_path, extra=dict(rollout_func=rollouts), max_steps=1, **EVERY_STEP)
    (rows,) = records(tmp_path).values()
    for row in rows:
        assert row["old_logps"][1] is None and row["old_logps"][2] is None and row["length"] == 3
        # of the two that are known
        assert row["nll"] == pytest.approx((0.5 + 1 + row["rollout"]) / 2)
        assert row["advantages"][2] is None  # not the model's
        assert row["kind"] != "PH" or (row["weights"][1], row["advantages_before"][1]) == (0, 0)
        assert row["kind"] != "HE" or row["grpo_advantage"] == 0 or row["advantages"][1] != 0


def test_at_most_so_many_rollouts_of_whole_prompts(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_miner.training.token_records.MOST_ROLLOUTS", 9)  # two prompts of four
    trained(policy, tmp_path, max_steps=1, **EVERY_STEP)
    (rows,) = records(tmp_path).values()
    assert len(rows) == 8  # of 12
    file = pq.ParquetFile(tmp_path / "credit" / "credit_00001.parquet")
    assert file.num_row_groups == 2  # what is left of a damaged file is whole prompts
    assert [row["kind"] for row in sorted(rows, key=lambda row: row["kind"])] == ["HE"] * 4 + [
        "PH"
    ] * 4


def test_kinds_take_turns(monkeypatch):
    monkeypatch.setattr("trl_miner.training.token_records.MOST_ROLLOUTS", 8)
    # PH PH PH NH HE PH, two rollouts each
    kinds = torch.tensor([0, 0, 0, 2, 1, 0]).repeat_interleave(2)
    kinds = GroupKinds(*(kinds == kind for kind in range(4)))
    chosen = choose_rollouts(SimpleNamespace(kinds=kinds, num_generations=2))
    assert chosen.view(-1, 2)[:, 0].tolist() == [True, True, False, True, True, False]


TEXTS = ["So 7 + 5 is 12.\nChecking: 12", "naïve café 🤖🇩🇪 日本語 \t end", "  two  spaces "]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    trainer = trainers.BpeTrainer(
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), vocab_size=300
    )
    tokenizer.train_from_iterator(["So 7 + 5 is 12."], trainer)
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_the_texts_of_the_tokens_are_the_text(text):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    ids = tokenizer(text)["input_ids"]
    pieces = TokenTexts(tokenizer).pieces(ids)
    whole = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert len(pieces) == len(ids)
    # Metaspace drops the space before a text's first word
    assert "".join(pieces).lstrip(" ") == whole.lstrip(" ")
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


@pytest.mark.parametrize(
    ("accumulation", "cycle", "every", "expected"),
    [
        (1, 5, 2, [2, 6, 12]),  # of five steps of a batch, the first that is wanted
        (8, 2, 1, [*range(1, 13)]),
        (6, 4, 2, [2, 4, 6, 8, 10, 12]),  # the batches begin at micro-steps 0, 4 and 8 of two steps
        (4, 6, 3, [3, 6, 9, 12]),
    ],
)
def test_steps_and_generation_batches_need_not_begin_together(accumulation, cycle, every, expected):
    found = []
    for micro_step in range(0, 12 * accumulation, cycle):
        done, under_way = divmod(micro_step, accumulation)
        steps = steps_of_batch(done, under_way, cycle, accumulation=accumulation, max_steps=12)
        found.append(due_step(steps, every))
    assert [step for step in found if step] == expected
