"""A run on its way to the Hub, which is a server on loopback that speaks its protocol."""

import json
import re
import shutil

import pytest
from huggingface_hub import ModelCard

from trl_miner import cli
from trl_miner.hub.push import find_weights, push

USUAL = {
    "README.md", "chat_template.jinja", "config.json", "generation_config.json", "held_out.json",
    "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.png",
}  # fmt: skip


def test_what_a_model_needs_arrives_and_nothing_else(run, online, capsys):
    assert cli.main(["push", str(run), "--repo-id", "me/tiny", "--private"]) == 0
    files = online.files("me/tiny")
    assert files.keys() == USUAL and online.private == {"me/tiny"}
    for name in USUAL - {"README.md"}:
        assert files[name] == (run / name).read_bytes(), name
    assert f"{online.url}/me/tiny" in capsys.readouterr().out


def test_no_secret_and_no_place_of_the_machine_is_published(run, online, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "planted-wandb-key")
    record = json.loads((run / "training.json").read_text())
    record["settings"]["advantage_estimator_kwargs"] = "planted-wandb-key"
    (run / "training.json").write_text(json.dumps(record))
    push(run, "me/tiny", token="hf_of_the_recipe_0123")
    said = capsys.readouterr()
    for content in [*online.files("me/tiny").values(), said.out.encode(), said.err.encode()]:
        for hidden in ("planted-wandb-key", "hf_", str(run.parent)):
            assert hidden.encode() not in content


def test_weights_of_an_earlier_push_go_and_the_users_files_stay(run, online):
    push(run, "me/tiny")
    main = online.repos["me/tiny"]["main"]
    main |= {"model-00001-of-00002.safetensors": b"", "adapter_config.json": b"", "notes.md": b""}
    push(run, "me/tiny")
    assert online.files("me/tiny").keys() == USUAL | {"notes.md"}


def test_of_a_lora_run_the_adapter_alone_is_pushed(run, online):
    (run / "model.safetensors").rename(run / "adapter_model.safetensors")
    (run / "adapter_config.json").write_text("{}")
    push(run, "me/lora")
    files = online.files("me/lora")
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    assert ModelCard(files["README.md"].decode()).data.library_name == "peft"


# Which weights, and where to.


def test_of_a_killed_run_the_newest_whole_checkpoint_is_pushed(run, online, capsys):
    for name in ("trainer_state.json", "model.safetensors"):
        (run / name).unlink()
    assert find_weights(run).name == "checkpoint-4"
    (run / "checkpoint-4" / "model.safetensors").write_bytes(b"cut off")
    push(run, "me/tiny", revision="trial")
    assert "checkpoint-2 is pushed" in capsys.readouterr().out
    assert online.files("me/tiny") == {}
    files = online.files("me/tiny", "trial")
    assert files["config.json"] == (run / "checkpoint-2" / "config.json").read_bytes()
    assert files.keys() == USUAL  # no optimizer
    # its scores are those up to it: 0.25 before, (2 + 1 + 2 + 1) / 16 = 0.375 at step 2
    card = files["README.md"].decode()
    assert "| before | 4 | 0.250 |" in card and "| step 2 | 4 | 0.375 |" in card
    assert "after" not in card.partition("## Evaluation")[2].partition("## Versions")[0]


def test_a_run_that_went_on_and_was_killed_is_not_taken_for_its_older_end(run):
    assert find_weights(run) == run
    shutil.move(run / "checkpoint-4", run / "checkpoint-6")
    assert find_weights(run).name == "checkpoint-6"


def test_a_checkpoint_is_pushed_by_its_path_if_it_is_whole(run, online):
    push(run / "checkpoint-2", "me/tiny")
    assert "| step 2 |" in online.files("me/tiny")["README.md"].decode()
    (run / "checkpoint-2" / "config.json").write_text("{}")
    with pytest.raises(
        ValueError, match="No whole model in .*checkpoint-2: config.json is damaged"
    ):
        push(run / "checkpoint-2", "me/tiny")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "held_out.json"])
def test_a_link_that_leads_out_of_the_run_is_not_followed(run, online, tmp_path, name):
    (tmp_path / "own.json").write_text("{}")
    (run / name).unlink()
    (run / name).symlink_to(tmp_path / "own.json")
    with pytest.raises(ValueError, match=f"{name} leads out of the run"):
        push(run, "me/tiny")
    assert online.requests == []


# Errors.


@pytest.mark.parametrize("what", ["repos/create", "commit/main"])
def test_what_passes_is_tried_again(run, online, what, capsys):
    # huggingface_hub itself tries 5xx again, some times
    online.faults.append([what, 1, 400])
    push(run, "me/tiny")
    assert online.files("me/tiny").keys() == USUAL
    assert "Push to me/tiny failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "changes", "said"),
    [
        (["--repo-id", "others/tiny"], {}, "403.*Check the token"),
        (["--repo-id", "me/tiny"], {"HF_TOKEN": "wrong"}, "401.*Check the token"),
        (["--repo-id", "me/tiny", "--evaluation", "/dev"], {}, "scores.json"),
        ([], {}, "required: --repo-id"),
    ],
)
def test_a_wrong_call_is_told_what_to_do(run, online, monkeypatch, capsys, words, changes, said):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        cli.main(["push", str(run), *words])
    error = capsys.readouterr().err
    assert end.value.code == 2 and online.repos == {}
    assert re.search(said, error), error


@pytest.mark.parametrize(("missing", "said"), [
    ("model.safetensors", "No whole model in"), ("training.json", "no training.json"),
])  # fmt: skip
def test_a_folder_that_is_no_run_is_refused(run, online, missing, said):
    for step in (2, 4):
        shutil.rmtree(run / f"checkpoint-{step}")
    (run / missing).unlink()
    with pytest.raises(ValueError, match=said):
        push(run, "me/tiny")


def test_scores_of_an_evaluation_are_on_the_card(run, online, tmp_path):
    scores = {"title": "AIME2024", "problems": 30, "samples": 8,
              "metrics": {"Pass@1": [0.25, 0.2, 0.3], "Maj@8": [0.5, 0.4, 0.625]}}  # fmt: skip
    (tmp_path / "scores.json").write_text(json.dumps({"aime24": scores}))
    push(run, "me/tiny", evaluation=tmp_path)
    card = online.files("me/tiny")["README.md"].decode()
    assert "| AIME2024 | 30 | 8 | `Pass@1` | 0.250 | 0.200 to 0.300 |" in card
    assert "| AIME2024 | 30 | 8 | `Maj@8` | 0.500 | 0.400 to 0.625 |" in card
