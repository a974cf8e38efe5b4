"""`trl-miner data`: from local files in the real format to a training set, with a model that filters."""

import dataclasses
import json
from pathlib import Path

import pytest
from datasets import load_dataset

from trl_miner import cli
from trl_miner.data.benchmarks import BENCHMARKS
from trl_miner.runs.prompt_ledger import Batch, header_of, key_text, line_of, prompt_key

FILES = Path(__file__).parent / "benchmarks"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def test_a_rewritten_folder_is_read_anew(base_model_folder, tmp_path, capsys):
    """`datasets` keeps a copy of what it has read; a card with `configs` would make it give the old one."""
    for count in (1, 2):
        rows = [{"problem": f"What is {n} + {count}?", "answer": "4", "solution": ""} for n in range(count)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        arguments = ["data", "deepscaler", "--tokenizer", str(base_model_folder), "--output", str(tmp_path / "out")]
        assert cli.main([*arguments, "--local", f"deepscaler={tmp_path / 'rows.jsonl'}", "--check-against"]) == 0
        assert len(load_dataset(str(tmp_path / "out"), split="train")) == count
        assert f"{count} problems in {tmp_path / 'out'}" in capsys.readouterr().out


def test_medical_drops_what_the_model_answers_and_goes_on_after_a_kill(
    base_model_folder, tmp_path, capsys, monkeypatch
):
    """The model knows no letters; its answers are replaced by right ones for the first two questions of MedMCQA."""
    from trl_miner.evaluation.backends import Completion, TransformersBackend

    asked = []

    def answer(self, draws, temperature, top_p):
        assert temperature == 0
        for index, draw in enumerate(draws):
            if len(asked) == 1:
                raise KeyboardInterrupt  # in the middle
            asked.append(draw.key[0])
            yield Completion(draw, f"The answer is {golds[draw.key[0]]}." if index == 0 else "?", 3, False)

    from trl_miner.data.medical import medmcqa_train_problems

    problems = medmcqa_train_problems(FILES / "medmcqa_train.jsonl")
    golds = {problem.id: problem.solution for problem in problems}
    monkeypatch.setattr(TransformersBackend, "sample", answer)
    arguments = ["data", "medical", "--tokenizer", str(base_model_folder), "--filter-model", str(base_model_folder)]
    arguments += ["--output", str(tmp_path / "out"), "--backend", "transformers", "--check-against", "--local"]
    arguments += [f"{name}={FILES / name}.jsonl" for name in ("medqa_train", "medmcqa_train")]
    assert cli.main(arguments) == 130
    first = list(asked)
    asked += ["go on"]
    assert cli.main(arguments) == 0
    assert first + asked[2:] == [problem.id for problem in problems]  # each was asked once
    rows = load_dataset(str(tmp_path / "out"), split="train")
    right = {first[0], asked[2]}  # the first of each run
    assert not {f"medmcqa_train/{i}" for i in right} & set(rows["id"]) and not right & set(rows["id"])
    assert len([source for source in rows["source"] if source == "medmcqa_train"]) == len(problems) - 2
    assert "dropped 2: answered right by the filtering model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deepscaler", "--check-against"], "--local deepscaler=PATH"),
        (["deepscaler", "--check-against", "aime"], "--check-against must name benchmarks, or be none: got 'aime'"),
        (["deepscaler", "--check-against", "aime24"], "--local aime24=PATH"),
        (["deepscaler", "--max-prompt-tokens", "0", "--check-against"], "prompt"),
    ],
)
def test_what_is_missing_is_named_with_its_flag(base_model_folder, tmp_path, arguments, message, capsys):
    if "--max-prompt-tokens" in arguments:
        arguments = [*arguments, "--local", f"deepscaler={FILES / 'deepscaler.jsonl'}"]
    command = ["data", *arguments, "--tokenizer", str(base_model_folder), "--output", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_contamination_is_removed_on_request(base_model_folder, tmp_path, monkeypatch):
    """Of its 3 clean rows DeepScaleR's file shares one with AIME 2025."""
    monkeypatch.setitem(BENCHMARKS, "aime25", dataclasses.replace(BENCHMARKS["aime25"], problems=3))
    for flag, left in (([], 3), (["--decontaminate"], 2)):
        arguments = [
            "data",
            "deepscaler",
            "--tokenizer",
            str(base_model_folder),
            "--output",
            str(tmp_path / str(left)),
            *flag,
        ]
        arguments += ["--check-against", "aime25", "--local", f"aime25={FILES / 'aime25'}"]
        assert cli.main([*arguments, f"deepscaler={FILES / 'deepscaler.jsonl'}"]) == 0
        assert len(load_dataset(str(tmp_path / str(left)), split="train")) == left


def test_the_medical_set_trains_with_choice_reward(base_model_folder, tmp_path):
    """From files to a training step: the options reach the reward, and what cannot be judged is logged."""
    from trl_miner.data.medical import build_medical, medmcqa_train_problems
    from trl_miner.data.training_set import Options
    from trl_miner.evaluation import evaluate as run
    from trl_miner.evaluation.evaluate import ModelOptions
    from trl_miner.recipe import make_parser
    from trl_miner.train import run as train

    source = FILES / "medmcqa_train.jsonl"
    run.sample_filter(ModelOptions(str(base_model_folder), backend="transformers"), tmp_path / "greedy", source, None)
    assert len(medmcqa_train_problems(source)) == 3
    build_medical(
        tmp_path / "medical",
        Options(str(base_model_folder), "plain"),
        samples_folder=tmp_path / "greedy",
        benchmarks={},
        medqa_source=FILES / "medqa_train.jsonl",
        medmcqa_source=source,
    )
    recipe = {
        "model_name_or_path": str(base_model_folder), "dataset_name": str(tmp_path / "medical"), "bf16": False,
        "output_dir": str(tmp_path / "run"), "use_cpu": True, "max_steps": 1, "per_device_train_batch_size": 4,
        "num_generations": 4, "max_completion_length": 4, "reward_funcs": ["choice_reward"], "logging_steps": 1,
        "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    trainer = train(*make_parser().parse_args_and_config(["--config", str(tmp_path / "recipe.yaml")]))
    log = next(log for log in trainer.state.log_history if "reward" in log)
    assert log["rewards/choice_reward/mean"] == 0.0 and log["choice_reward/not_judged"] == 0.0


@pytest.fixture
def asked(tmp_path):
    """A recipe whose prompts are built from questions, and a run whose ledger says how two of the four came out."""
    from trl_miner.data.own import file_arguments

    rows = [{"question": f"What is {n} + 1?", "solution": str(n + 1), "level": n} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {"dataset_name": str(tmp_path / "rows.jsonl"), "dataset_prompt_column": "question"}
    recipe |= {"prompt_template": "Q: {question}\nA:", "output_dir": str(tmp_path / "trained")}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    data = load_dataset(**file_arguments(recipe["dataset_name"]))["train"]
    prompts = data.map(lambda row: {"prompt": f"Q: {row['question']}\nA:"})
    new = [(key_text(prompt_key(row)), row["prompt"]) for row in prompts.select([2, 0])]
    batch = Batch(1, 4, prompts=[0, 1], correct=[0, 3], scored=[4, 4], reward=[0, 0], spread=[0, 0], new=new)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "prompt_ledger.jsonl").write_bytes(line_of(header_of(prompts, 1.0)) + batch.line())
    return tmp_path


def select(folder, *more):
    words = ["data", "select", "--config", str(folder / "recipe.yaml"), "--ledger", str(folder / "run"), "--keep"]
    return cli.main([*words, *more, "--output", str(folder / "out")])


def test_the_prompts_that_a_run_left_unsolved_or_mixed_are_a_training_set(asked, capsys):
    from trl_miner.recipe import make_parser
    from trl_miner.train import load_data

    assert select(asked, "unsolved", "mixed") == 0
    said = capsys.readouterr().out
    assert f"2 of 4 rows in {asked / 'out'}. All: 0 solved, 1 mixed, 1 unsolved, 2 unseen." in said
    assert f"--dataset_name {asked / 'out'}" in said
    words = ["--config", str(asked / "recipe.yaml"), "--dataset_name", str(asked / "out")]
    words += ["--use_cpu", "true", "--bf16", "false"]
    script, _, model, mixture = make_parser().parse_args_and_config(words)
    rows = load_data(script, mixture, model)["train"]  # with the recipe as it is: the rows have their columns
    assert rows["prompt"][:] == ["Q: What is 0 + 1?\nA:", "Q: What is 2 + 1?\nA:"] and rows["level"][:] == [0, 2]


@pytest.mark.parametrize(
    ("change", "keep", "message"),
    [
        (lambda folder: (folder / "rows.jsonl").write_text('{"question": "?", "solution": "1"}\n'), "mixed",
         "it is of a training with rows 4, "),
        (lambda folder: (folder / "run" / "prompt_ledger.jsonl").unlink(), "mixed", "has none"),
        (lambda folder: (folder / "run" / "prompt_ledger.jsonl").write_text("{}\n"), "mixed", "damaged"),
        (lambda folder: None, "solved", "got solved, and there are 0 solved, 1 mixed, 1 unsolved, 2 unseen"),
        (lambda folder: (folder / "out").mkdir(), "mixed", "--output must be a new folder"),
    ],
)  # fmt: skip
def test_a_ledger_that_does_not_fit_is_an_error_that_says_why(asked, change, keep, message, capsys):
    change(asked)
    assert select(asked, keep) == 2
    assert message in capsys.readouterr().err
