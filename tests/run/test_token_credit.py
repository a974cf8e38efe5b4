"""Token credit: what is recorded is what the loss was given, and recording changes nothing."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from harness import build_trainer, train, weights

from trl_miner.run import token_credit
from trl_miner.run.token_credit import TokenCredit, read_credit, schema, token_texts

G = 4


def recorded(policy, folder, every=1, **settings):
    """Train with records; return the trainer, and the table as rows."""
    trainer = build_trainer(policy, folder, **settings)
    TokenCredit(trainer, every)
    trainer.train()
    return trainer, read_credit(folder).table.to_pylist()


@pytest.fixture(scope="module")
def run(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("credit")
    return *recorded(policy, folder, max_steps=2, miner_lambda_max=None), folder


def test_it_records_what_the_loss_was_given(run):
    trainer, rows, _ = run
    assert len(rows) == 2 * 12 and [row["step"] for row in rows] == [1] * 12 + [2] * 12
    for row in rows:
        batch = trainer.batches[row["step"] - 1]
        place = row["group"] * G + row["rollout"]
        length = int(batch.output["completion_mask"][place].sum())
        assert row["token_ids"] == batch.output["completion_ids"][place, :length].tolist()
        given = batch.estimate.advantages_BT[place, :length]
        assert row["advantages"] == given.tolist() and row["length"] == length
        # the mean over its tokens, and its uncertainty in nats a token
        assert row["advantage"] == pytest.approx(np.mean(row["advantages"]), abs=1e-6)
        assert row["nll"] == pytest.approx(-np.mean(row["old_logps"]), rel=1e-5)
        for name, values_N in (
            ("reward", batch.rollouts.rewards_N),
            ("is_correct", batch.rollouts.is_correct_N),
            ("grpo_advantage", batch.rollouts.advantages_N),
        ):
            assert row[name] == values_N[place].item()


def test_kinds_and_texts(run):
    trainer, rows, folder = run
    kinds = {}
    for row in rows:
        kinds.setdefault((row["step"], row["group"]), []).append(row)
        text = "".join(row["tokens"])
        assert (
            text.replace("<unk>", "").replace("<eos>", "").replace("<pad>", "") == row["completion"]
        )
        assert row["prompt"].startswith("Compute ") and len(row["tokens"]) == len(row["token_ids"])
    for group in kinds.values():
        rewards = {row["reward"] for row in group}
        kind = {(1.0,): "PH", (0.0,): "NH", (0.0, 1.0): "HE"}[tuple(sorted(rewards))]
        assert [row["kind"] for row in group] == [kind] * G
    paid = [row for row in rows if row["kind"] == "PH" and row["advantage"] > 0]
    assert paid and all(row["grpo_advantage"] == 0 for row in paid)
    credit = read_credit(folder)
    assert credit.table.schema == schema() and credit.name == folder.name
    assert credit.methods == ()  # no training.json


def test_recording_changes_nothing(run, policy, tmp_path):
    plain = train(policy, tmp_path, max_steps=2, miner_lambda_max=None)
    for name, weight in weights(plain).items():
        assert torch.equal(weight, weights(run[0])[name])


@pytest.mark.parametrize(
    ("settings", "every", "steps"),
    [
        # a batch of each step
        ({}, 2, [2, 4]),
        # a batch is trained on in two steps: 1-2, 3-4, 5
        ({"steps_per_generation": 2}, 1, [1, 3, 5]),
        ({"steps_per_generation": 2}, 4, [4]),
        # in four: 1-4 and, though the run ends at 5, 5-8
        ({"steps_per_generation": 2, "num_iterations": 2}, 3, [3, 6]),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 2}, 3, [3]),
        ({}, 9, []),
    ],
)
def test_every_so_many_steps(policy, tmp_path, settings, every, steps):
    trainer = build_trainer(policy, tmp_path, max_steps=5, **settings)
    TokenCredit(trainer, every)
    trainer.train()
    files = sorted((tmp_path / "credit").glob("*.parquet"))
    assert [int(path.stem.removeprefix("credit_")) for path in files] == steps


def test_whole_prompts_of_each_kind_in_turn_and_no_more(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(token_credit, "MOST_ROLLOUTS", 3 * G)
    _, rows = recorded(policy, tmp_path, max_steps=1, per_device_train_batch_size=48)
    assert len(rows) == 3 * G
    assert {row["kind"] for row in rows} >= {"PH", "NH"}
    for group in {row["group"] for row in rows}:
        assert [row["rollout"] for row in rows if row["group"] == group] == [*range(G)]


def test_what_cannot_be_read(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="No recorded tokens in .*Train with"):
        read_credit(tmp_path)
    (tmp_path / "credit").mkdir()
    path = tmp_path / "credit" / "credit_00001.parquet"
    content = bytearray((run[2] / "credit" / "credit_00001.parquet").read_bytes())
    content[len(content) // 3] ^= 1
    for harm in (content, content[: len(content) // 2], b""):
        path.write_bytes(harm)
        with pytest.raises(ValueError, match="credit_00001.parquet is damaged"):
            read_credit(tmp_path)
    pq.write_table(read_credit(run[2]).table.drop_columns(["kind"]), path)
    with pytest.raises(ValueError, match="is damaged .*kind"):
        read_credit(tmp_path)


def bytes_tokenizer():
    """A tokenizer of bytes, in which a character may be several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: place for place, token in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("text", ["a b  c", "né€", "数学 = 数", "🧮+🧮", " leading", "\n\t"])
def test_the_texts_of_the_tokens_are_the_text(text):
    tokenizer = bytes_tokenizer()
    pieces = token_texts(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text and len(pieces) == len(text.encode())


def test_a_character_that_is_cut_off_loses_no_other():
    tokenizer = bytes_tokenizer()
    ids = tokenizer.encode("a€b")
    assert token_texts(tokenizer, ids[:3]) == ["a", "", ""]
    assert token_texts(tokenizer, [ids[1], ids[0], ids[4]])[-1].endswith("b")
