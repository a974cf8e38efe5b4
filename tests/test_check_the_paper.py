"""`recipes/check-the-paper/evaluate.sh`, on embedded models: those of the paper need a GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "recipes" / "check-the-paper" / "evaluate.sh"
MODELS = {"BASE": "trl_miner/arithmetic", "TRAINED": "trl_miner/forks"}


def run(folder, words, **env):
    return subprocess.run(
        ["bash", SCRIPT, "4B", *words],
        cwd=folder,
        env=os.environ | MODELS | env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.slow
def test_it_evaluates_both_models_and_compares_them(tmp_path):
    words = ["--samples", "2", "--max-tokens", "8"]
    out = run(tmp_path, words, BENCHMARKS="arithmetic:4")
    assert "Paper: MINER" in out
    for model in ("arithmetic", "forks"):
        folder = tmp_path / "evals" / "check-the-paper" / model
        assert json.loads((folder / "settings.json").read_text())["temperature"] == 0.7


def test_as_the_authors_code_it_samples_at_06_and_ends_some_questions_with_their_sentence(tmp_path):
    """The command is a stand-in that prints its words: the benchmarks are on the Hub."""
    stub = tmp_path / "trl-miner"
    stub.write_text("""#!/bin/bash\nprintf '%s\\x1f' "$@"\nprintf '\\x1e'\n""")
    stub.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    names = "aime24 aime25 amc23 hmmt25 math500 olympiadbench"
    out = run(tmp_path, ["--samples", "4"], AUTHORS="1", BENCHMARKS=names, PATH=path)
    calls = [call.split("\x1f")[:-1] for call in out.split("\x1e")[:-1]]
    assert [call[0] for call in calls] == ["eval", "eval", "score"] * 6
    asked = {}
    for call in calls:
        if call[0] == "eval":
            options = dict(zip(call[1::2], call[2::2], strict=True))
            assert (options["--temperature"], options["--samples"]) == ("0.6", "4")
            prompt = options["--prompt-template"]
            asked[options["--benchmarks"]] = prompt.split("{question}")[1]
    plain = "\nAssistant: "
    lets = " Let's think step by step and output the final answer within \\boxed{}." + plain
    please = " \nPlease think step by step and put your answer within \\boxed{}." + plain
    assert asked == {
        **dict.fromkeys(["aime24", "aime25", "hmmt25"], plain),
        **dict.fromkeys(["amc23", "math500"], lets),
        "olympiadbench": please,
    }
