"""What a user reads who has made a mistake: the fact with their own value, then the fix, then the
rule; with the real cause, in the syntax that they used. One line for each, and exit code 2."""

import json
from pathlib import Path

import pytest

from trl_miner import cli
from trl_miner import train as script
from trl_miner.common import errors
from trl_miner.launching.local import check_needs, launcher_arguments
from trl_miner.recipe.parsing import split_words


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A current folder with a user's files, where no Hub can be asked and `trl-miner train` trains
    in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("sums.csv").write_text("question,answer\n" + "".join(f"{n}+1,{n + 1}\n" for n in range(9)))
    Path("empty.csv").write_text("")
    Path("empty.yaml").write_text("")
    Path("bad.yaml").write_text("seed: [1")
    Path("used.yaml").write_text("output_dir: used\n")
    Path("folder").mkdir()

    def train(words):
        words = list(words)
        try:
            check_needs(launcher_arguments(words))
        except ValueError as error:
            return errors.tell(error, "train", words)
        return script._command(split_words(words)[1])

    monkeypatch.setattr("trl_miner.launching.supervise.run_training", train)


def told(command, capfd):
    """What one command says at its end, and that it says it in one line."""
    assert cli.main(command.split()) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if ": error: " in line]
    assert len(said) == 1, said
    return said[0].partition(": error: ")[2]


COMMANDS = {
    # a command, an option, a value
    "trian x": "No command named 'trian'. Did you mean 'train'?",
    "arithmetic/quick": "No command named 'arithmetic/quick'. Did you mean `trl-miner train",
    "eval --modle x": "Unknown option --modle. Did you mean '--model'?",
    "report a --ouput b": "Unknown option --ouput. Did you mean '--output'?",
    "report": "RUN is missing. See trl-miner report --help.",
    "inspect a b": "Unexpected argument 'b'. See trl-miner inspect --help.",
    "train --help settings": "No help on 'settings'. The topics are",
    "train arithmetic/quick --learning_rte 1": "Unknown option --learning_rte. Did you mean '--le",
    "train arithmetic/quick --max_steps x": "--max_steps 'x' is not a whole number.",
    "compare arithmetic/quick --seeds x": "--seeds: 'x' is neither a number of seeds nor a range.",
    "eval --model m --backend x": "--backend has no choice 'x': choose from 'auto', 'vllm', ",
    "eval --model m --samples 0": "--samples: 0 is below 1. Give at least 1.",
    # what is to be trained
    "train": "Nothing to train: there is no --model_name_or_path. Give a recipe (`trl-miner train ",
    "train arithmetic/quik": "No recipe or file named 'arithmetic/quik'. Did you mean 'arithmetic/q",
    "train empty.yaml": "empty.yaml has no settings: it is empty. Write a setting on each line",
    "train bad.yaml": "bad.yaml is not valid YAML: ",
    "recipes arithmtic": "No recipe or folder named 'arithmtic'. Did you mean 'arithmetic'?",
    "compare --seeds 2": "Nothing to compare. Give a recipe and methods (`trl-miner compare RECIPE",
    "compare arithmetic/quick": "--seeds is missing. Write --seeds 5 for the seeds 1 to 5.",
    # data
    "train nofile.csv": "File not found: nofile.csv (the current folder is ",
    "train sum.csv --model trl_miner/arithmetic": "Did you mean 'sums.csv'?",
    "train sums.csv": "No model to train on sums.csv. Add --model: a Hub id such as Qwen/Qwen3-0.6B,",
    "train empty.csv --model trl_miner/arithmetic": "empty.csv has no rows.",
    "train folder --model trl_miner/arithmetic": "The data set in folder could not be loaded: ",
    "train nofolder/ --model trl_miner/arithmetic": "Folder not found: nofolder/ (the current folde",
    "train owner/name --model trl_miner/arithmetic": "No data set named 'owner/name' here: there is "
    "no such folder, and the cache of the Hub does not have it. The Hub itself is not asked",
    "train sums.csv --model trl_miner/arithmetic --dataset_prompt_column qestion": "sums.csv has no "
    "column 'qestion'. Did you mean 'question'? Its columns: question, answer.",
    "data show nofile.csv": "File not found: nofile.csv",
    "doctor nofile.csv": "File not found: nofile.csv",
    # models
    "train sums.csv --model nothere": "No model named 'nothere' here: there is no such folder, and ",
    "train arithmetic/quick --model ./nothere": "Folder not found: ./nothere (the current folder is",
    "eval --model ./nothere --benchmarks arithmetic": "Folder not found: ./nothere",
    "eval --model nothere --benchmarks arithmetic": "No model named 'nothere' here: there is no such",
    "try nothere hello": "No model named 'nothere' here: there is no such folder",
    "data deepscaler --tokenizer nothere": "No tokenizer named 'nothere' here: there is no such",
    # settings
    "train arithmetic/quick --advantage_estimator minor": "No method named 'minor' for "
    "advantage_estimator. Did you mean 'miner'?",
    "train arithmetic/quick --all_right dapo": "No method named 'dapo' for all_right. Dynamic sampli"
    "ng (DAPO) is another kind of method.",
    "train arithmetic/quick --policy_loss clip_cof": "policy_loss is 'clip_cof'. Did you mean 'clip_"
    "cov'? It must be one of clip, clip_cov, kl_cov, bapo; the default is clip.",
    "train arithmetic/quick --dose_share 2": "dose_share is 2.0. It must be above 0 and below 1; a ",
    "train arithmetic/quick --num_generations 7": "generation_batch_size (256) must be divisible by "
    "num_generations (7). Set num_generations to 2, 4, 8, 16, 32, 64, or change the batch.",
    "train arithmetic/quick --dynamic_sampling true": "set `--advantage_estimator grpo` and `--all_r"
    "ight none`.",
    "train arithmetic/quick --reward_funcs math_rewards": "No reward function named 'math_rewards'. "
    "Did you mean 'math_reward'?",
    "train arithmetic/quick --held_out gsm9k": "No benchmark named 'gsm9k' for held_out. Did you mea"
    "n 'gsm8k'?",
    "train arithmetic/quick --accelerate_config zero9": "No configuration named 'zero9' for accelera"
    "te_config. Did you mean 'zero",
    "train arithmetic/quick --output_dir /proc/x": "/proc/x cannot be written",
    # benchmarks
    "eval --model trl_miner/arithmetic": "No benchmark is named. Add --benchmarks with some of aime2",
    "eval --model trl_miner/arithmetic --benchmarks gsm9k": "No benchmark named 'gsm9k'. Did you mea"
    "n 'gsm8k'?",
    "eval --model trl_miner/arithmetic --benchmarks gsm8k": "GSM8K (config main, split test) cannot "
    "be loaded. No data set named 'openai/gsm8k' here",
    "eval --model trl_miner/arithmetic --benchmarks mine=no.csv": "File not found: no.csv",
    "eval --model trl_miner/arithmetic --benchmarks mine=sums.csv --dataset_prompt_column qestion": ""
    "sums.csv has no column 'qestion'. Did you mean 'question'?",
    "eval --model trl_miner/arithmetic --benchmarks reasoning_gym/chain_sums": "reasoning-gym has no"
    " family 'chain_sums'. Did you mean 'chain_sum'?",
    "probe arithmetic/quick --target aime25s": "No benchmark named 'aime25s' for held_out. Did you m"
    "ean 'aime25'?",
    "eval --model trl_miner/arithmetic --benchmarks arithmetic:4 --base-url http://localhost:9": "No"
    " server answers at http://localhost:9/v1. Start it, or check --base-url.",
    # runs
    "report runs/none": "Run folder not found: runs/none (the current folder is ",
    "inspect folders": "Run folder not found: folders (the current folder is ",
    "report folder": "No run in folder: it has no trainer_state.json",
    "report sums.csv": "sums.csv is not a folder. Give the output_dir of a run.",
    "inspect folder": "No recorded tokens in folder: it has no credit/credit_STEP.parquet. Give the ",
    "watch runs/none": "Run folder not found: runs/none",
    "score none": "Folder not found: none",
    "score folder": "No evaluation results in folder. Give a folder that `trl-miner eval` wrote.",
    "verify none.csv": "File not found: none.csv",
    "push runs/none --repo-id a/b": "Run folder not found: runs/none",
    "push folder --repo-id a/b": "No model in folder: it has no model.safetensors.",
    "push folder --repo-id b": "--repo-id 'b' is not USER/NAME. Put your user name on the Hub in fro",
    "train arithmetic/quick --resume_from_checkpoint runs/none": "No checkpoint at runs/none: the fo"
    "lder does not exist.",
    # machines
    "launch Qwen3-4B-Base/miner --num_gpus 1": "This recipe needs at least 3 GPUs, 2 for the vLLM se"
    "rver (vllm_tensor_parallel_size) and 1 to train; there are 1. To preview the commands, add --dr",
    "doctor arithmetic/quick --machine bananas": "--machine 'bananas' is not COUNTxMEMORY. Write 8x8",
    "launch arithmetic/quick --machine 4x80GB": "--machine describes another machine: got 4x80GB. ",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_is_told_with_its_cause_and_the_way_out(command, capfd):
    assert COMMANDS[command] in told(command, capfd)


def test_advice_is_in_the_syntax_in_which_the_setting_was_given(capfd):
    Path("r.yaml").write_text(
        json.dumps({"model_name_or_path": "trl_miner/arithmetic", "dataset_name": "trl_miner/arithmetic",
                    "use_cpu": True, "bf16": False, "dynamic_sampling": True})
    )  # fmt: skip
    assert "set `advantage_estimator: grpo` and `all_right: none`." in told("train r.yaml", capfd)
    typed = told("train r.yaml --dynamic_sampling true", capfd)
    assert "set `--advantage_estimator grpo` and `--all_right none`." in typed


def test_a_disk_or_a_folder_that_cannot_be_used_is_named(tmp_path):
    full = OSError(28, "No space left on device", "runs/x/model.safetensors")
    assert errors.describe(full).startswith(
        "The disk has no room left for runs/x/model.safetensors."
    )
    closed = PermissionError(13, "Permission denied", "mine.csv")
    assert errors.describe(closed) == "mine.csv cannot be used: Permission denied."
