"""Two recipes are really trained, each as a user would; what a wrong call gets; and that nothing is
left behind."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import gone, wait_until, write_recipe

from trl_miner import cli
from trl_miner.compare import Run, _plan, _train_all, compare
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs
from trl_miner.viewing.report import write_report

PLANTED = "planted-secret-0123456789"


def write(folder, name, **settings):
    return Path(
        write_recipe(folder / f"{name}.yaml", **dict(held_out=4, score_samples=2) | settings)
    )


@pytest.fixture
def recipe(tmp_path):
    return write(tmp_path, "grpo", advantage_estimator="grpo", model_name_or_path="m")


def command(recipes, output, *options):
    """The command as a user gives it, with one thread for each run."""
    names = [str(path) for path in recipes]
    return [
        sys.executable,
        "-m",
        "trl_miner.cli",
        "compare",
        "--recipes",
        *names,
        "--seeds",
        "1",
        *options,
    ] + [*("--output", str(output))]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def run_here(*arguments):
    """Run the command in this process, which has imported TRL; the trainings are processes of their
    own."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(command(*arguments)[3:])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def descendants_of(process):
    return psutil.Process(process.pid).children(recursive=True)


SAME_OPTIONS = ("--temperature", "1", "--beta=0")  # as the first command's, in other words


@pytest.fixture(scope="module")
def stopped_and_finished(policy, tmp_path_factory):
    """A comparison that SIGTERM stops in its first run, and the same command again."""
    folder = tmp_path_factory.mktemp("compare")
    secret = {
        "hub_token": PLANTED,
        "env": {"SOME_API_KEY": PLANTED},
        "model_init_kwargs": {"token": PLANTED},
    }
    recipes = [
        write(
            folder,
            "grpo",
            model_name_or_path=policy,
            advantage_estimator="grpo",
            score_steps=1,
            **secret,
        ),
        write(folder, "broken", model_name_or_path=str(folder / "nowhere" / PLANTED), **secret),
        write(
            folder,
            "miner",
            model_name_or_path=policy,
            steps_per_generation=2,
            max_steps=4,
            score_steps=2,
        ),
    ]
    output = folder / "out"
    process = subprocess.Popen(
        command(recipes, output, "--beta", "0", "--temperature=1"),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((output / "grpo" / "seed1" / "log.txt").is_file, process)
    wait_until(lambda: len(descendants_of(process)) > 1, process)  # the guard and the training
    started = [part.pid for part in descendants_of(process)]
    with pytest.raises(ValueError, match=f"in use by process {process.pid} on "):
        compare(recipes, seeds=1, output=output)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)
    return (
        recipes,
        output,
        (process.returncode, said, gone(started)),
        run_here(recipes, output, *SAME_OPTIONS),
    )


@pytest.mark.slow
def test_sigterm_ends_the_run_and_all_that_it_started(stopped_and_finished):
    code, (_, said), is_gone = stopped_and_finished[2]
    assert code == 143 and is_gone
    assert said.endswith("stopped by SIGTERM. Run the same command to continue.\n")


@pytest.mark.slow
def test_one_line_per_run_and_a_failing_one_costs_only_itself(stopped_and_finished):
    _, output, _, done = stopped_and_finished
    assert done.returncode == 1, done.stderr
    first, second, third, _, *table = done.stdout.splitlines()
    log = output / "broken" / "seed1" / "log.txt"
    assert first.startswith("[1/3] grpo seed 1: Pass@1 0.00, ") and third.startswith(
        "[3/3] miner seed 1: Pass@1 0.00"
    )
    assert (
        second == f"[2/3] broken seed 1: ended with exit code 2, see {log}"
        and "nowhere" in log.read_text()
    )
    written = [f"  {output / name}" for name in ("comparison.md", "runs.jsonl")]
    closing = ["Wrote", *written, "Next", f"  trl-miner report {output}"]
    assert [*(output / "comparison.md").read_text().splitlines(), *closing] == table
    assert [line.split()[1] for line in table[2:5]] == ["grpo", "broken", "miner"]


@pytest.mark.slow
def test_the_numbers_come_from_the_runs(stopped_and_finished, policy):
    output = stopped_and_finished[1]
    lines = (output / "comparison.md").read_text().splitlines()[2:5]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[1][1:] == ["0 of 1", *["n/a"] * 5]  # broken
    path = output / "runs.jsonl"
    assert Path(policy).name in path.read_text() and str(policy) not in path.read_text()
    # 2 optimizer steps of 8 rollouts; 4 optimizer steps are 2 generations of 2 * 8 rollouts, at
    # most 8 tokens each
    for run, row, rollouts, moments in zip(
        read_runs(path), rows[::2], (16, 32), ([0, 1, 2], [0, 2, 4]), strict=True
    ):
        assert run.name == f"{row[0]}/seed1" and run.finished and list(run.scores) == moments
        assert row[1:3] == ["1", "0.000"] and float(row[4]) > 0 and row[5] == str(rollouts)
        assert rollouts <= run.values("rollouts/tokens_total")[-1][1] <= rollouts * 8
        assert (run.held_out.after.num_samples, len(run.held_out.after.num_correct)) == (2, 4)


@pytest.mark.slow
def test_no_file_and_no_line_of_a_comparison_shows_a_secret(
    undrawn, stopped_and_finished, tmp_path
):
    _, output, (_, said, _), done = stopped_and_finished
    page = write_report([output], tmp_path, quiet=True)
    files = [
        path for folder in (output, page.parent) for path in folder.rglob("*") if path.is_file()
    ]
    assert [path for path in files if PLANTED.encode() in path.read_bytes()] == []
    assert PLANTED not in "".join([*said, done.stdout, done.stderr])
    assert "nowhere/***" in (output / "broken" / "seed1" / "log.txt").read_text()


@pytest.mark.slow
def test_finished_runs_are_skipped_and_others_settings_refused(stopped_and_finished, capsys):
    (grpo, _, _), output, _, _ = stopped_and_finished
    words = command([grpo], output, *SAME_OPTIONS)[3:]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.startswith("[1/1] grpo seed 1: Pass@1 0.00, finished before\n")
    assert cli.main([*words, "--max_steps", "3"]) == 2
    said = capsys.readouterr().err
    assert (
        f"{output / 'grpo' / 'seed1'} holds another run: --max_steps is None, wanted ['3']" in said
    )


def test_wrong_calls_are_refused_before_anything_is_trained(recipe, tmp_path):
    twin = tmp_path / "twin" / "grpo.yaml"
    twin.parent.mkdir()
    twin.write_text(recipe.read_text())
    for recipes, options, named in (
        ([tmp_path / "nowhere.yaml"], [], "No recipe or file named .*nowhere.yaml'."),
        ([recipe, twin], [], "different names, those of the methods: got .*grpo.yaml"),
        ([recipe], ["--seed", "3"], "--seed is set by compare. Give --recipes, --seeds"),
        ([recipe], ["--output-dir=x"], "--output_dir is set by compare"),
    ):
        with pytest.raises(ValueError, match=named):
            compare(recipes, output=tmp_path / "out", seeds=1, options=options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [1, 2, 3]), ("4-5", [4, 5]), ("x", None), ("0", None), ("5-4", None)]
)
def test_seeds_are_a_number_or_a_range(text, seeds, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        "trl_miner.compare.compare", lambda recipes, seeds, **more: asked.append([*seeds]) or 0
    )
    code = cli.main(["compare", "--recipes", "arithmetic/miner", "--seeds", text, "--quiet"])
    assert (code, asked) == ((0, [seeds]) if seeds else (2, []))
    assert (
        f"'{text}' is neither a number of seeds nor a range. Write 5, or 4-5."
        in capsys.readouterr().err
    ) == (seeds is None)


@pytest.mark.parametrize(("held_out", "options"), [(4, []), (0, ["--held_out", "200"])])
def test_a_recipe_that_scores_nothing_gets_held_out_problems(tmp_path, held_out, options):
    path = write(tmp_path, "own", held_out=held_out)
    assert _plan(path, 1, tmp_path, ["--a"]).settings["options"] == [*options, "--a"]


def test_a_folder_of_a_run_that_is_not_compares_own_is_left_alone(recipe, tmp_path):
    folder = tmp_path / "out" / "grpo" / "seed1"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 2}')
    with pytest.raises(ValueError, match="holds another run: .* Give another --output"):
        compare([recipe], seeds=1, output=tmp_path / "out")


def test_a_run_none_of_whose_answers_were_judged_is_told_without_a_score(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        Run, "result", lambda run: RunHistory(tmp_path, "seed1", {}, scores={2.0: {}})
    )
    assert _train_all([Run(tmp_path, tmp_path, {"method": "grpo", "seed": 1})], [], 1)
    assert capsys.readouterr().out == "[1/1] grpo seed 1: finished before\n"


def test_one_recipe_is_planned_with_several_methods(recipe, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("trl_miner.compare._train_all", lambda runs, *_: seen.extend(runs) or True)
    monkeypatch.setattr("trl_miner.compare._write_table", lambda *_: None)
    words = ["compare", str(recipe), "--methods", "grpo", "miner", "--seeds", "2"]
    assert cli.main([*words, "--beta", "0", "--output", str(tmp_path / "out")]) == 0
    folders = [str(run.folder.relative_to(tmp_path / "out")) for run in seen]
    assert folders == ["grpo/seed1", "miner/seed1", "grpo/seed2", "miner/seed2"]
    assert {run.recipe for run in seen} == {recipe}
    assert seen[1].settings["method"] == "miner"
    at = seen[1].command.index("--advantage_estimator")
    assert seen[1].command[at + 1] == "miner" and "--beta" in seen[1].command


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "grpo"], "Nothing to compare. Give a recipe and methods"),
        (["{}", "--methods", "grpo", "grop"], "grop"),
        (["{}", "--methods", "grpo", "grpo"], "must be different methods for one recipe"),
        (["{}", "--methods", "grpo", "--advantage_estimator", "miner"], "is set by --methods"),
    ],
)
def test_wrong_methods_are_refused(recipe, tmp_path, capsys, words, says):
    words = [word.format(recipe) for word in words]
    assert cli.main(["compare", *words, "--seeds", "1", "--output", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_methods_are_rows_of_the_table(policy, tmp_path):
    path = write(tmp_path, "base", model_name_or_path=policy, max_steps=1)
    words = ["compare", str(path), "--methods", "grpo", "miner", "--seeds", "1"]
    assert cli.main([*words, "--output", str(tmp_path / "out")]) == 0
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert "grpo" in table and "miner" in table
