"""Secrets of several kinds, planted where they get into files and logs; and what must not be taken
for one."""

import contextlib
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import config
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trl_miner import cli, train
from trl_miner.common import redaction
from trl_miner.common.redaction import find_secret, learn, redact
from trl_miner.launching.process import GuardedProcess
from trl_miner.runs.eval_folder import write_settings
from trl_miner.runs.training_record import read_compared, write_compared

HEX = "0123456789abcdef0123456789abcdef01234567"  # a key of Weights & Biases, or a commit
HUB = "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    monkeypatch.setattr(redaction, "_learned", set())


NAMED = (  # the names of settings that hold secrets
    *("my_token", "refresh-token", "account_key", "ssh_key", "dsn", "database_url"),
    *("cookie", "set_cookie", "auth", "basic_auth", "connection_string", "storage_key"),
)
HIDDEN = [
    *(
        '{"hub_token": "hunter22"}',
        "--hub_token=hunter22",
        "https://user:hunter22@host/x",
        "https://u:hunter22@ss@h/x",
    ),
    *(
        f"https://me:{HUB}@host/x",
        HUB,
        "hf_Planted0123.",
        "ghp_" + "a1" * 18,
        "sk-proj-abc123abc123abc123",
    ),
    *("AKIAIOSFODNN7EXAMPLE", "github_pat_" + "a1_" * 12, "wandb_v1_" + "a1_" * 9),
    *("xoxb-" + "12-34-abcDEF56", "glpat-" + "a1-_" * 6, "sk_" + "live_" + "a1B2" * 6),
    "https://hooks.slack.com/services/" + "T01/B02/c03D",
    "https://discord.com/api/webhooks/" + "12345/a1-B2_c3",
    "https://x.webhook.office.com/" + "webhookb2/a1@b2/c3",
    *("AIza" + "a1B2-" * 7, "nvapi-" + "a1B2_" * 8, "r8_" + "a1B2" * 9, "npm_" + "a1B2" * 9),
    *("pypi-" + "a1B2" * 15, "SG." + "a1B2" * 6 + "." + "a1B2" * 10, "123456789:AA" + "a1B" * 11),
    *("gsk_" + "a1B2" * 13, "xai-" + "a1B2" * 20, "pplx-" + "a1B2" * 12, "dop_v1_" + "a1b2" * 16),
    *("ya29." + "a1B2" * 15, "shpat_" + "a1b2" * 8),
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0aa." + "a1-B2_c3",
    *("https://h/x?token=" + "abcd1234", "https://h/x?a=1&X-Amz-Signature=" + "abcd1234#top"),
    *("https://" + "abcdef0123456789abcd@host/x", "postgres://me:" + "hunter22@db/x"),
    "a -----BEGIN RSA " + "PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY----- b",
    "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nb3Blbn",
    *(f'{{"{name}": "hunter22-{name}"}}' for name in NAMED),
    *("Authorization: Bearer " + "hunter22xyz", '{"Authorization": "Basic ' + 'hunter22xyz="} '),
    *(
        "curl -H 'X-API-Key: " + "hunter22xyz' h",
        "WANDB_API_KEY=" + "hunter22xyz trl-miner train x",
    ),
    'export MY_PASSWORD="' + 'hunter22xyz"',
]
SHOWN = [
    *(
        "hub_token=None",
        "tokens/s: 123456",
        "key=lambda x: 1",
        "sk-learn",
        "hf_" + "x" * 34,
        "git@github.com:x/y",
    ),
    *(
        f"commit {HEX}",
        "http://[::1]:8000/v1",
        "task-1234567890abcdefgh",
        '{"token": "answer"}',
        "hf_cache_dir",
    ),
    *(
        'api_key=os.environ.get("OPENAI_API_KEY")',
        "export HF_TOKEN=<your token>",
        '{"eos_token": "</s>", "a": NaN}',
    ),
    *("https://docs.github.com/en/webhooks/about", "https://h/x?key=3&page=token", "npm_config_x"),
    *("see eyJ. and AIza", "AC/DC and SK-learn", "-----BEGIN CERTIFICATE-----", "glpat-", "r8_max"),
    *("https://arxiv.org/abs/2601.04731?context=cs.LG", "xox-1", "12:30:45 step 1", "user@host"),
    *("Authorization: Bearer YOUR_TOKEN", "export WANDB_API_KEY=...", "HF_TOKEN=$SECRET_TOKEN_1"),
    *("NUM_KEY=3", "AUTHORIZATION: basic knowledge"),
    '{"pad_token": "pad_token_0", "image_token": "image_pad_11", "per_token": "12345678"}',
    '{"auth": "none", "author": "Ada Lovelace 1", "dsn": null, "authority": "hunter22"}',
    '{"first_token": "Sure, here it is 1", "cookies_baked": 12345678, "sort_key": "level_12"}',
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_is_hidden_in_a_text(text):
    hidden = redact(text)
    assert "***" in hidden and redact(hidden) == hidden and find_secret(text)
    assert "hunter22" not in hidden and HUB not in hidden


@pytest.mark.parametrize("text", SHOWN)
def test_what_only_looks_like_a_secret_stays(text):
    assert redact(text) == text and find_secret(text) is None


TEXTS = st.lists(
    st.sampled_from([*HIDDEN, *SHOWN, "***", "--", "token", "https://", *"'\"=:?&@ \n"]), max_size=6
).map("".join)
NAMES = st.sampled_from(["hub_token", "tokens", "pwd", "a", "--key"]) | TEXTS
SETTINGS = st.dictionaries(NAMES, TEXTS | st.integers() | st.none(), max_size=4) | st.lists(
    TEXTS, max_size=6
)


@settings(max_examples=100, deadline=None)
@given(SETTINGS)
@example(["--https://user:hunter22@host/x--hub_token=hunter22"])
def test_what_is_redacted_stays_as_it_is(value):
    hidden = redact(value)
    assert redact(hidden) == hidden


def test_the_guides_the_recipes_and_the_templates_of_trl_hold_no_secret():
    """What a training prints and pushes looks like these."""
    own = Path(__file__).parents[1]
    files = [
        *own.glob("*/README.md"),
        *own.glob("*/*/README.md"),
        *own.glob("docs/source/**/*.md"),
        *own.rglob("recipes/**/*.yaml"),
        own / "README.md",
    ]
    files += [*Path(find_spec("trl").origin).parent.glob("chat_templates/*.jinja")]
    assert len(files) > 100
    assert [path for path in files if find_secret(path.read_text(encoding="utf-8"))] == []


def test_settings_and_command_lines_keep_everything_but_their_secrets():
    kept = {
        "max_tokens": 4096,
        "num_tokens": "12",
        "eos_token": "</s>",
        "tokens": ["a", "b"],
        "pass": 3,
        "token": 7,
    }
    kept |= {
        "tokenizer": "Qwen/Qwen3-4B",
        "pass@1": "0.5",
        "answer_key": "solution",
        "key": "groups/ph",
        "seed": 3,
    }
    kept |= {
        "extra_special_tokens": {"image": "<image>", "video": "video_pad"},
        "hub_token": None,
        "author": "Ada1",
    }
    assert redact(kept) == kept and find_secret(json.dumps(kept)) is None
    made = {
        "hub_token": 12345678,
        "hubtoken": "d",
        "hf_tok": "e",
        "password": 1234,
        "api_keys": ["a"],
        "db_pwd": "f",
    }
    assert redact(made) == dict.fromkeys(made, "***") | {"api_keys": ["***"]}
    made = {"env": {"WANDB_API_KEY": "a", "WANDB_PROJECT": "p"}, "secrets": {"mine": ["b"]}}
    assert redact(made) == {
        "env": {"WANDB_API_KEY": "***", "WANDB_PROJECT": "p"},
        "secrets": {"mine": ["***"]},
    }
    made = {"model_init_kwargs": {"token": "abcdefgh", "use_auth_token": True}}
    assert redact(made) == {"model_init_kwargs": {"token": "***", "use_auth_token": True}}
    assert find_secret(json.dumps(made)) == "a secret"
    words = [
        "x",
        "--hub_token",
        "a",
        "--api-key=b",
        "--max_tokens",
        "4",
        "--key",
        "c",
        "--env",
        '{"token": "abcdefgh"}',
    ]
    assert redact(words) == [
        "x",
        "--hub_token",
        "***",
        "--api-key=***",
        *words[4:9],
        '{"token": "***"}',
    ]


def test_a_known_value_is_hidden_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "open sesame/now")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "elevenses at twelve")
    monkeypatch.setenv("HUB_TOKEN", "/tmp")
    learn({"env": {"DB_PASSWORD": "tangerine"}})
    assert redact("got open sesame/now in /tmp, elevenses at twelve") == "got *** in /tmp, ***"
    assert redact(["tangerine"]) == ["***"] and find_secret("a tangerine") == "a secret"
    assert find_secret("xopen sesame/nowy") == "the value of MY_SERVICE_TOKEN"


@pytest.mark.parametrize("text", ["a", "hf_", "://a:", "sk-"])
def test_no_text_takes_long(text):
    start = time.monotonic()
    redact(text * 50_000)
    redact({"key": text * 50_000})
    assert time.monotonic() - start < 5


CHILD = """
import sys, time
say = lambda text: print(text, end="", flush=True)
say(f"{sys.argv[1:]}\\n\\r10 %")
time.sleep(0.3)
say("\\rit is tangerine-")
say("42")
"""


@pytest.mark.parametrize("live", [True, False])
def test_no_output_of_a_training_shows_a_secret_of_its_options(live, tmp_path, capfd):
    secret = ["--hub_token", "tangerine-42", "--model_init_kwargs", '{"token": "tangerine-42"}']
    process = GuardedProcess(
        "run", [sys.executable, "-c", CHILD, *secret], {}, tmp_path / "log.txt", live=live
    )
    process.start()
    while process.is_running:
        time.sleep(0.05)
    process.close()
    log = (tmp_path / "log.txt").read_bytes().decode()
    shown = log[log.index("['--hub") :]
    assert (
        shown
        == """['--hub_token', '***', '--model_init_kwargs', '{"token": "***"}']\n\r10 %\rit is ***"""
    )
    assert "tangerine-42" not in log and process.exit_code == 0
    assert capfd.readouterr().out == (shown if live else "")


def test_a_tracker_that_records_the_command_line_of_a_training_finds_no_secret(monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["train", "--config", "/nowhere.yaml", "--hub_token", "tangerine-42"]
    )
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(ValueError, match="nowhere"):
        train.main()
    assert sys.argv == ["train", "--config", "/nowhere.yaml", "--hub_token", "***"]


def test_files_hold_no_secret(tmp_path):
    recipe = {"hub_token": HUB, "env": {"WANDB_API_KEY": HEX, "NCCL_DEBUG": "INFO"}}
    settings = {
        "method": "miner",
        "recipe": recipe,
        "options": ["--hub_token", "tangerine", "--seed", "1"],
        "seed": 1,
    }
    write_compared(tmp_path, settings)
    written = read_compared(tmp_path)
    assert written == redact(settings) and written["recipe"]["env"]["NCCL_DEBUG"] == "INFO"
    write_settings(tmp_path, asked := {"model": "https://me:tangerine@host/m", "max_tokens": 8})
    write_settings(tmp_path, asked)  # the same again
    assert "tangerine" not in (tmp_path / "settings.json").read_text()


def test_a_configuration_gives_its_secrets_to_no_tracker_and_no_terminal(tmp_path):
    secrets = dict(hub_token=HUB, vllm_server_base_url="http://me:tangerine-41@host:8000")
    made = config(
        tmp_path, model_init_kwargs={"token": "tangerine-42", "revision": "main"}, **secrets
    )
    shown = f"{made.to_dict()} {made.to_json_string()} {made.to_sanitized_dict()} {made} {made!r}"
    assert HUB not in shown and "tangerine" not in shown and "main" in shown
    assert (
        made.model_init_kwargs == {"token": "tangerine-42", "revision": "main"}
        and made.hub_token == HUB
    )


def test_errors_show_no_secret(tmp_path, capsys):
    for words in (
        ["launch", str(tmp_path / HUB)],
        ["eval", "--model", "x", "--hub_token", "tangerine"],
    ):
        with contextlib.suppress(SystemExit):
            cli.main(words)
    shown = capsys.readouterr().err
    assert "error: " in shown and "Unknown option --hub_token." in shown
    assert HUB not in shown and "tangerine" not in shown
