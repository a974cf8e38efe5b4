"""Build the training sets of the paper (arXiv 2601.04731), each a folder with train.parquet.

    python recipes/training_sets.py deepscaler --tokenizer Qwen/Qwen3-4B-Base     # data/deepscaler
    python recipes/training_sets.py medmcqa --tokenizer meta-llama/Llama-3.1-8B-Instruct
    trl-miner eval --model meta-llama/Llama-3.1-8B-Instruct --benchmarks filter=data/medmcqa \\
      --samples 1 --temperature 0 --output data/answers
    python recipes/training_sets.py medmcqa --tokenizer meta-llama/Llama-3.1-8B-Instruct \\
      --answers data/answers/filter.jsonl                                         # data/medical

The medical set is MedQA, and of MedMCQA the questions that a model does not answer: the paper lets
Llama-3.1-8B-Instruct answer all of them by greedy decoding, and drops those it gets right.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trl_miner.data.benchmarks import BENCHMARKS
from trl_miner.data.columns import find_columns
from trl_miner.data.problems import Problem, read_rows
from trl_miner.data.prompts import PromptForm, build_prompt, guess_style, token_ids
from trl_miner.data.settings import DataArguments
from trl_miner.evaluation.scores import read_graded
from trl_miner.grading import describe_reference

SETS = {  # the name of a data set on the Hub
    "deepscaler": "agentica-org/DeepScaleR-Preview-Dataset",
    **{name: BENCHMARKS[name].hub for name in ("medqa", "medmcqa")},
}


def read(name: str, tokenizer: Any, dropped: Counter) -> Iterator[Problem]:
    """Yield the training problems of a set, each question once, whose prompts, as training sees
    them, have at most 1,000 tokens; what is left out is counted."""
    from datasets import load_dataset

    rows, args = load_dataset(SETS[name], split="train"), DataArguments(first_option=0)
    kind, problems = read_rows(rows, find_columns(rows, args), args, name, needs_answers=False)
    form, seen = PromptForm(guess_style(tokenizer.name_or_path, tokenizer)), set()
    for one in problems:
        prompt = build_prompt(kind, one.question, one.options, form=form)
        # with the options: "Which of the following is true?" is another question each time
        if not one.solution:
            dropped["no question or no reference answer"] += 1
        elif str(prompt) in seen:
            dropped["repeated question"] += 1
        elif describe_reference(one.solution, one.options or None).fault:
            dropped["reference answer that the grader cannot read"] += 1
        elif len(token_ids(prompt, tokenizer)) > 1000:
            dropped["prompt over 1,000 tokens"] += 1
        else:
            yield one
        seen.add(str(prompt))


def main() -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("set", choices=("deepscaler", "medmcqa"))
    parser.add_argument("--tokenizer", required=True, help="of the model that is trained")
    parser.add_argument("--answers", type=Path, help="to MedMCQA, by trl-miner eval")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    easy, names = [], [args.set]
    if args.answers:
        graded = read_graded(args.answers)[1]  # which must have an answer to each question
        easy, names = {*graded["problem"][graded["is_correct"]]}, ["medqa", "medmcqa"]
    rows, dropped = [], Counter()
    for one in (one for name in names for one in read(name, tokenizer, dropped)):
        if one.id in easy:
            dropped["answered correctly by the filtering model"] += 1
        else:
            options = {"options": [*one.options]} if one.options else {}
            rows.append(
                {"id": one.id, "question": one.question, "solution": one.solution, **options}
            )
    folder = Path("data", "medical" if args.answers else args.set)
    folder.mkdir(parents=True, exist_ok=True)
    Dataset.from_list(rows).to_parquet(folder / "train.parquet")
    print(f"{len(rows)} rows. Left out: {dropped}.")


if __name__ == "__main__":
    main()
