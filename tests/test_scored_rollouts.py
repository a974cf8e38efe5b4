"""`trl-miner inspect RUN --model CHECKPOINT`: what MINER would credit in rollouts of others."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from browser import needs_browser, open_page
from harness import build_policy, problems
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.cli import main
from trl_miner.scored_rollouts import Scorer, score_rollouts


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trace(group, right, logps):
    """A line of prime-rl whose answer has two tokens of these log-probs."""
    nodes = [
        {"message": {"role": "user", "content": "1+1="}, "sampled": False, "token_ids": [3, 4], "mask": [False] * 2},
        {"parent": 0, "message": {"role": "assistant", "content": "2"}, "sampled": True, "token_ids": [5, 6, 7],
         "mask": [False, True, True], "logprobs": logps},
    ]  # fmt: skip
    reward = {"score": right, "weight": 1.0}
    own = {"ok": True, "nodes": nodes, "rewards": {"correct": reward}, "agent": {"trainable": True}}
    return {"id": "e", "group": {"id": group}, "traces": [own]}


@pytest.fixture
def traces(tmp_path):
    for step in (3, 4):
        rows = [trace(f"a{step}", 1, [-1.0, -2.0]), trace(f"a{step}", 1, [-0.5, -0.5])]
        rows += [trace(f"b{step}", 1, [-1.0, -1.0]), trace(f"b{step}", 0, [-1.0, -1.0])]
        write_lines(tmp_path / "rollouts" / f"step_{step}" / "train/all/traces.jsonl", rows)
    write_lines(
        tmp_path / "rollouts" / "step_5" / "train/all/traces.jsonl", [trace("c", 0, [-1, -1])] * 2
    )
    return tmp_path  # fmt: skip


def test_log_probs_of_the_files_make_miners_credit(traces, tmp_path):
    tokenizer = tmp_path / "policy"
    build_policy(tokenizer)
    (tokenizer / "model.safetensors").unlink()  # no model is needed
    credit = score_rollouts(traces, Scorer(str(tokenizer), quiet=True))
    rows = credit.table.to_pylist()
    assert [row["kind"] for row in rows] == ["PH", "PH", "HE", "HE"]
    assert {row["step"] for row in rows} == {4}  # the last one with an all-right prompt
    # NLLs 1.5 and 0.5, mean 1: the first is 0.5 above. Focal weights (1 - p)^2.
    before = 0.5 * (1 - np.exp([-1.0, -2.0])) ** 2
    np.testing.assert_allclose(rows[0]["advantages_before"], before, rtol=1e-5)
    assert rows[1]["advantages"] == [0, 0]
    # rewards 1 and 0: advantages ±0.5 / (0.7071 + 1e-4), of two tokens each
    cap = 1.5e-3 * 4 * 0.5 / (np.sqrt(0.5) + 1e-4)
    np.testing.assert_allclose(sum(rows[0]["advantages"]), cap, rtol=1e-4)
    assert f"credit of the former by {cap / before.sum():.3g}" in credit.notes[-2]
    assert credit.notes[-1] == "Log-probs are those of the files."


def test_a_step_can_be_named_and_must_have_an_all_right_prompt(traces, tmp_path):
    scorer = Scorer(build_policy(tmp_path / "policy"), quiet=True)
    assert {*score_rollouts(traces, scorer, steps=[3]).table["step"].to_pylist()} == {3}
    with pytest.raises(ValueError, match="No prompt is all right in these steps"):
        score_rollouts(traces, scorer, steps=[5])
    with pytest.raises(ValueError, match="recorded steps: got 9, and there are 3, 4, 5"):
        score_rollouts(traces, scorer, steps=[9])


def test_a_checkpoint_scores_texts(tmp_path):
    policy = build_policy(tmp_path / "policy")
    prompts = [row["prompt"] for row in problems()][:2]
    rows = [
        {"prompt": prompt, "rewards": [1, 1, right], "completions": ["1+2=3", "12", "7"], "step": 2}
        for prompt, right in zip(prompts, (1, 0), strict=True)
    ]
    path = write_lines(tmp_path / "mine.jsonl", rows)
    credit = score_rollouts(path, Scorer(policy, temperature=0.7, quiet=True))
    model, tokenizer = (
        kind.from_pretrained(policy) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    for text, row in zip(("1+2=3", "12", "7"), credit.table.to_pylist(), strict=False):
        asked, said = (
            tokenizer(prompts[0])["input_ids"],
            tokenizer(text, add_special_tokens=False)["input_ids"],
        )
        with torch.no_grad():
            logits = model(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1] / 0.7
        expected = logits.log_softmax(1).gather(1, torch.tensor(said)[:, None]).squeeze(1)
        np.testing.assert_allclose(row["old_logps"], expected, atol=1e-5)
    assert credit.table["old_logps"].to_pylist()[3:] != credit.table["old_logps"].to_pylist()[:3]
    assert "at temperature 0.7. Texts became tokens again" in credit.notes[-1]  # fmt: skip


def test_what_cannot_be_scored_is_told(tmp_path, capsys):
    path = write_lines(tmp_path / "x.jsonl", [{"rewards": [1, 1], "completions": ["a", "b"]}])
    policy = build_policy(tmp_path / "policy")
    assert main(["inspect", str(path), "--model", policy]) == 2
    assert "whose prompts are not in the file" in capsys.readouterr().err
    assert main(["inspect", str(path), "--model", policy, "--temperature", "0"]) == 2
    assert "--temperature must be above 0: got 0." in capsys.readouterr().err


def test_a_chat_of_trl_goes_through_the_template_of_the_checkpoint(tmp_path):
    policy = build_policy(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
    tokenizer.save_pretrained(policy)
    said = [[{"role": "assistant", "content": text}] for text in ("1+2=3", "12", "7", "8")]
    rows = [
        {"step": 1, "prompt": [{"role": "user", "content": prompt}], "completion": completion,
         "correct": right, "advantage": 0.0}
        for prompt, right, completion in zip("1122", (1.0, 1.0, 1.0, 0.0), said, strict=True)
    ]  # fmt: skip
    (tmp_path / "completions").mkdir()
    pd.DataFrame(rows).to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    table = score_rollouts(tmp_path, Scorer(policy, quiet=True)).table
    assert table["prompt"].to_pylist() == ["<1>", "<1>", "<2>", "<2>"]
    assert table["completion"].to_pylist() == ["1+2=3", "12", "7", "8"]
    assert table["kind"].to_pylist() == ["PH", "PH", "HE", "HE"]


def test_the_report_lists_the_tokens_with_most_credit(traces, tmp_path):
    policy = build_policy(tmp_path / "policy")
    assert main(["report", str(traces), "--model", policy, "--quiet"]) == 0
    text = (traces / "report" / "report.md").read_text()
    part = text.split("## What MINER would credit")[1].split("\n## ")[0]
    assert "Step 4: 1 of 2 prompts are all right, 1 mixed." in part
    # weights (1 - e^-1)^2 = 0.400 and (1 - e^-2)^2 = 0.748: 65 % of the credit
    assert "65.2%" in part and "34.8%" in part


@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_shows_the_credit(traces, tmp_path, width):
    policy = build_policy(tmp_path / "policy")
    assert main(["inspect", str(traces), "--model", policy, "--quiet"]) == 0
    with open_page(traces / "inspect.html", viewport={"width": width, "height": 850}) as page:
        page.evaluate("() => ready")
        assert page.locator(".badge.PH").count() == 2  # in the list and above the rollouts
        assert "MINER's cap would multiply" in page.locator("#notes").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.assert_quiet()
        page.screenshot_as(f"scored-rollouts-{width}.png", tmp_path)
