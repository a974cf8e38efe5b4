"""The card of a run: what it says, and that no value of a stranger's becomes Markdown."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from harness import train
from huggingface_hub import ModelCard

from trl_miner.data.prompts import PromptForm, save_form
from trl_miner.evaluation.held_out import Moment, write_held_out
from trl_miner.hub.card import make_card, write_card
from trl_miner.run.record import Source, read_record, write_record

SCORES = {"aime24": {"title": "AIME2024", "problems": 30, "samples": 8,
                     "metrics": {"Pass@1": [0.25, 0.2, 0.3]}}}  # fmt: skip


@pytest.fixture
def record(run):
    return read_record(run)


def test_what_a_card_says(run, record):
    card = make_card(run, record, name="me/tiny", evaluation=SCORES)
    front = yaml.safe_load(card.split("---\n")[1])
    assert front == {
        "base_model": "org/base-model", "datasets": "org/problems", "library_name": "transformers",
        "pipeline_tag": "text-generation", "tags": ["trl", "arxiv:2601.04731"],
    }  # fmt: skip
    for said in (
        "# me/tiny\n", "fine-tuned version of org/base-model, trained on org/problems with\n",
        "MINER also trains on prompts", "- MINER: arXiv 2601.04731\n", "| miner_gamma | 2.0 |",
        "](training.png)", "On 4 held-out problems", "## Intended use and limits", "- trl 1.16.0\n",
        "@inproceedings{jiang2026miner,",
    ):  # fmt: skip
        assert said in card, said
    # all but one of a row's numbers by hand: (0 + 1 + 2 + 1) / 16, 1 - 1/4; (4 + 4 + 2 + 2) / 16
    assert re.search(r"\| before \| 4 \| 0.250 \| 0.\d* to 0.\d* \| 0.750 \|", card)
    assert re.search(r"\| after \| 4 \| 0.750 \| 0.500 to 1.000 \| 1.000 \|", card)
    assert "| step 2 |" not in card and "| AIME2024 | 30 | 8 |" in card


def test_another_method_is_not_called_miner(run, record):
    card = make_card(run, replace(record, methods=("GRPO",), papers={}), name="me/tiny")
    assert "MINER" not in card and "- GRPO\n" in card and "bibtex" not in card


def test_a_run_without_scores_or_picture_has_no_place_for_them(run, record):
    (run / "training.png").unlink()
    write_held_out(run, {})
    card = make_card(run, record, name="me/tiny")
    assert "Evaluation" not in card and "png" not in card


HOSTILE = (
    *("<script>alert(1)</script>", "[click](https://evil.example)", "![x](https://evil.example)"),
    *("`code`", "```\n\n# evil", "a\n---\nlicense: evil\n---\n", "1 | 2", "{{ 7 * 7 }}"),
    *('512); __import__("os").system("evil")', "\u202eevil", "www.evil.example", "{% raw %}"),
)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_card_shows_every_value_as_text(value, run, record):
    """Its parts are those of a card with plain values: front matter, headings, links and code."""
    scores = {"title": value, "problems": value, "samples": value, "metrics": {value: [1, 1, 1]}}
    hostile = replace(
        record, methods=("MINER", value), papers={"MINER": value, value: value},
        settings=dict.fromkeys(record.settings, value), versions={value: value},
        base_model=Source(value, True), dataset=Source(value, True),
    )  # fmt: skip
    write_held_out(run, {value: Moment(0, 1, [1])})
    card = make_card(run, hostile, name=value, evaluation={value: scores})
    plain = make_card(run, record, name="me/tiny", evaluation=SCORES)
    shapes = []
    for text in (card, plain):
        read = ModelCard(text)  # as the Hub reads it
        assert read.data.to_dict().keys() == ModelCard(plain).data.to_dict().keys()
        body = read.text
        code = re.search(r"```python\n(.*?)\n```\n", body, re.DOTALL)[1]
        compile(code, "card", "exec")
        rest = re.sub(r"`[^`\n]*`", "", body.replace(code, ""))
        shapes.append((
            re.findall(r"^## .*", body, re.MULTILINE), len(re.findall("^# ", body, re.MULTILINE)),
            len(re.findall(r"^```", body, re.MULTILINE)), re.findall(r"\]\((.*?)\)", rest),
        ))  # fmt: skip
        assert "<script" not in rest and "evil" not in rest and "49" not in rest
        for row in (line for line in body.splitlines() if line.startswith("|")):
            assert len(re.findall(r"(?<!\\)\|", row)) in (3, 6, 7), row
    assert shapes[0] == shapes[1]


def test_the_quick_start_of_a_card_runs(run, monkeypatch, capsys):
    for form in (None, PromptForm("chat")):
        if form is not None:
            save_form(run, form)
        card = write_card(run).read_text()
        code = card.partition("```python\n")[2].partition("```")[0]
        assert ('prompt = [{"role": "user"' in code) == (form is not None)
        monkeypatch.chdir(run.parent)
        exec(code.replace("max_new_tokens=512", "max_new_tokens=4"), {})
        assert capsys.readouterr().out


def test_a_trained_run_gets_its_card_and_picture(policy, tmp_path, record):
    trainer = train(policy, tmp_path / "mine", max_steps=2)
    trainer.save_state()
    folder = Path(trainer.args.output_dir)
    write_record(folder, record)
    assert write_card(folder).read_text().count("](training.png)") == 1
    assert (folder / "training.png").stat().st_size > 10_000
