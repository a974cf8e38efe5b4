"""The text of a recipe that this package makes: each setting on a line, those that matter with a
comment, and a header by which an edited one is known."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

HEADER = """\
# Made from {name} by trl-miner train; what it holds was guessed from its columns and first rows.
# Unedited ({digest}): the same command writes it anew. Once you edit it, it stays as it is.
"""
_DIGEST = re.compile(r"^# Unedited \((\w+)\)")
COMMENTS = {
    "held_out": "problems that are not trained on, scored before and after training",
    "score_samples": "answers to each of them",
    "num_generations": "answers to a prompt, which are compared with each other",
    "per_device_train_batch_size": "answers in a step: a multiple of num_generations",
    "prompt_template": "the words around a question",
    "max_completion_length": "tokens of an answer; a longer one is cut off, and seldom right",
    "use_vllm": "true and vllm_mode: colocate sample faster, on a GPU and with trl_miner[vllm]",
    "use_cpu": "made without a GPU; with one, leave this and the next two lines out",
}
# Lines for what is not set, to be uncommented.
_UNSET = {"prompt_template": '# prompt_template: "{question}"  # the words around a question'}


def recipe_text(name: str, recipe: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return the text of a recipe made from a data set, with comments by setting beside the usual
    ones."""
    lines = [_line(key, value, (COMMENTS | {**comments}).get(key)) for key, value in recipe.items()]
    lines += [line for key, line in _UNSET.items() if key not in recipe]
    body = "\n".join(lines) + "\n"
    return HEADER.format(name=name, digest=_digest(body)) + body


def is_unedited(path: Path) -> bool:
    """Return whether a file is a recipe as `recipe_text` made it."""
    _, line, body = [*path.read_text(encoding="utf-8", errors="replace").split("\n", 2), "", ""][:3]
    match = _DIGEST.match(line)
    return match is not None and match[1] == _digest(body)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def _line(key: str, value: Any, comment: str | None) -> str:
    if isinstance(value, str) and "\n" in value:
        text = f"{key}: {json.dumps(value, ensure_ascii=False)}"  # JSON is YAML
    elif isinstance(value, list | dict):
        text = f"{key}: {_dump(value, default_flow_style=True)}"
    else:
        text = _dump({key: value})
    return text if comment is None else f"{text:<42} # {comment}"


def _dump(value: Any, **options: Any) -> str:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000, **options)
    return str(text).rstrip("\n")
