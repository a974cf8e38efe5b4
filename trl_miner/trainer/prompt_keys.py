"""Which prompt a row of a data set has: a key and a short text, the same wherever the row comes
from."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

IMAGES = ("image", "images")  # columns of TRL's
_LONGEST_TEXT = 200


def prompt_key(row: Mapping[str, Any]) -> int:
    """Return the key of a row's prompt, 63 bits of a hash: of `prompt` as JSON, and of the images.
    A row without `prompt`, which an environment completes, counts as a whole."""
    content = (
        {name: row[name] for name in ("prompt", *IMAGES) if name in row} if "prompt" in row else row
    )
    text = (
        row["prompt"]
        if set(content) == {"prompt"} and isinstance(row["prompt"], str)
        else row_text(content)
    )
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def key_text(key: int) -> str:
    """Return a key as files have it."""
    return f"{key:016x}"


def row_text(row: Mapping[str, Any]) -> str:
    """Return a row as JSON, the same wherever it was read from."""
    return json.dumps(_without_nulls(row), sort_keys=True, ensure_ascii=False, default=_plain)


def _without_nulls(value: Any) -> Any:
    """Return a value without the null fields of its objects: Parquet adds them where some rows have
    them, JSON not."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> str:
    """Return what stands for a value that JSON does not have: of an image or an array, a hash of
    its content."""
    content = (
        value.tobytes()
        if hasattr(value, "tobytes")
        else value
        if isinstance(value, bytes)
        else None
    )
    return str(value) if content is None else hashlib.blake2b(content, digest_size=8).hexdigest()


def prompt_text(row: Mapping[str, Any]) -> str:
    """Return a row's prompt, or the last message that is the user's, on one line and shortened in
    its middle."""
    prompt = row.get("prompt", "")
    if isinstance(prompt, list) and prompt:
        questions = [message for message in prompt if message.get("role") == "user"] or prompt
        prompt = questions[-1].get("content") or ""
    if isinstance(prompt, list):
        prompt = " ".join(str(part.get("text") or "") for part in prompt)
    text = " ".join(str(prompt).split())
    half = _LONGEST_TEXT // 2 - 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]} … {text[-half:]}"
