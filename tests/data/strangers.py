"""What writes the files of strangers, and the tokenizer that reads their prompts."""

import functools
import json
from pathlib import Path

import pandas
from transformers import AutoTokenizer

from trl_miner.data import arithmetic
from trl_miner.data.base_model import find_model
from trl_miner.data.own import load_training_data
from trl_miner.data.preview import show_preview
from trl_miner.data.settings import DataArguments
from trl_miner.rewards import choice_reward, math_reward

ROWS = 30


@functools.cache
def tokenizer():
    """The embedded world's, with a chat template."""
    built = AutoTokenizer.from_pretrained(find_model(arithmetic.MODEL))
    built.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return built


def load(name, held_out=0, model="some/model-base", **settings):
    """Return what a run on a file would train on, after its preview."""
    args = DataArguments(dataset_name=str(name), **settings)
    data = load_training_data(args, model, tokenizer(), held_out)
    reward = functools.partial(
        math_reward, accept_unboxed=args.math_accept_unboxed, decimal_comma=args.decimal_comma
    )
    functools.update_wrapper(reward, math_reward)
    rewards = [choice_reward if data.kind == "choice" else reward]
    show_preview(data, tokenizer(), rewards, args)
    return data


def lines(path, rows):
    """Write a row of JSON a line."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(path).write_text(text, encoding="utf-8")
    return path


def table(path, mark, header, row, encoding="utf-8"):
    """Write a header and 30 rows with a sign between the cells."""
    cells = [header, *(row(n) for n in range(ROWS))]
    Path(path).write_bytes("\n".join(mark.join(line) for line in cells).encode(encoding))
    return path


def book(path, **sheets):
    """Write a spreadsheet."""
    with pandas.ExcelWriter(path) as writer:
        for name, columns in sheets.items():
            pandas.DataFrame(columns).to_excel(writer, sheet_name=name, index=False)
    return path


def user(text):
    """Return a message."""
    return {"role": "user", "content": text}


def four(n):
    """Return four options."""
    return [str(n), str(n + 1), str(n + 2), str(n + 3)]


def text_of(prompt):
    """Return the text of a prompt, also of messages."""
    return prompt if isinstance(prompt, str) else "\n\n".join(each["content"] for each in prompt)
