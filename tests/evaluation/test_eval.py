"""`trl-miner eval`: samples that are kept and gone on with, by transformers and by a server."""

import argparse
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from harness import answering
from transformers import AutoTokenizer
from urllib3.exceptions import HTTPError

from trl_miner.commands import eval as command
from trl_miner.data.prompts import PromptForm, save_form

WORLD = ["--model", "trl_miner/arithmetic", "--temperature", "1", "--top-p", "1"]
WORLD += ["--benchmarks", "arithmetic:12", "--batch-size", "64"]


def run_eval(*words):
    """Run the command with these words, and return its exit code."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([*map(str, words)]), [])


def samples(folder, name="arithmetic"):
    """Return the settings of a file of samples, and the samples by problem and number."""
    first, *lines = (Path(folder) / f"{name}.jsonl").read_text().split("\n")
    rows = [json.loads(line) for line in lines if line.endswith("}")]  # without one that is cut
    return json.loads(first), {(row["problem"], row["sample"]): row["text"] for row in rows}


def scores(folder, name="arithmetic"):
    return json.loads((Path(folder) / "scores.json").read_text())[name]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Return a folder with four samples of twelve problems of the embedded world."""
    folder = tmp_path_factory.mktemp("evaluated")
    assert run_eval(*WORLD, "--samples", 4, "--output", folder) == 0
    return folder


@pytest.fixture
def folder(evaluated, tmp_path):
    """Return a copy of it, to change."""
    return shutil.copytree(evaluated, tmp_path / "copy")


def test_scores_are_those_of_the_samples(evaluated, capsys):
    """The world's answers end with \\boxed{...}: correct ones can be counted without a grader."""
    rows = (evaluated / "arithmetic.jsonl").read_text().split("\n")[1:]
    rows = [json.loads(row) for row in rows if row]
    right = {}
    for row in rows:
        is_right = row["text"].endswith(f"\\boxed{{{row['solution']}}}.")
        right.setdefault(row["problem"], []).append(is_right)
    found = scores(evaluated)
    assert (found["problems"], found["samples"]) == (12, 4) and 0 < sum(
        map(sum, right.values())
    ) < 48
    mean, low, high = found["metrics"]["Pass@1"]
    assert mean == pytest.approx(sum(map(sum, right.values())) / 48) and low <= mean <= high
    assert found["metrics"]["Pass@4"][0] == pytest.approx(sum(map(any, right.values())) / 12)
    # of two of four samples: 1 - C(4-c, 2)/C(4, 2)
    pairs = {0: 0, 1: 3 / 6, 2: 5 / 6, 3: 1, 4: 1}
    expected = sum(pairs[sum(one)] for one in right.values()) / 12
    assert found["metrics"]["Pass@2"][0] == pytest.approx(expected)
    assert found["metrics"].keys() == {f"{m}@{k}" for m in ("Pass", "Maj") for k in (1, 2, 4)}
    run_eval(evaluated)
    assert re.search(rf"Pass@1 +{100 * mean:.2f} ", capsys.readouterr().out)


@pytest.mark.parametrize("kept", [0.97, 0.5, 0.1])
def test_a_killed_evaluation_goes_on(folder, evaluated, kept):
    """A kill cuts the file anywhere behind its first line: what is whole stays."""
    path = folder / "arithmetic.jsonl"
    text = path.read_text()
    first = text.index("\n") + 1
    path.write_text(text[: first + int(kept * (len(text) - first))])
    before = samples(folder)[1]
    with pytest.raises(ValueError, match="samples of each of 12 problems"):
        run_eval(folder)
    run_eval(*WORLD, "--samples", 4, "--output", folder)
    after = samples(folder)[1]
    assert after.keys() == samples(evaluated)[1].keys() and before.items() <= after.items()
    assert scores(folder)["samples"] == 4


def test_more_samples_keep_those_that_are_there(folder, evaluated):
    run_eval(*WORLD, "--samples", 6, "--output", folder)
    before, after = samples(evaluated)[1], samples(folder)[1]
    assert len(after) == 72 and before.items() <= after.items()
    # the new ones are no copies of the old
    old, new = ([after[f"arithmetic-{p}", n] for p in range(12)] for n in (0, 4))
    assert old != new
    assert "Pass@6" in scores(folder)["metrics"]


@pytest.mark.parametrize(
    "words",
    [["--temperature", "0.5"], ["--seed", "1"], ["--prompt_template", "Q: {question}"],
     ["--benchmarks", "arithmetic:13"], ["--max-tokens", "5"]],
)  # fmt: skip
def test_other_settings_are_refused(folder, words):
    before = samples(folder)
    with pytest.raises(ValueError, match="samples of other .*another --output"):
        run_eval(*WORLD, *words, "--samples", 4, "--output", folder)
    assert samples(folder) == before


def test_other_weights_are_refused(base_model_folder, tmp_path):
    words = ["--model", base_model_folder, *WORLD[2:], "--samples", 1, "--output", tmp_path]
    run_eval(*words)
    os.utime(Path(base_model_folder, "model.safetensors"), (0, 0))
    with pytest.raises(ValueError, match="weights"):
        run_eval(*words)


def test_a_model_is_asked_as_it_was_trained(base_model_folder, tmp_path, capsys):
    """The world's model was trained on bare questions, another on messages with words around
    them."""
    words = [*WORLD[2:], "--samples", 2]
    run_eval("--model", base_model_folder, *words, "--output", tmp_path / "trained")
    assert samples(tmp_path / "trained")[0]["prompt_form"]["style"] == "verbatim"
    assert "asked in the style verbatim" in capsys.readouterr().err
    other = shutil.copytree(base_model_folder, tmp_path / "model")
    save_form(other, PromptForm("chat", system="Be brief.", template="{question} Go."))
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}|{% endfor %}"
    tokenizer.save_pretrained(other)
    seen = []

    def respond(path, sent, headers):
        seen.append(tokenizer.decode(json.loads(sent)["prompt"]))
        return 200, json.dumps({"choices": [{"text": "", "finish_reason": "stop"}]})

    with answering(respond) as url:
        run_eval(
            "--model", other, *words, "--base-url", f"{url}/v1", "--output", tmp_path / "server"
        )
    assert len(seen) == 24 and all(text.startswith("Be brief.|Compute ") for text in seen)
    assert all(text.endswith(" Go.|") for text in seen)


NULLS = ['{"text": null, "finish_reason": "stop"}', "null", "{}"]


@pytest.mark.parametrize("answer", [f'{{"choices": [{one}]}}' for one in NULLS]
                         + ['{"choices": null}', '{"choices": []}'])  # fmt: skip
def test_null_from_a_server_is_a_wrong_sample_once(tmp_path, answer):
    asked = []

    def respond(path, sent, headers):
        asked.append(json.loads(sent))
        return 200, answer

    with answering(respond) as url:
        words = [*WORLD, "--samples", 1, "--base-url", url, "--output", tmp_path]
        run_eval(*words)
        run_eval(*words)
    assert len(asked) == 12 and {*samples(tmp_path)[1].values()} == {""}
    found = scores(tmp_path)
    assert found["metrics"]["Pass@1"] == [0, 0, 0]


def test_a_server_is_asked_with_the_sampling(tmp_path):
    asked = []

    def respond(path, sent, headers):
        asked.append((path, json.loads(sent)))
        return 200, json.dumps({"choices": [{"text": "\\boxed{1}", "finish_reason": "length"}]})

    with answering(respond) as url:
        run_eval(*WORLD, "--samples", 2, "--base-url", f"{url}/v1", "--served-model", "mine",
                 "--seed", 7, "--output", tmp_path)  # fmt: skip
    path, sent = asked[0]
    assert path == "/v1/completions"
    wanted = {"model": "mine", "temperature": 1, "top_p": 1, "max_tokens": 8192, "top_k": -1}
    assert wanted.items() <= sent.items()
    assert len({one["seed"] for _, one in asked}) == 24
    assert scores(tmp_path)["cut off"] == 24


@pytest.mark.parametrize(("status", "text"), [(400, '{"error": "too long"}'), (200, '"text"'),
                                              (200, "null"), (200, '{"error": 1}'), (404, "")])  # fmt: skip
def test_a_server_without_the_format_ends_it_and_the_samples_stay(tmp_path, status, text):
    def respond(path, sent, headers):
        return status, text

    with answering(respond) as url, pytest.raises(ConnectionError, match="--base-url"):
        run_eval(*WORLD, "--samples", 1, "--base-url", url, "--output", tmp_path)


def test_a_server_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(HTTPError, match="refused"):
        run_eval(*WORLD, "--base-url", "http://127.0.0.1:9/v1", "--output", tmp_path)


def test_nothing_to_evaluate_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--model and --benchmarks"):
        run_eval("--model", "trl_miner/arithmetic")
    with pytest.raises(ValueError, match="has no samples"):
        run_eval(tmp_path)
