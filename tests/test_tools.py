"""Tools and environments from a recipe: real calls in a real training, calls that fail, and credit
for neither."""

import asyncio
import contextlib
import importlib
import json
import re
import signal
import time
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace

import agents
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from harness import OF_FORKS, Recording, call_on_ranks, config, leave, metrics_of, problems, weights
from trl import GRPOTrainer

from trl_miner import cli, tools, train
from trl_miner.data import reasoning_gym
from trl_miner.doctor import examination
from trl_miner.doctor.context import FAILED, this_machine
from trl_miner.methods.distributed import current_world
from trl_miner.recipe.parsing import make_parser
from trl_miner.training import RunTrainer

CALCULATOR = Path(__file__).parent.parent / "recipes" / "calculator"


@pytest.fixture(scope="module")
def recipe(policy, tmp_path_factory):
    """Writes a recipe with changes, in a folder of its own, and returns its path."""
    folder = tmp_path_factory.mktemp("tools")
    model = agents.teach_tools(policy, folder / "model")
    data = agents.write_questions(folder / "questions.jsonl")
    settings = dict(
        model_name_or_path=model, dataset_name=data, dataset_test_split="train", prompt_style="chat"
    )
    settings |= dict(
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no"
    )
    settings |= dict(
        per_device_train_batch_size=20, num_generations=5, max_completion_length=130, max_steps=1
    )
    settings |= dict(logging_steps=1, disable_tqdm=True, quiet=True, shuffle_dataset=False)

    def write(**changes):
        settings["output_dir"] = str(folder / f"run{len(list(folder.iterdir()))}")
        path = folder / "recipe.yaml"
        path.write_text(
            yaml.safe_dump({k: v for k, v in (settings | changes).items() if v is not None})
        )
        return path

    return write


TOOLS = ["agents.add", "agents.hang", "agents.leave", "agents.puzzle"]


def test_a_training_calls_tools_survives_those_that_fail_and_pays_none_of_their_results(
    recipe, monkeypatch
):
    monkeypatch.setattr(train, "RunTrainer", Recording)
    changes = dict(
        tools=TOOLS,
        tool_seconds=0.1,
        rollout_func="agents.rollouts",
        reward_funcs=["agents.reward"],
    )
    changes |= dict(log_token_credit=1, max_tool_calling_iterations=1)
    changes |= dict(held_out=3, score_samples=5)
    path = recipe(**changes)
    trainer = train.run(*make_parser().parse_args_and_config(["--config", str(path)]))
    batch = next(batch for batch in trainer.batches if batch["is_training"])
    log = next(log for log in trainer.state.log_history if "loss" in log)
    # of five rollouts four call a tool, and three of these fail
    assert (log["tools/call_frequency"], log["tools/failure_frequency"]) == pytest.approx(
        (0.8, 0.75)
    )
    is_tools = (batch["completion_mask"] * (1 - batch["tool_mask"])).bool()
    assert is_tools.any(dim=1).tolist() == [True, True, True, True, False] * 4
    assert log["rollouts/tokens_total"] == (batch["completion_mask"] * batch["tool_mask"]).sum()
    assert log["rollouts/recovered"] > 0
    said = {
        message["content"]
        for row in trainer._logs["completion"]
        for message in row
        if message["role"] == "tool"
    }
    assert said == {"42"} | {
        str({"error": text})
        for text in (
            "hang took longer than 0.1 seconds",
            "leave ended with SystemExit",
            "too long to say",
        )
    }
    (advantages,) = trainer.token_advantages
    assert (advantages[is_tools] == 0).all() and advantages.abs().sum() > 0
    rows = pq.read_table(f"{trainer.args.output_dir}/credit/credit_00001.parquet").to_pylist()
    for row, is_tools_T, counts_T in zip(
        rows, is_tools, batch["completion_mask"].bool(), strict=True
    ):
        unpaid = is_tools_T[counts_T].tolist()
        assert [value is None for value in row["old_logps"]] == unpaid and row[
            "length"
        ] == unpaid.count(False)
        assert [value is None for value in row["advantages"]] == unpaid
    # of 15 samples, those of the all-right prompts, and of mixed ones the odd places
    expected = agents.reward(
        [row["prompt"] for row in trainer.train_dataset.select([0, 1, 2]) for _ in range(5)],
        [0] * 15,
    )
    assert trainer.evaluation["after"]["pass@1"] == pytest.approx(sum(expected) / 15)


def test_an_environment_has_a_state_for_each_rollout_and_its_own_reward(recipe, capsys):
    changes = dict(
        environment_factory="agents.Counter", rollout_func="agents.rollouts", num_generations=4
    )
    path = recipe(**changes, held_out=2, score_samples=3, max_tool_calling_iterations=1)
    trainer = train.run(*make_parser().parse_args_and_config(["--config", str(path)]))
    log = next(log for log in trainer.state.log_history if "loss" in log)
    # of three rollouts in turn, the second counts to 5: 7 of 20
    output = trainer.args.output_dir
    assert cli.main(["eval", "--model", output, "--benchmarks", "none-of-ours"]) == 2
    assert (
        f"{output} was trained with tools (count), and this command calls none"
        in capsys.readouterr().err
    )
    assert (
        log["rewards/Counter/mean"] == pytest.approx(0.35) and log["tools/failure_frequency"] == 0
    )
    assert trainer.evaluation["after"]["pass@1"] == pytest.approx(1 / 3)


class Asking:
    """Brings its own prompt."""

    def reset(self, **row):
        return "1 + 1"

    def get_reward(self):
        return 1.0


@pytest.mark.parametrize("has_rows", [True, False])
def test_an_environment_may_bring_the_prompt(has_rows, policy, tmp_path):
    model = agents.teach_tools(policy, tmp_path / "model")
    rows = Dataset.from_dict({"environment": ["asking"] * 6}) if has_rows else None
    factory = {"asking": Asking} if has_rows else Asking
    args = config(tmp_path / "run", max_steps=1, max_completion_length=5)
    trainer = RunTrainer(model, None, args, rows, environment_factory=factory)
    trainer.train()
    trainer.create_model_card()
    assert (trainer.state.log_history[0]["reward"], trainer.state.log_history[0]["groups/ph"]) == (
        1.0,
        1.0,
    )
    for setting in (
        dict(advantage_estimator=f"{OF_FORKS}boundary_gate"),
        dict(prompt_selection="thompson"),
    ):
        with pytest.raises(ValueError, match="knows a prompt by its text: got environment_factory"):
            by_past = config(tmp_path / "run", **{"advantage_estimator": "grpo", **setting})
            RunTrainer(model, None, by_past, rows, environment_factory=factory)
    with pytest.raises(ValueError, match="column prompt"):
        RunTrainer(model, agents.reward, args, Dataset.from_dict({"question": ["a"] * 6}))


WRONG = {
    "no such module": (dict(tools=["no_such.tool"]), "'no_such.tool' could not be imported"),
    "a typo": (dict(tools=["agents.ad"]), "Did you mean 'add'"),
    "no time": (dict(tools=["agents.add"], tool_seconds=0), "tool_seconds is 0. It must be at least 0.01"),
    "plain text": (dict(tools=["agents.add"], dataset_name="trl_miner/arithmetic"), "prompt_style: chat"),
    "a model without": (dict(tools=["agents.add"], model_name_or_path="POLICY"), "does not support tool calling"),
    "dynamic sampling": (
        dict(tools=["agents.add"], dynamic_sampling=True, advantage_estimator="grpo"), "leave dynamic_sampling out"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_doctor_and_training_refuse(name, recipe, policy, monkeypatch):
    changes, words = WRONG[name]
    changes = {key: policy if value == "POLICY" else value for key, value in changes.items()}
    path = recipe(**{"reward_funcs": ["agents.reward"], **changes})
    with pytest.raises(ValueError, match=re.escape(words)):
        train.main(["--config", str(path)])
    try:
        findings, _ = examination.examine(path, [], this_machine())
        said = [finding.text for finding in findings if finding.status == FAILED]
    except ValueError as error:
        said = [str(error)]
    assert any(words in text for text in said), said


def busy():
    while True:
        pass


def swallowing():
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        with contextlib.suppress(BaseException):
            time.sleep(60)
    time.sleep(60)


def backtracking():
    re.match("(a+)+$", "a" * 40 + "b")  # looks for signals, and lets no other thread run


def calling_another():
    with contextlib.suppress(TimeoutError):
        tools.limited(busy, 0.2)()
    time.sleep(60)


@pytest.mark.parametrize(
    "tool", [partial(agents.hang, 1), busy, swallowing, backtracking, calling_another]
)
def test_a_call_that_hangs_ends_in_time_and_leaves_no_alarm(tool):
    handler, start = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(TimeoutError, match="took longer than 0.5 seconds"):
        tools.limited(wraps(busy)(tool), 0.5)()
    assert time.monotonic() - start < 20
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (
        handler,
        (0, 0),
    )


class Waiting(agents.Counter):
    def wait(self, seconds: int):
        """Wait.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return self.count(1) + 10


def test_the_tools_of_an_environment_have_the_limit_and_share_a_state():
    environment = tools.load_environments(f"{__name__}.Waiting", 0.2)()
    environment.reset(solution="1")
    with pytest.raises(TimeoutError, match="wait took longer than 0.2 seconds"):
        environment.wait(60)
    # one tool that calls another gets a number, and the model gets text
    assert (environment.wait(0), environment.count(by=2), type(environment)) == ("11", "3", Waiting)


def test_an_async_tool_has_the_same_limit():
    async def slow(a: int):
        await asyncio.sleep(a)
        return a

    assert asyncio.run(tools.limited(slow, 5)(0)) == "0"
    with pytest.raises(TimeoutError, match="slow took longer"):
        asyncio.run(tools.limited(slow, 0.01)(60))


def test_blocks_stay_and_other_results_become_text():
    blocks = [{"type": "text", "text": "a"}]
    results = [tools.limited(lambda x: x, 1)(x) for x in (blocks, [1], [], None, 1.5)]
    assert results == [blocks, "[1]", "[]", "None", "1.5"]


# --- What a tool says changes nothing, on one process and on two


def with_results(prompts, trainer, token):
    """Rollouts whose last tokens are a tool's."""
    prompt_ids = trainer.processing_class(prompts)["input_ids"]
    own = [
        [5 + (len(prompt) + 3 * place) % 40 for place in range(2 + row % 3)]
        for row, prompt in enumerate(prompts)
    ]
    completion_ids = [ids + [token] * 3 for ids in own]
    masks = [[1] * len(ids) + [0] * 3 for ids in own]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": None,
        "env_mask": masks,
    }


def by_row(prompts, **kwargs):
    return agents.reward([[{"content": prompt}] for prompt in prompts], prompts)


def train_twice(policy, folder, num_processes=1):
    """Train on results that differ, with a method for each kind of prompt, and all records."""
    found = []
    for token in (50, 60):
        settings = dict(
            advantage_estimator="ucas", all_right="miner", all_wrong="rl_zvp", policy_loss="kl_cov"
        )
        settings |= dict(num_iterations=2, log_gradient_share=1, beta=0.1, learning_rate=1e-2)
        args = config(
            folder / str(token),
            per_device_train_batch_size=12 // num_processes,
            max_steps=4,
            **settings,
        )
        rollout_func = partial(with_results, token=token)
        trainer = Recording(policy, by_row, args, problems(), rollout_func=rollout_func)
        trainer.train()
        found.append((weights(trainer), metrics_of(trainer)))
    (first, logs), (second, other_logs) = found
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert logs == other_logs and any(log.get("rollouts/recovered") for log in logs)


def test_the_results_of_tools_change_nothing(policy, tmp_path):
    train_twice(policy, tmp_path)


def on_a_rank(policy, folder):
    train_twice(policy, folder, 2)
    leave()


@pytest.mark.slow
def test_nor_on_two_processes(policy, tmp_path):
    call_on_ranks(2, on_a_rank, policy, tmp_path)


class Shares(GRPOTrainer):
    """Generates as with vLLM's server: one process asks for all, and the answers are handed out in
    equal shares."""

    def _generate_single_turn(self, prompt_ids, images, *args):
        asked = gather_object(prompt_ids)
        return [[row[0] + 100] for row in asked[current_world().local_slice(len(prompt_ids))]], None

    def _tool_call_loop(self, prompts, prompt_ids, *args):
        # by process, of each turn the rollouts that call a tool
        turns = [[[1], [2], [3]]], [[[4]], [[5], [6]]]
        return [
            self._generate_single_turn(turn, None, {}, 1)[0] for turn in turns[current_world().rank]
        ]


def on_unlike_ranks():
    PartialState(cpu=True)

    class Sharing(RunTrainer, Shares):
        def __init__(self):
            self.use_vllm, self._sampler, self._is_looping = True, None, False
            self.accelerator = SimpleNamespace(device=torch.device("cpu"))

    found = Sharing()._tool_call_loop(["prompt"], [[9]])
    assert found == [[[[101], [102], [103]]], [[[104]], [[105], [106]]]][current_world().rank]
    leave()


def test_each_process_gets_the_completions_of_its_own_calls():
    call_on_ranks(2, on_unlike_ranks)


# --- The example


@pytest.fixture
def calculator(monkeypatch):
    """The module beside the recipe; its problems are made in this process, as another one takes
    seconds to start."""
    monkeypatch.setattr(
        reasoning_gym,
        "make_rows",
        lambda *args, **named: [*reasoning_gym.draw_rows(*args, **named)],
    )
    monkeypatch.syspath_prepend(CALCULATOR)
    return importlib.import_module("calculator")


@pytest.mark.slow
def test_the_recipe_with_a_calculator_trains_the_model_that_its_script_makes(
    calculator, tmp_path, monkeypatch
):
    """Untrained, to be quick: that it learns to call is in the guide."""
    monkeypatch.chdir(tmp_path)
    calculator.make_model("model", steps=1, size=64)
    few = (
        "--max_steps 1 --per_device_train_batch_size 8 --num_generations 4 --held_out 2"
        " --task_size 16"
    )
    train.main(["--config", str(CALCULATOR / "grpo.yaml"), *few.split(), "--logging_steps", "1"])
    history = json.loads(
        (tmp_path / "runs" / "calculator" / "grpo" / "trainer_state.json").read_text()
    )["log_history"]
    assert any("tools/call_frequency" in log for log in history)


def test_the_calculator_works_out_what_the_solutions_state_and_nothing_else(calculator):
    tokenizer = calculator.build_tokenizer()
    for row in calculator.solutions(8):
        assert tokenizer.decode(tokenizer(row["text"])["input_ids"]) == row["text"]
    assert [calculator.calculate(text) for text in ("12 + 30", "-(2 - 5) * 4", "7")] == [42, 12, 7]
    for text in ("9**9", "f(1)", "1.5", "1 +", "1" * 101):
        with pytest.raises((ValueError, SyntaxError)):
            calculator.calculate(text)
