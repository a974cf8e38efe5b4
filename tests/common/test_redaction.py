"""Secrets: found by names that are split at capitals, hidden wherever their values stand."""

import pytest

from trl_miner.common.redaction import hide, hide_settings, is_secret

SECRETS = """
    hub_token HF_TOKEN WANDB_API_KEY OPENAI_API_KEY clientSecret userPassword password DB_PASSWD
    push_to_hub_token AWS_SECRET_ACCESS_KEY token api-key SLACK_BOT_TOKEN private_key
    """.split()
HARMLESS = """
    eos_token pad_token image_token max_tokens tokens tokenizer keyboard primary_key seed
    max_completion_length secretary token_budget passwords_file key
    """.split()


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_tells_a_secret(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_name_tells_none(name):
    assert not is_secret(name)


def test_a_value_of_the_environment_is_hidden_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123abcdef")
    monkeypatch.setenv("MY_TOKEN", "0123abcdef-and-more")  # the longer one first
    monkeypatch.setenv("CI_TOKEN", "true")  # too short to be one: every "true" would go
    text = "key 0123abcdef, https://me:0123abcdef-and-more@hub, use_cpu true"
    assert hide(text) == "key ***, https://me:***@hub, use_cpu true"


def test_settings_keep_everything_but_their_secrets(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "in-a-list-too")
    given = {
        "hub_token": "abc",
        "wandb_api_key": None,  # there is none
        "model_init_kwargs": {"token": "abc", "dtype": "float32", "deep": [{"password": 1}]},
        "tags": ["in-a-list-too", 3],
        "eos_token": "</s>",
    }
    assert hide_settings(given) == {
        "hub_token": "***",
        "wandb_api_key": None,
        "model_init_kwargs": {"token": "***", "dtype": "float32", "deep": [{"password": "***"}]},
        "tags": ["***", 3],
        "eos_token": "</s>",
    }
