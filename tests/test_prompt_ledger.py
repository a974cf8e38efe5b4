"""The prompt ledger: what the trainer writes, what resuming makes of it, and what a reader makes of
a damaged file.

That two processes write what one does is in test_distributed.py.
"""

import json
from dataclasses import replace

import pytest
from datasets import Dataset
from harness import config, crc, mixed_reward, problems, trained
from PIL import Image

from trl_miner.runs.checkpoints import finish
from trl_miner.runs.prompt_ledger import (
    FILE,
    Batch,
    Ledger,
    digest_of,
    parse_ledger,
    read_ledger,
    visits_of,
)
from trl_miner.trainer.prompt_keys import key_text, prompt_key, prompt_text
from trl_miner.training import RunTrainer


def test_every_visit_of_every_prompt_is_recorded(policy, tmp_path):
    """Five batches of three prompts: each has one that is all right, one all wrong, and one of some
    kind."""
    evaluated = dict(eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=4)
    trained(policy, tmp_path, cls=RunTrainer, extra=dict(eval_dataset=problems(1)), **evaluated)
    ledger = read_ledger(tmp_path)
    rows = problems()
    assert not ledger.notes
    assert [batch.step for batch in ledger.batches] == [1, 2, 3, 4, 5]  # and none of the evaluation
    assert [list(batch.prompts) for batch in ledger.batches] == [
        [3 * i, 3 * i + 1, 3 * i + 2] for i in range(5)
    ]
    assert ledger.keys == [key_text(prompt_key(row)) for row in rows.select(range(15))]
    assert ledger.texts == [" ".join(prompt.split()) for prompt in rows[:15]["prompt"]]
    kinds = [crc(prompt) % 3 for prompt in rows[:15]["prompt"]]
    for place, kind in enumerate(kinds):
        batch, own = ledger.batches[place // 3], place % 3
        correct = batch.correct[own]
        assert (batch.rollouts, batch.scored[own], batch.dropped) == (4, 4, ())
        assert {0: correct == 4, 1: correct == 0}.get(kind, True)
        assert batch.spread[own] == float(correct % 4 > 0)


def test_with_dynamic_sampling_dropped_prompts_count_too(policy, tmp_path):
    settings = dict(dynamic_sampling=True, advantage_estimator="grpo", max_steps=2)
    trainer = trained(policy, tmp_path, cls=RunTrainer, **settings)
    batches, logs = (
        read_ledger(tmp_path).batches,
        [log for log in trainer.state.log_history if "reward" in log],
    )
    assert [4 * len(batch.prompts) for batch in batches] == [
        log["dynamic_sampling/generated"] for log in logs
    ]
    assert [4 * len(batch.dropped) for batch in batches] == [
        log["dynamic_sampling/dropped"] for log in logs
    ]
    for batch in batches:
        assert len({*batch.prompts}) == len(batch.prompts)  # each visit once
        assert all(batch.correct[place] in (0, 4) for place in batch.dropped[:1])


def unscored(prompts, **kwargs):
    """Leave the first rollout of two without a reward, and give the others 0.1 and 0.3."""
    return [
        [None, 0.1, 1.0, 0.3][place % 4] if crc(p) % 3 else None for place, p in enumerate(prompts)
    ]


def test_rollouts_without_a_reward_are_not_scored(policy, tmp_path):
    settings = dict(correct_reward_func="unscored", reward_weights=[1.0, 0.0], max_steps=1)
    trained(policy, tmp_path, cls=RunTrainer, reward=[unscored, mixed_reward], **settings)
    (batch,) = read_ledger(tmp_path).batches
    # TRL's total reward of a rollout without one is 0
    assert {*zip(batch.correct, batch.scored, batch.spread, strict=True)} == {
        (1, 3, 1.0),
        (0, 0, 0.0),
    }


# Resuming


def test_resumed_even_inside_a_generation_cycle_the_ledger_is_the_uninterrupted_ones(
    policy, tmp_path, caplog
):
    """Two steps to a cycle: checkpoint 3 lies inside the second, and the run has gone on to step
    6."""
    settings = dict(max_steps=6, save_strategy="steps", save_steps=3, steps_per_generation=2)
    settings |= dict(per_device_train_batch_size=6)

    def train(folder, resume=None, **changed):
        trainer = RunTrainer(policy, mixed_reward, config(folder, **settings | changed), problems())
        trainer.train(resume_from_checkpoint=resume)
        return (folder / FILE).read_bytes()

    whole = train(tmp_path / "a")
    checkpoint = tmp_path / "a" / "checkpoint-3"
    assert len(parse_ledger(whole).batches) == 3
    assert train(tmp_path / "b", str(checkpoint)) == whole  # into another folder
    with open(tmp_path / "a" / FILE, "ab") as file:
        file.write(b'{"step": 9, "rol')  # killed while it wrote
    assert train(tmp_path / "a", str(checkpoint)) == whole
    # With a damaged line it begins anew, and says so; then it goes on.
    first = whole.splitlines(keepends=True)[0]
    (tmp_path / "a" / FILE).write_bytes(first[:20] + b"\x00" + first[20:])
    fresh = train(tmp_path / "a", str(checkpoint))
    assert "damaged" in caplog.text and [batch.step for batch in parse_ledger(fresh).batches] == [5]
    caplog.clear()
    again = train(tmp_path / "a", str(tmp_path / "a" / "checkpoint-6"), max_steps=8)
    assert (
        again.startswith(fresh)
        and len(parse_ledger(again).batches) == 2
        and "ledger" not in caplog.text
    )


def test_rollouts_that_are_generated_again_take_the_place_of_their_batch(policy, tmp_path):
    """Two steps to a cycle; the rollouts of steps 3 and 4 are gone: the ledger goes back to the end
    of the first."""
    settings = dict(
        save_strategy="steps", save_steps=3, steps_per_generation=2, per_device_train_batch_size=6
    )
    for max_steps in (3, 6):
        args = config(tmp_path, **settings, max_steps=max_steps)
        RunTrainer(policy, mixed_reward, args, problems()).train("latest")
        if max_steps == 3:
            (tmp_path / "checkpoint-3" / "rollouts_0.pt").unlink()
            finish(tmp_path / "checkpoint-3")
    # TRL counts its micro-steps from there, so that the next two cycles begin with steps 4 and 6.
    assert [batch.step for batch in read_ledger(tmp_path).batches] == [1, 4, 6]


# The file

BATCH = Batch(
    1, 4, [0, 1, 0], [4, 0, 3], [4, 4, 4], [0.0, None, 1.0], [["a", "A"], ["b", "B"]], [1]
)


def test_a_file_is_read_up_to_its_last_whole_line(tmp_path):
    second = replace(BATCH, step=2, new=(), dropped=(), skipped=[1])
    content = BATCH.line() + second.line()
    ledger = parse_ledger(content)
    assert list(ledger.batches) == [BATCH, second] and (ledger.keys, ledger.texts) == (
        ["a", "b"],
        ["A", "B"],
    )
    for end in range(len(content)):
        cut = parse_ledger(content[:end])
        assert list(cut.batches) == [BATCH, second][: content[:end].count(b"\n")]
        assert len(cut.notes) == (content[:end][-1:] not in (b"\n", b""))
    assert read_ledger(tmp_path) is None


@pytest.mark.parametrize(
    "line",
    [
        b"?",
        b'{"step": 99}',
        json.dumps({**json.loads(BATCH.line()), "spread": [0.0, float("nan"), 1.0]}).encode(),
    ],
)
def test_a_damaged_line_ends_what_is_read(line):
    ledger = parse_ledger(
        BATCH.line() + line.replace(b'"new": [["a", "A"], ["b", "B"]]', b'"new": []') + b"\n"
    )
    assert (
        list(ledger.batches) == [BATCH]
        and "is damaged and was read up to line 1" in ledger.notes[0]
    )
    assert parse_ledger(line + b"\n").batches == []


# Keys and texts


def test_a_key_tells_prompts_apart_and_nothing_else():
    chat = [{"role": "user", "content": "1 + 1?"}]
    same = [
        {"prompt": chat},
        {"prompt": [{"content": "1 + 1?", "role": "user", "tool_calls": None}], "solution": "2"},
    ]
    pictures = [Image.new("RGB", (2, 2), color) for color in ("red", "blue")]
    others = [
        {"prompt": "1 + 1?"},
        {"prompt": "1 + 1? "},
        {"prompt": "\ud800"},
        {"game": "chess"},
        {"game": "go"},
    ]
    others += [{"prompt": chat, "image": picture} for picture in pictures]
    keys = {prompt_key(row) for row in same}
    assert len(keys) == 1 and len(keys | {prompt_key(row) for row in others}) == 8
    assert prompt_key(others[-1]) == prompt_key(
        {"prompt": chat, "image": Image.new("RGB", (2, 2), "blue")}
    )
    assert all(0 <= key < 2**63 for key in keys)


def test_a_text_is_the_question_shortened_in_its_middle():
    parts = [{"type": "image"}, {"type": "text", "text": "What\n is\tthis?"}]
    assert (
        prompt_text(
            {"prompt": [{"role": "system", "content": "Hi"}, {"role": "user", "content": parts}]}
        )
        == "What is this?"
    )
    text = prompt_text({"prompt": "a" * 500 + "z" * 500})
    assert len(text) < 200 and text[0] == "a" and text[-1] == "z" and prompt_text({}) == ""


def test_a_digest_tells_data_sets_apart_by_order_and_golds_and_not_by_images():
    rows = problems(6)
    assert (
        digest_of(Dataset.from_list(list(rows)))
        == digest_of(rows)
        != digest_of(rows.select([1, 0, 2, 3, 4, 5]))
    )
    golds = ["2"] * 3000
    one, other = (
        Dataset.from_dict({"prompt": golds, "solution": [*golds[:1001], its, *golds[1002:]]})
        for its in "23"
    )
    assert digest_of(one) != digest_of(other)
    first, second = (
        rows.map(lambda _, to=to: {"image": Image.new("L", (1, 1), to)}) for to in (0, 9)
    )
    assert digest_of(first) == digest_of(second)


def test_visits_that_could_be_judged_have_a_kind():
    """Four rollouts each; the second visit of prompt 1 has one unscored beside right ones, and says
    nothing."""
    visits = [
        {"prompts": [0, 1], "correct": [4, 0], "scored": [4, 4]},
        {"prompts": [0, 1], "correct": [1, 3], "scored": [2, 3]},
    ]
    nothing = {"rollouts": 4, "spread": [None] * 2}
    batches = [Batch(step=2 * place + 1, **visit, **nothing) for place, visit in enumerate(visits)]
    found = visits_of(Ledger(batches, ["a", "b"], ["A", "B"]))
    expected = [[0, 1, 4, "all right"], [1, 1, 0, "all wrong"], [0, 3, 1, "mixed"]]
    assert found[["prompt", "step", "correct", "kind"]].values.tolist() == expected
