"""A line of JSON as rollouts, in the forms that others write.

- verl with `trainer.rollout_data_dir` writes `STEP.jsonl`, a line for each rollout: input, output,
  gts, score, step, and what else the reward function returns (acc, pred, ...).
- prime-rl writes `rollouts/step_STEP/train/all/traces.jsonl`, a line for each episode: group, task
  and traces, each with its messages as nodes, named rewards, and the sampled tokens with their
  log-probs. Until July 2026 a line was one trace; until June it had example_id, prompt, completion,
  answer, reward, metrics and is_truncated.
- A line may also be one prompt: prompt, rewards (a list, or a list for each function), and perhaps
  completions, advantages and step.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..runs.records import number

REWARD = "reward:"  # begins the columns of reward functions
NAMES = {  # of the fields of a line, the surest first
    "prompt": ("prompt", "input", "question", "problem"),
    "completion": ("completion", "output", "response", "completions"),
    "gold": ("gts", "gold", "solution", "ground_truth", "answer"),
    "reward": ("reward", "score", "rewards"),
    "group": ("group", "uid", "group_id", "prompt_id", "example_id"),
    "truncated": ("is_truncated", "truncated"),
    "length": ("length", "num_tokens", "completion_tokens"),
    "advantage": ("advantage", "advantages"),
}
_NUMBERS = ("advantage", "length", "truncated")
_CUT = "max_turns max_input_tokens max_output_tokens max_total_tokens context_length".split()
Row = dict[str, Any]


def rows_of(record: Mapping[str, Any], step: int, place: str) -> list[Row]:
    """Return the rollouts of a line, with the columns of `RolloutFiles.frames`.

    Args:
        record: The line.
        step: Of its file, where the line says none.
        place: The name of the line.

    Raises:
        ValueError, TypeError, AttributeError, KeyError: It holds none.
    """
    if "traces" in record or "nodes" in record:
        return _of_episode(record, step)
    fields = {name: _first(record, keys) for name, keys in NAMES.items()}
    if fields["reward"] is None:
        raise ValueError("no reward")
    are_several = isinstance(fields["reward"], list | Mapping)
    # a line of several rollouts is a group; single ones are put together by task, number and text
    prompt, step = message_text(fields["prompt"]), int(number(record.get("step")) or step)
    group = place if are_several else f"{step} {record.get('task')} {fields['group']} {prompt}"
    common = _row(step, group, fields["prompt"], fields["gold"])
    if are_several:
        return _of_lists(fields, common)
    numbers = {name: _number(fields[name]) for name in ("reward", *_NUMBERS)}
    others = record.get("metrics")
    if not isinstance(others, Mapping):  # what the reward function returned besides
        named = {key for keys in NAMES.values() for key in keys} | {"step"}
        others = {key: value for key, value in record.items() if key not in named}
    rewards = {"reward": numbers["reward"]} | {
        key: float(value) for key, value in others.items() if isinstance(value, int | float)
    }
    completion = message_text(fields["completion"])
    return [{**common, "completion": completion, **numbers, **_named(rewards)}]


def _row(step: int, group: str, prompt: Any, gold: Any) -> Row:
    digest = hashlib.blake2b(group.encode("utf-8", "replace"), digest_size=8).digest()
    return {
        "step": step, "group": int.from_bytes(digest, "little") >> 1,
        "prompt": message_text(prompt), "asked": prompt, "gold": gold_text(gold),
        "completion": "", "tokens": None, **dict.fromkeys(_NUMBERS, math.nan),
    }  # fmt: skip


def _of_lists(fields: Mapping[str, Any], common: Row) -> list[Row]:
    """Return the rollouts of a prompt from lists of their rewards, completions and numbers."""
    rewards = fields["reward"]
    functions = _named(rewards if isinstance(rewards, Mapping) else {"reward": rewards})
    names = [name for name in ("completion", *_NUMBERS) if isinstance(fields[name], list)]
    lists = functions | {name: fields[name] for name in names}
    rows = []
    for values in zip(*lists.values(), strict=True):
        row: Row = {
            name: message_text(value) if name == "completion" else _number(value)
            for name, value in zip(lists, values, strict=True)
        }
        rows.append({**common, **row, "reward": math.fsum(row[name] for name in functions)})
    return rows


def _of_episode(record: Mapping[str, Any], step: int) -> list[Row]:
    """Return the rollouts of an episode of prime-rl that were whole and train the policy."""
    group = (record.get("group") or {}).get("id") or record.get("group_id") or record["id"]
    rows = []
    for trace in record.get("traces", [record]):
        agent = trace.get("agent") or {}
        is_whole = trace.get("ok", not trace.get("errors")) and trace["nodes"]
        if is_whole and agent.get("trainable", True):
            rows.append(_of_trace(trace, step, f"{group} {agent.get('name')}"))
    if not rows:
        raise ValueError("no whole trace")
    return rows


def _of_trace(trace: Mapping[str, Any], step: int, group: str) -> Row:
    """Return the last branch of a trace: the messages before the first sampled one are its prompt."""
    path = _last_branch(trace["nodes"])
    first = next(place for place, node in enumerate(path) if node.get("sampled"))
    task = trace.get("task") or {}
    # in July 2026 a reward was its weighted number
    rewards = {
        name: reward if isinstance(reward, Mapping) else {"score": reward}
        for name, reward in trace["rewards"].items()
        if reward is not None
    }
    calls = [call for call in trace.get("calls") or () if not call.get("error")]
    is_long = bool(calls) and calls[-1].get("finish_reason") == "length"
    given = [value for node in path for value in node.get("advantages") or ()]
    tokens = _sampled_tokens(path)
    total = math.fsum(reward["score"] * reward.get("weight", 1.0) for reward in rewards.values())
    gold = _first(task.get("data") or task, NAMES["gold"])
    return _row(step, group, [node["message"] for node in path[:first]], gold) | {
        "completion": message_text([node["message"] for node in path[first:]]),
        "reward": total if rewards else math.nan,
        "advantage": float(np.mean([value for value in given if value] or [0.0]))
        if given
        else math.nan,
        "length": float(tokens["is_sampled"].sum()) if tokens else math.nan,
        "truncated": float(is_long or trace.get("stop_condition") in _CUT),
        "tokens": tokens,
        **_named({name: float(reward["score"]) for name, reward in rewards.items()}),
    }


def _last_branch(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    path = [nodes[-1]]
    while (parent := path[-1].get("parent")) is not None:
        path.append(nodes[parent])
    return path[::-1]


def _sampled_tokens(path: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray] | None:
    """Return the tokens behind the prompt, whether each was sampled, and their log-probs, NaN where
    it was not; None: they were not recorded."""
    is_sampled = np.array([flag for node in path for flag in node.get("mask") or ()], dtype=bool)
    ids = np.array(
        [token for node in path for token in node.get("token_ids") or ()], dtype=np.int32
    )
    logps = np.full(len(ids), np.nan, dtype=np.float32)
    given = [logp for node in path for logp in node.get("logprobs") or ()]
    if not is_sampled.any() or len(ids) != len(is_sampled):
        return None
    if len(given) == is_sampled.sum():
        logps[is_sampled] = given
    start = int(is_sampled.argmax())
    return {"prompt": ids[:start], "ids": ids[start:], "is_sampled": is_sampled[start:],
            "logps": logps[start:]}  # fmt: skip


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def _named(rewards: Mapping[str, Any]) -> dict[str, Any]:
    return {REWARD + name: value for name, value in rewards.items()}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def gold_text(gold: Any) -> str | None:
    """Return a gold as text, a list of one as what it holds, other structures as JSON; None: there
    is none."""
    if isinstance(gold, list | tuple | np.ndarray) and len(gold) == 1:
        return gold_text(gold[0])
    return gold if gold is None or isinstance(gold, str) else json.dumps(gold, default=str)


def message_text(value: Any) -> str:
    """Return a prompt or a completion as text: the one message of a chat as it is, several with
    their roles, of parts the text."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list | tuple | np.ndarray):
        value = [value]
    texts = [_content(message) for message in value]
    if len(texts) == 1:
        return texts[0]
    roles = [message.get("role", "") if isinstance(message, Mapping) else "" for message in value]
    return "\n\n".join(f"{role}: {text}" for role, text in zip(roles, texts, strict=True))


def _content(message: Any) -> str:
    """Return the text of a message: its reasoning before it, its calls of tools behind it."""
    if not isinstance(message, Mapping):
        return str(message)
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text") or "") for part in content)
    if reasoning := message.get("reasoning_content"):
        content = f"{reasoning}\n\n{content}"
    calls = message.get("tool_calls")
    return content + "".join(
        json.dumps(call, default=str) for call in ([] if calls is None else calls)
    )
