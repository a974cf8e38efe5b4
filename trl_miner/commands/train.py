"""Train a recipe, or your own data (a file, a folder, or a data set on the Hub):

  trl-miner train arithmetic/quick
  trl-miner train problems.csv --model Qwen/Qwen3-0.6B

A setting overrides the recipe's of the same name. These are the most important ones; behind each
stands the default for a setting that the recipe leaves out. The guide's page on settings has the
others, and those of TRL and transformers can be set, too.

The method and the scores:
  --advantage_estimator NAME       Method that turns rewards into advantages (default: miner).
  --all_right NAME                 Method for all-right prompts (default: what the estimator does).
  --held_out N                     Problems, or a benchmark, to score before and after (default: 0).
  --log_token_credit N             Record tokens for trl-miner inspect every N steps (default: 0).

The training, by TRL:
  --model NAME                     Model: a Hub id or a folder. Short for --model_name_or_path.
  --dataset_name NAME              Data: a Hub id, a file or a folder.
  --output_dir FOLDER              Folder of the run (default: runs/ and the recipe's name).
  --learning_rate X                Peak learning rate (default: 1e-06).
  --max_steps N                    Optimizer steps (default: -1, which trains whole epochs).
  --num_generations N              Completions of each prompt (default: 8).
  --per_device_train_batch_size N  Completions in a micro-batch (default: 8).
  --max_completion_length N        Tokens of a completion at most (default: 512).
  --seed N                         Seed of the run (default: 42).
  --resume_from_checkpoint latest  Resume the run in output_dir from its newest checkpoint.

It trains in this process, on the CPU or one GPU; trl-miner launch uses several GPUs and vLLM.
"""

import argparse

NAME = "train"
HELP = "Train a recipe, or your own data."
TAKES_SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trl-miner train RECIPE|DATA [--SETTING VALUE ...]"


def run(args: argparse.Namespace, words: list[str]) -> int:
    from ..train import main

    return main(words)


def methods() -> str:
    """Return the advantage estimators and policy losses, a line each, with their knobs."""
    from ..methods import ESTIMATORS, POLICY_LOSSES

    lines = ["Knobs are set with advantage_estimator_kwargs or policy_loss_kwargs."]
    for setting, known in (("advantage_estimator", ESTIMATORS), ("policy_loss", POLICY_LOSSES)):
        lines += ["", f"--{setting}"]
        for name, method in known.items():
            paper = f", arXiv {method.arxiv}" if method.arxiv else ""
            knobs = [*(f"--{field}" for field in method.settings.values()), *method.knobs]
            lines.append(f"  {name:<22}{method.label}{paper}{': ' * bool(knobs)}{', '.join(knobs)}")
    return "\n".join(lines)


TOPICS = {"methods": methods}
