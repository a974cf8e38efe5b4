"""A calculator for a model to call, and a small model that calls it half of the time: `python
calculator.py`.

The model learns from solutions of sums of which every second one calls the calculator, and the
others state the answer at once, which a model of this size cannot work out. What is left for RL is
to call it always.
"""

import ast
import operator
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

from trl_miner.data.prompts import PromptForm
from trl_miner.data.reasoning_gym import load_dataset, read_parts

FOLDER, STEPS, ROWS, BATCH = "model", 700, 12_000, 64
TASK = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}  # as in the recipe
QUESTION = "State the final answer to the following arithmetic problem: "  # reasoning-gym's
CALL, END_CALL = '<call>{"name": "calculate", "arguments": {"expression": "', '"}}</call>'
PHRASES = (
    QUESTION,
    CALL,
    END_CALL,
    " + ",
    " - ",
    " =",
    "<answer>",
    "</answer>",
    "<user>",
    "<tool>",
    "<model>",
    "<end>",
)
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ {"user": "<user>", "tool": "<tool>", "assistant": "<model>"}[message.role] }}{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</call>
{%- endfor -%}
<end>
{%- endfor -%}
{%- if add_generation_prompt -%}<model>{%- endif -%}"""
CALLS = {"open": "<call>", "close": "</call>", "repeats": True, "content": "json"}
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<model>",
    "fields": {
        "tool_calls": {**CALLS, "transform": {"type": "function", "function": "{content}"}},
        "content": {"close_pattern": "<end>", "content": "text"},
    },
}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
}


def calculate(expression: str) -> int:
    """Work out an expression of whole numbers with +, -, * and brackets.

    Args:
        expression: The expression, such as 12 + 30.
    """
    if len(expression) > 100:
        raise ValueError(f"expression must have at most 100 characters: got {len(expression)}")
    return work_out(ast.parse(expression, mode="eval").body)


def work_out(node: ast.expr) -> int:
    """Return the value of a part of an expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](work_out(node.left), work_out(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](work_out(node.operand))
    raise ValueError("expression must hold whole numbers, +, -, * and brackets only")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each phrase, and one for each other character."""
    tokens = list(
        dict.fromkeys(["<pad>", "<unknown>", *PHRASES, *map(chr, (9, 10, 13, *range(32, 127)))])
    )
    tokenizer = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unknown>")
    )
    longest_first = sorted(PHRASES, key=len, reverse=True)
    pattern = "|".join(
        [*(phrase.replace("+", r"\+").replace("{", r"\{") for phrase in longest_first), r"[\s\S]"]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unknown>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        response_template=RESPONSE_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def solutions(size: int) -> list[dict[str, str]]:
    """Return whole conversations: every second one calls the calculator."""
    rows = load_dataset(
        read_parts("reasoning_gym/chain_sum", TASK, None),
        "train",
        size,
        1,
        PromptForm("chat", None, "{question}"),
    )
    texts = []
    for number, row in enumerate(rows):
        question = row["prompt"][-1]["content"]
        expression = question.removeprefix(QUESTION).removesuffix(" =")
        result = calculate(expression)
        call = f"{CALL}{expression}{END_CALL}<end><tool>{result}<end><model>" if number % 2 else ""
        texts.append({"text": f"<user>{question}<end><model>{call}<answer>{result}</answer><end>"})
    random.Random(0).shuffle(texts)
    return texts


def make_model(folder: str, steps: int = STEPS, size: int = ROWS) -> None:
    """Train a model of 0.1 million parameters on that many solutions, and save it with its
    tokenizer."""
    set_seed(0)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=16,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            initializer_range=0.08,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    with tempfile.TemporaryDirectory() as scratch:
        args = SFTConfig(
            output_dir=scratch,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=4e-3,
            lr_scheduler_type="cosine",
            warmup_steps=0.05,
            adam_beta2=0.98,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
        )
        rows = Dataset.from_list(solutions(size))
        SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make_model(FOLDER)
