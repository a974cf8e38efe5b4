"""A run on its way to the Hub, which is a server on loopback that speaks its protocol."""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import hub_server
import pytest
import yaml
from harness import call_on_ranks, in_a_fork, write_recipe
from huggingface_hub import HfApi, ModelCard, close_session
from studies import counts_of

from trl_miner import cli
from trl_miner.data.prompt_form import read_form, write_form
from trl_miner.data.prompts import PromptForm
from trl_miner.evaluation.evaluate import identity
from trl_miner.hub import training, upload
from trl_miner.hub.folder import _license_of, assemble
from trl_miner.hub.model_card import make_card
from trl_miner.runs import models
from trl_miner.runs.held_out import HeldOut, Moment, write_held_out
from trl_miner.runs.models import find_model
from trl_miner.runs.settings import settings_of
from trl_miner.runs.training_record import RECORD, named, write_run_record
from trl_miner.train import main as train

TESTS = Path(__file__).parent
TOKEN = "hf_planted0123456789planted"
KEY = "planted-wandb-key-0123456789"
PLANTED = "planted-elsewhere-9876543210"
RECIPE = dict(
    reward_funcs=["harness.mixed_reward"], save_strategy="steps", save_steps=1, push_to_hub=True
)
KNOWN = {
    "base_model": {"name": "org/base-model", "hub": True},
    "dataset": {"name": "org/problems", "hub": True},
    "held_out": {"name": "org/problems", "hub": True},
    "methods": ["miner"],
    "settings": {
        "advantage_estimator": "miner",
        "miner_gamma": "2.0",
        "max_completion_length": "8.0",
        "seed": "1.0",
    },
    "versions": {"trl_miner": "9.9", "trl": "1.16.0", "torch": "2.13.0", "vllm": "0.31.0"},
    "git": "0123456789ab + changes",
}
BENCHMARK = {
    **{"title": "AIME2024", "k": 8, "problems": 30, "samples": 8},
    "intervals": {
        name: {"mean": mean} for name, mean in (("pass@1", 0.25), ("pass@k", 0.5), ("maj@k", 0.3))
    },
    "source": {"hub": "Maxwell-Jia/AIME_2024"},
}


@pytest.fixture
def online(monkeypatch):
    """This process speaks to a server of its own, and waits for nothing."""
    with hub_server.running() as hub:
        use(hub, monkeypatch)
        yield hub
        close_session()


def use(hub, monkeypatch):
    close_session()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    sleep = time.sleep
    monkeypatch.setattr("time.sleep", lambda seconds: sleep(min(seconds, 0.01)))


def train_aloud(words):
    """Train in a fork, with its standard output where its errors go."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    train(words)


@pytest.fixture(scope="module")
def finished(policy, tmp_path_factory):
    """A run of two steps whose Hub took the repository and then answered 500 to all that came."""
    output = tmp_path_factory.mktemp("runs") / "tiny"
    more = dict(
        held_out=4, score_samples=2, score_steps=1, logging_steps=1, report_to="tensorboard"
    )
    more |= dict(hub_model_id="me/tiny", hub_private_repo=True)
    more |= dict(env={"MY_SERVICE_KEY": PLANTED}, model_init_kwargs={"token": PLANTED})
    more |= dict(model_name_or_path=policy, output_dir=output)
    path = write_recipe(output.parent / "recipe.yaml", **RECIPE | more)
    with hub_server.running() as hub, pytest.MonkeyPatch.context() as patch:
        use(hub, patch)
        hub.fail("preupload")
        code, said = in_a_fork(train_aloud, ["--config", path, "--hub_token", TOKEN])
        assert "me/tiny" in hub.repos and hub.files("me/tiny") == {}, said[-3000:]
        attempts = sum("preupload" in request for request in hub.requests)
    return SimpleNamespace(folder=output, code=code, said=said, attempts=attempts)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of that run, with the record of what it was."""
    folder = tmp_path / "tiny"
    shutil.copytree(finished.folder, folder)
    record = json.loads((finished.folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps(record | KNOWN))
    return folder


def push_here(*arguments):
    """`trl-miner push` in this process, which `online` has told where the Hub is: it starts at
    once."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["push", *map(str, arguments)])
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def push_well(*arguments):
    done = push_here(*arguments)
    assert done.returncode == 0, done.stderr
    return done


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_run_that_cannot_push_ends_well(finished):
    said = finished.said
    assert finished.code == 0, said[-3000:]
    assert finished.attempts == 30  # 5 attempts of ours, each 1 + 5 of huggingface_hub's
    assert "The model was not pushed." in said and "try again later" in said
    assert f"trl-miner push {finished.folder} --repo-id me/tiny --private" in said
    assert (finished.folder / "model.safetensors").is_file()


def test_what_arrives_is_what_the_dry_run_wrote_and_no_more(run, online, tmp_path):
    dry = tmp_path / "new" / "dry"
    done = push_well(run, "--repo-id", "me/tiny", "--dry-run", dry)
    sent = push_well(run, "--repo-id", "me/tiny", "--private")
    assert online.files("me/tiny") == contents(dry) and online.private == {"me/tiny"}
    assert set(contents(dry)) == {
        "README.md", "config.json", "generation_config.json", "held_out.json",
        "model.safetensors", "prompt_form.json", "tokenizer.json", "tokenizer_config.json", "training.png",
    }  # fmt: skip
    for name in ("model.safetensors", "config.json", "tokenizer.json", "held_out.json"):
        assert online.files("me/tiny")[name] == (run / name).read_bytes(), name
    assert done.stdout.endswith("Without --dry-run it is sent.\n")
    assert sent.stdout.endswith(f"Wrote\n  {online.url}/me/tiny\n")


def test_no_secret_and_no_place_of_the_machine_is_published(finished, run, online):
    sent = push_well(run, "--repo-id", "me/tiny")
    for name, content in online.files("me/tiny").items():
        for hidden in (TOKEN, KEY, str(finished.folder.parent), str(run.parent), f"{Path.home()}/"):
            assert hidden.encode() not in content, name
    printed = "".join([finished.said, sent.stdout, sent.stderr])
    assert not any(secret in printed for secret in (TOKEN, KEY, PLANTED))
    assert list(finished.folder.rglob("events.out.*")), "a tracker, which gets all settings"
    for path in finished.folder.rglob("*"):
        for secret in (TOKEN, KEY, PLANTED) if path.is_file() else ():
            assert secret.encode() not in path.read_bytes(), path


def test_a_file_with_a_secret_is_not_pushed_and_leaves_no_dry_run(run, online, tmp_path):
    config = json.loads((run / "generation_config.json").read_text())
    (run / "generation_config.json").write_text(json.dumps(config | {"note": KEY}))
    for options in ([], ["--dry-run", tmp_path / "dry"]):
        done = push_here(run, "--repo-id", "me/tiny", *options)
        assert (
            done.returncode == 2
            and "generation_config.json has the value of WANDB_API_KEY" in done.stderr
        )
        assert KEY not in done.stderr + done.stdout
    assert online.repos == {} and {path.name for path in tmp_path.iterdir()} == {"tiny"}


# The card.


def test_the_golden_card(tmp_path):
    record = KNOWN | {"papers": {"miner": ["MINER", "2601.04731"]}, "tags": ["mine"]}
    scores = {"before": {"pass@1": 0.1}, "step 1": {"pass@1": 0.2}, "after": {"pass@1": 0.75}}
    facts = {"name": "me/tiny", "evaluation": scores, "benchmarks": {"aime24": BENCHMARK}}
    (tmp_path / "training.png").touch()
    write_form(tmp_path, PromptForm("chat"))
    assert make_card(tmp_path, record, **facts) == (TESTS / "golden" / "card.md").read_text()


def test_the_hub_reads_the_scores_of_a_card(tmp_path):
    from huggingface_hub import ModelCard

    interval = {"mean": 0.25, "low": 0.2, "high": 0.3}
    scores = BENCHMARK | {"intervals": dict.fromkeys(("pass@1", "pass@k", "maj@k"), interval)}
    facts = {
        "name": "me/tiny",
        "evaluation": {},
        "benchmarks": {"aime24": scores, "my own": scores},
    }
    card = ModelCard(make_card(tmp_path, KNOWN, **facts))
    (found,) = card.data.eval_results  # of the one that is on the Hub
    assert (found.dataset_type, found.dataset_split) == ("Maxwell-Jia/AIME_2024", "train")
    assert (found.metric_type, found.metric_value) == ("pass@1", 0.25)
    assert card.text.count("0.250 (0.200 to 0.300)") == 6


def test_the_card_says_on_what_the_model_was_scored(tmp_path):
    counts = HeldOut({"after": Moment(step=9, num_samples=4, num_correct=(4, 0, 2, 2))})
    write_held_out(tmp_path, counts)
    card = make_card(tmp_path, KNOWN, name="me/tiny", evaluation=counts.scores)
    # the smallest and the largest mean of four problems that chance draws at 2.5 %
    assert (
        "Scored on 4 held-out problems of org/problems, with 4 completions of each: Pass@1 0.500"
        in card
    )
    assert re.search(r"95 % interval 0\.1\d\d to 0\.8\d\d over problems", card)
    assert card.count("MINER lets prompts train") == 1 == card.count("@inproceedings")


def test_a_whole_benchmark_with_a_leaderboard_is_a_result_of_the_hub(run, tmp_path):
    from huggingface_hub import parse_eval_result_entries

    interval = {"mean": 0.41, "low": 0.3, "high": 0.5}
    scores = BENCHMARK | {"intervals": dict.fromkeys(("pass@1", "pass@k", "maj@k"), interval)}
    model, whole = find_model(run), {"problems": 1319, "samples": 4}
    for name, found in (("gsm8k", scores | whole), ("aime24", scores)):
        assemble(model, tmp_path / name, name="me/tiny", benchmarks={name: found})
    assemble(model, tmp_path / "part", name="me/tiny", benchmarks={"gsm8k": scores})
    assert [path.name for path in tmp_path.rglob("*.yaml")] == ["gsm8k.yaml"]
    path = tmp_path / "gsm8k" / ".eval_results" / "gsm8k.yaml"
    (entry,) = parse_eval_result_entries(yaml.safe_load(path.read_text()))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("openai/gsm8k", "gsm8k", 41.0)
    assert entry.notes.endswith("4 samples of each problem, 95 % interval 30.00 to 50.00")


def test_the_license_is_the_base_models(tmp_path, online):
    online.repos["org/base-model"] = {"main": {"README.md": b"---\nlicense: mit\n---\n# Base\n"}}
    assert _license_of(KNOWN["base_model"]) == "mit"
    assert _license_of({"name": "org/other", "hub": True}) is None
    assert "\nlicense: mit\n" in make_card(tmp_path, KNOWN, name="x", evaluation={}, license="mit")


HOSTILE = (
    *("<script>alert(1)</script>", "[click](https://evil.example)", "![x](https://evil.example)"),
    *("`code`", "```\n\n# evil", "a\n---\nlicense: evil\n---\n", "1 | 2", "{{ 7 * 7 }}"),
    *('512); __import__("os").system("evil")', "512\nevil()", "-1", "0", "9" * 400, "\u202eevil"),
)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_card_shows_every_value_as_text(value, tmp_path):
    """Its parts are those of a card with plain values: front matter, headings, links and code."""
    record = KNOWN | {
        "methods": ["miner", value],
        "papers": {"miner": [value, value], value: [value, "2601.04731"]},
        "tags": [value],
        "settings": {"max_completion_length": value, "loss_type": value, "miner_x": value},
        "versions": {value: value, "trl_miner": value},
        "git": value,
        "base_model": {"name": value, "hub": True},
        "dataset": {"name": value, "hub": True},
    }
    benchmark = BENCHMARK | {"title": value}
    card = make_card(
        tmp_path,
        record,
        name="me/tiny",
        evaluation={value: {"pass@1": 0.1}},
        benchmarks={"x": benchmark},
    )
    head, front, body = card.split("---\n", 2)
    front = yaml.safe_load(front)
    ids = {"base_model", "datasets"} if value in ("-1", "0") or value[0] == "9" else set()
    assert head == "" and set(front) == {"library_name", "pipeline_tag", "tags", *ids}
    assert {tag for tag in front["tags"] if tag.startswith("arxiv")} == {"arxiv:2601.04731"}
    code = re.search(r"```python\n(.*?)\n```\n", body, re.DOTALL)[1]
    assert "max_new_tokens=512," in code and "evil" not in code
    rest = re.sub(r"`[^`\n]*`", "", body.replace(code, ""))
    assert len(re.findall(r"^```", body, re.MULTILINE)) == 4  # of the quick start, and BibTeX
    assert re.findall(r"^#+ .*", body, re.MULTILINE) == [
        "# me/tiny",
        *("## Quick start", "## Intended use and limits", "## Training procedure"),
        *("### Settings", "### Evaluation", "### Framework versions", "## Citation"),
    ]
    assert "<script" not in rest and "\u202e" not in body and "49" not in rest.replace("0.149", "")
    links = re.findall(r"(?<!\\)\[[^\]]*\]\((.*?)\)", rest)
    of_ids = [f"https://huggingface.co/{kind}{value}" for kind in ("", "datasets/") if ids]
    assert links == [
        *of_ids,
        *("https://github.com/huggingface/trl", "https://huggingface.co/papers/2601.04731"),
    ]
    # no value has added a cell or a row
    rows = [line for line in body.splitlines() if line.startswith("|")]
    widths = [len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows]
    assert widths == [2] * 5 + [2] * 3 + [7] * 3


def test_the_quick_start_of_a_card_runs(run, tmp_path, monkeypatch, capsys):
    assert read_form(str(run)).style == "plain"  # the arithmetic world's prompts are texts
    (run / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    write_form(run, PromptForm("chat"))
    (tmp_path / "pushed").mkdir()
    folder = assemble(models.find_model(run), tmp_path / "pushed", name="pushed")
    code = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert 'prompt = [{"role": "user"' in code and "max_new_tokens=8," in code
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out


# Which model, and where to.


def test_a_checkpoint_is_pushed_to_a_branch_with_the_scores_up_to_it(run, online):
    scores = {moment: {"pass@1": 0.5} for moment in ("before", "step 1", "step 2", "after")}
    (run / "held_out.json").write_text(json.dumps(counts_of(scores, 2)))
    done = push_well(run / "checkpoint-1", "--repo-id", "me/tiny", "--revision", "trial")
    assert online.files("me/tiny") == {} and done.stdout.endswith("/me/tiny/tree/trial\n")
    files = online.files("me/tiny", "trial")
    assert files["model.safetensors"] == (run / "checkpoint-1" / "model.safetensors").read_bytes()
    assert not [name for name in files if name.endswith((".pt", ".pth", ".bin"))]
    # a score of later weights is none of this checkpoint's
    assert json.loads(files["held_out.json"])["moments"].keys() == {"before", "step 1"}
    assert "| Metric | Before | Step 1 |" in files["README.md"].decode()


def test_the_scores_of_the_best_model_are_not_those_of_the_last_checkpoint(run, online):
    (run / "held_out.json").write_text(
        json.dumps(counts_of({"before": {"pass@1": 0.5}, "after": {"pass@1": 1.0}}, 2))
    )
    for chose_best, table in (("False", "| Before | Step 2 |"), ("True", "| Before |\n")):
        record = json.loads((run / RECORD).read_text())
        record["settings"]["load_best_model_at_end"] = chose_best
        (run / RECORD).write_text(json.dumps(record))
        push_well(run / "checkpoint-2", "--repo-id", "me/tiny")
        assert table in online.files("me/tiny")["README.md"].decode()


def test_nothing_of_an_earlier_push_passes_for_the_new_model_s(run, online):
    push_well(run, "--repo-id", "me/tiny")
    for name in ("prompt_form.json", "held_out.json", "training.png"):
        (run / name).unlink()
    push_well(run, "--repo-id", "me/tiny")
    assert (
        online.files("me/tiny").keys() & {"prompt_form.json", "held_out.json", "training.png"}
        == set()
    )


def test_scores_of_a_model_with_other_files_are_told(run, tmp_path):
    for name in ("settings.json", "scores.json"):
        (tmp_path / name).write_text('{"benchmarks": {}}')
    for model, is_other in ((run, False), (run / "checkpoint-1", True)):
        fingerprint = {"model": identity(str(model), None)}
        known = {
            "model": str(model),
            "temperature": 1.0,
            "max_tokens": 8,
            "fingerprint": fingerprint,
            "versions": {},
        }
        (tmp_path / "settings.json").write_text(json.dumps(known))
        done = push_well(
            run,
            "--repo-id",
            "me/t",
            "--evaluation",
            tmp_path,
            "--dry-run",
            tmp_path / f"dry{is_other}",
        )
        assert ("are of the model that you push" in done.stdout) == is_other


def test_of_a_killed_run_the_newest_whole_checkpoint_is_pushed(run, online):
    for name in ("model.safetensors", "trainer_state.json", "README.md", "held_out.json"):
        (run / name).unlink()
    shutil.copytree(run / "checkpoint-2", run / "checkpoint-3")
    (run / "checkpoint-3" / "model.safetensors").write_bytes(b"\0" * 100)
    shutil.copytree(run / "checkpoint-2", run / "checkpoint-4")
    (run / "checkpoint-4" / "trainer_state.json").unlink()
    done = push_well(run, "--repo-id", "me/tiny")
    assert "Warning:" in done.stdout and "its newest checkpoint, checkpoint-2" in done.stdout
    files = online.files("me/tiny")
    assert files["model.safetensors"] == (run / "checkpoint-2" / "model.safetensors").read_bytes()
    text = files["README.md"].decode()  # which TRL had not written yet
    assert ModelCard(text).data.base_model == "org/base-model" and "(training.png)" in text


def test_a_folder_without_a_whole_model_is_told(run, tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match="^Run folder not found: .*nowhere",
    ):
        models.find_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="No model in .*empty: it has no model.safetensors"):
        models.find_model(tmp_path / "empty")
    shutil.rmtree(run / "checkpoint-1")
    shutil.rmtree(run / "checkpoint-2")
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-1])
    with pytest.raises(ValueError, match="model.safetensors must be whole: it is cut off"):
        models.find_model(run)


def test_an_index_names_the_weights(run):
    """Two shards; a third one is left over from another save."""
    for name in ("a", "b", "c"):
        shutil.copy(run / "model.safetensors", run / f"{name}.safetensors")
    (run / "model.safetensors").unlink()
    shards = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (run / "model.safetensors.index.json").write_text(json.dumps(shards))
    names = [path.name for path in models.weight_files(run)]
    assert names == ["model.safetensors.index.json", "a.safetensors", "b.safetensors"]
    (run / "b.safetensors").unlink()
    with pytest.raises(ValueError, match="No model in .*: it has no b.safetensors"):
        models.weight_files(run)


def test_of_a_lora_run_the_adapter_alone_is_pushed(run, online):
    shutil.move(run / "model.safetensors", run / "adapter_model.safetensors")
    (run / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "/data/models/base"})
    )
    online.repos["me/tiny"] = {
        "main": {"model.safetensors": b"of an earlier push", "notes.md": b"the user's"}
    }
    done = push_well(run, "--repo-id", "me/tiny")
    assert (
        "Warning: the adapter's base model is a folder of this machine, /data/models/base"
        in done.stdout
    )
    files = online.files("me/tiny")
    assert files["adapter_model.safetensors"] == (run / "adapter_model.safetensors").read_bytes()
    assert (
        "config.json" not in files
        and "model.safetensors" not in files
        and files["notes.md"] == b"the user's"
    )
    data = ModelCard(files["README.md"].decode()).data
    assert (data.library_name, data.base_model, data.base_model_relation) == (
        "peft",
        "org/base-model",
        "adapter",
    )


# Errors.


@pytest.mark.parametrize(("what", "status"), [("repos/create", 500), ("commit/main", 0)])
def test_what_passes_is_tried_again(run, online, what, status):
    online.fail(what, times=2, status=status)
    done = push_well(run, "--repo-id", "me/tiny")
    assert online.files("me/tiny")["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert re.search("failed: .*Next try in 2 s.*failed: .*in 4 s", done.stdout, re.DOTALL)


def test_a_signed_address_is_not_printed():
    said = upload.explain(
        OSError("PUT https://host/lfs/1?X-Signature=abc&X-Id=2 failed"), "me/tiny"
    )
    assert "PUT https://host/lfs/1 failed" in said and "abc" not in said


@pytest.mark.parametrize(
    ("arguments", "changes", "said"),
    [
        (["--repo-id", "others/tiny"], {}, "403.*Check the token"),
        (["--repo-id", "me/tiny"], {"HF_TOKEN": "wrong"}, "401.*Check the token .`hf auth login`"),
        (["--repo-id", "me/tiny"], {"HF_HUB_OFFLINE": "1"}, "offline mode is enabled"),
        (["--repo-id", "tiny"], {}, "--repo-id 'tiny' is not USER/NAME"),
        (
            ["--repo-id", "me/tiny", "--evaluation", "/dev"],
            {},
            "scores.json is missing. Run: trl-miner score /dev",
        ),
        (["--repo-id", "me/tiny", "--dry-run", str(TESTS)], {}, "--dry-run must name a new folder"),
    ],
)
def test_a_wrong_call_is_told_what_to_do(run, online, monkeypatch, arguments, changes, said):
    if "HF_HUB_OFFLINE" in changes:  # read when huggingface_hub is imported
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    done = push_here(run, *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len(online.requests) < 10 and online.repos == {}  # at once, and nothing sent
    assert re.search(said, done.stderr), done.stderr


# At the end of a training.


class FakeTrainer(SimpleNamespace):
    """What the functions for a training look at, around a run folder."""

    def __init__(self, folder, **settings):
        args = dict(
            output_dir=str(folder), hub_model_id="me/tiny", hub_token=None, hub_private_repo=None
        )
        super().__init__(
            args=SimpleNamespace(
                **args | dict(hub_revision=None, hub_strategy="every_save") | settings
            ),
            state=None,
            control=None,
        )
        self.callback_handler = SimpleNamespace(on_push_begin=lambda *_: None)
        self.hub_model_id, self.saved = "me/tiny", 0

    def is_world_process_zero(self):
        return True

    def save_model(self, _internal_call):
        self.saved += 1

    def create_model_card(self, model_name, **card):
        pass


def test_the_end_of_a_training_is_pushed_with_its_settings(run, online, capsys):
    trainer = FakeTrainer(run, hub_revision="trial", hub_private_repo=True)
    assert training.push_trained(trainer, dataset_name="org/problems") and trainer.saved == 1
    assert (
        online.files("me/tiny", "trial")["model.safetensors"]
        == (run / "model.safetensors").read_bytes()
    )
    assert online.private == {"me/tiny"} and "Pushed to me/tiny." in capsys.readouterr().out


def test_a_push_that_fails_is_printed_and_shows_no_token(run, online, capsys):
    trainer = FakeTrainer(run, hub_token="hf_of_the_recipe_0123456789")
    (run / "generation_config.json").write_text('{"note": "hf_of_the_recipe_0123456789"}')
    assert not training.push_trained(trainer)
    printed = capsys.readouterr().out
    assert "The model was not pushed. A file to be published must not hold a secret" in printed
    assert "hf_of_the_recipe" not in printed and online.repos == {}


def test_a_hub_that_refuses_is_told_before_the_training_and_one_in_trouble_is_not_waited_for(
    run, online, capsys
):
    trainer = FakeTrainer(run, hub_model_id="others/tiny")
    create = lambda: HfApi().create_repo(trainer.args.hub_model_id)  # noqa: E731
    with pytest.raises(ValueError, match="Push to others/tiny failed: .*403.*right to write there"):
        training.open_repo(trainer, create)
    online.fail("repos/create", status=503)
    trainer.args.hub_model_id = "me/tiny"
    training.open_repo(trainer, create)
    said = capsys.readouterr().out
    assert "failed; the training goes on" in said and "and not at checkpoints" in said
    assert trainer.hub_model_id == "me/tiny"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_lora_run_is_pushed_at_its_end(policy, online, tmp_path, capfd, processes):
    """Real training; the first two commits meet a 500 each and are tried again."""
    more = dict(use_peft=True, lora_r=2, lora_target_modules=["q_proj", "v_proj"], hub_token=TOKEN)
    more |= dict(model_name_or_path=policy, output_dir=tmp_path / "lora", hub_model_id="me/lora")
    recipe = write_recipe(tmp_path / "recipe.yaml", **RECIPE | more)
    online.fail("commit", times=2)
    call_on_ranks(processes, train, ["--config", recipe])
    said, files = capfd.readouterr(), online.files("me/lora")
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md", "training.png"} <= set(
        files
    )
    assert not any(name.endswith(("training_args.bin", "/model.safetensors")) for name in files)
    assert (
        files["adapter_model.safetensors"]
        == (tmp_path / "lora" / "adapter_model.safetensors").read_bytes()
    )
    assert TOKEN not in said.out + said.err and not any(
        TOKEN.encode() in content for content in files.values()
    )


# What training.json says of a run, and so the card.


def test_the_record_of_a_run_names_no_place(policy, tmp_path, monkeypatch):
    from harness import config
    from transformers import Qwen3Config

    data = tmp_path / "data" / "deepscaler"
    data.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    args = config(tmp_path, advantage_estimator="ucas", all_right="miner", hub_token=TOKEN)
    model = SimpleNamespace(config=Qwen3Config(name_or_path=policy))
    trainer = SimpleNamespace(args=args, model=model, tools=[])
    write_run_record(trainer, settings_of(args), dataset="data/deepscaler")
    text = (tmp_path / RECORD).read_text()
    record = json.loads(text)
    assert record["base_model"] == {"name": Path(policy).name, "hub": False}
    assert record["dataset"] == {"name": "deepscaler", "hub": False}
    assert record["methods"] == ["ucas", "miner"] and record["settings"]["miner_gamma"] == "2.0"
    assert str(tmp_path) not in text and TOKEN not in text
    assert "git" in record
    assert set(record["versions"]) >= {"trl_miner", "trl", "transformers", "torch"}
    assert named("Qwen/Qwen3-4B-Base")["hub"] and not named("trl_miner/arithmetic")["hub"]
