"""A model that can be told of tools, tools that behave and that do not, and rollouts that call
them."""

import json
import sys
import time
from pathlib import Path

from harness import by_thirds
from transformers import AutoModelForCausalLM, AutoTokenizer

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.tool_calls -%}
A:{% for call in message.tool_calls %}<<\
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}>>{% endfor %}<eos>
{%- else -%}
{{ {"user": "U", "tool": "T", "assistant": "A"}[message.role] }}:{{ message.content }}<eos>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}A:{%- endif -%}"""
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "A:",
    "fields": {
        "tool_calls": {
            **{"open": "<<", "close": ">>", "repeats": True, "content": "json"},
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": "<eos>", "content": "text"},
    },
}


def teach_tools(policy, folder):
    """Save a model with a chat template that shows tools, and return the folder."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    tokenizer.save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(policy).save_pretrained(folder)
    return str(folder)


def write_questions(path, count=24):
    """Write a data set of messages, whose prompts are of all kinds under `reward`."""
    rows = [
        {"prompt": [{"role": "user", "content": f"{a} + 1"}], "solution": str(a + 1)}
        for a in range(count)
    ]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def reward(prompts, completions, **kwargs):
    return by_thirds(
        [p[0]["content"] for p in prompts], [float(place % 2) for place in range(len(prompts))]
    )


def add(a: int, b: int):
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def hang(a: int):
    """Never return, and survive what ends most functions.

    Args:
        a: Not used.
    """
    while True:
        try:
            time.sleep(60)
        except Exception:
            pass


def leave(a: int):
    """End the process.

    Args:
        a: Not used.
    """
    sys.exit(3)


class Unspeakable:
    def __str__(self):
        raise OverflowError("too long to say")


def puzzle(a: int):
    """Return what has no text.

    Args:
        a: Not used.
    """
    return Unspeakable()


class Counter:
    """An environment that counts, and owns its reward."""

    def reset(self, **row):
        self.total = 0
        return f" ({row['solution']})"

    def count(self, by: int):
        """Count on.

        Args:
            by: How far.
        """
        self.total += by
        return self.total

    def get_reward(self):
        return float(self.total > 4)


# What the rollouts of a group call, in turn.
CALLS = [
    ("add", {"a": 19, "b": 23}),
    ("hang", {"a": 1}),
    ("leave", {"a": 1}),
    ("puzzle", {"a": 1}),
    None,
]
COUNTS = [("count", {"by": 3}), ("count", {"by": 5}), None]


def call(name, arguments):
    return f"<<{json.dumps({'name': name, 'arguments': arguments})}>><eos>"


def rollouts(prompts, trainer):
    """Call a tool each, as a `rollout_func`; the model itself goes on after that."""
    tokenizer = trainer.processing_class
    calls = COUNTS if trainer.environment_factories else CALLS
    texts = [
        call(*calls[i % len(calls)]) if calls[i % len(calls)] else "1<eos>"
        for i in range(len(prompts))
    ]
    prompt_ids = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        for prompt in prompts
    ]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": tokenizer(texts)["input_ids"],
        "logprobs": None,
    }
