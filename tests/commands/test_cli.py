"""`trl-miner`: its help, its options, and what is told of a wrong command line."""

import os
import subprocess
import sys
import time

import pytest

from trl_miner import cli
from trl_miner.commands import GROUPS, load

COMMANDS = [name for group in GROUPS.values() for name in group]
HEAVY = ("torch", "trl", "transformers", "datasets", "pandas", "matplotlib", "sympy")


def run(*words, **environment):
    """Run `trl-miner` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "trl_miner.cli", *words],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=100,
    )


def test_the_help_has_nine_commands_and_takes_half_a_second():
    begin = time.process_time()  # of this process and, after it has ended, of its child
    before = os.times().children_user
    told = run("--help").stdout.decode()
    seconds = os.times().children_user - before + time.process_time() - begin
    assert all(f"\n  {name} " in told for name in COMMANDS) and len(COMMANDS) == 9
    assert all(f"  {load(name).HELP}\n" in told for name in COMMANDS)
    assert seconds < 0.5


def test_a_reader_that_has_read_enough_is_no_error():
    piped = f"{sys.executable} -m trl_miner.cli --help | true"
    assert not subprocess.run(["bash", "-c", piped], capture_output=True).stderr


def test_no_command_loads_anything_heavy_before_it_runs():
    code = (
        "import sys\nfrom trl_miner import cli\ncli.overview()\n"
        f"print(sorted({{*{HEAVY}}} & {{*sys.modules}}))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_a_command_imports_no_other():
    code = (
        "import sys\nfrom trl_miner import cli\ncli.main(['recipes', 'slurm'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('trl_miner.commands.')))"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert told.splitlines()[-1] == "['trl_miner.commands.recipes']"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself(name, capsys):
    command = load(name)
    assert command.NAME == name and command.HELP.endswith((".", "?")) and "\n" not in command.HELP
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert command.__doc__ and command.__doc__.strip().splitlines()[0] in told
    assert "--quiet" in told and "--traceback" in told
    for action in cli.make_parser(command)._actions:
        assert action.help and action.help.endswith((".", ").")), action.dest


def test_the_help_on_methods_has_each_one(capsys):
    from trl_miner.methods import ESTIMATORS, POLICY_LOSSES

    with pytest.raises(SystemExit):
        cli.main(["train", "--help", "methods"])
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in (*ESTIMATORS, *POLICY_LOSSES))


def test_the_defaults_in_the_help_of_train_hold():
    from trl_miner.commands import train
    from trl_miner.trainer.config import MinerGRPOConfig

    config = MinerGRPOConfig(output_dir="unused", use_cpu=True, bf16=False)
    for name in ("learning_rate", "max_steps", "num_generations", "per_device_train_batch_size",
                 "max_completion_length", "seed", "advantage_estimator"):  # fmt: skip
        [line] = [line for line in train.__doc__.splitlines() if f"--{name} " in line]
        assert f"(default: {getattr(config, name)}" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trian"], "trl-miner: error: No command named 'trian'. Did you mean 'train'?"),
        (
            ["recipes", "--copi"],
            "trl-miner recipes: error: Unexpected '--copi'. Did you mean '--copy'?",
        ),
        (["recipes", "a", "b"], "trl-miner recipes: error: Unexpected 'b'."),
        (
            ["recipes", "arithmetik"],
            "trl-miner recipes: error: No recipe or folder named 'arithmetik'.",
        ),
        (["train"], "trl-miner train: error: There is no model to train. Give a recipe"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    found = capsys.readouterr().err
    assert ended.value.code == 2 and found.startswith(told) and found.count("\n") == 1


def test_version_and_no_words(capsys):
    from trl_miner import __version__

    assert cli.main(["--version"]) == cli.main([]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{__version__}\nusage: trl-miner COMMAND")


def test_a_terminal_that_lacks_a_letter_shows_a_mark_in_its_place(tmp_path):
    (tmp_path / "über€.yaml").write_text("seed: 1")
    told = run("train", "€.yaml", PYTHONIOENCODING="latin-1")
    assert told.returncode == 2 and b"named '?.yaml'" in told.stderr


def test_recipes_are_listed_printed_and_copied(tmp_path, monkeypatch, capsys):
    from trl_miner.recipe.files import shipped

    monkeypatch.chdir(tmp_path)
    cli.main(["recipes"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*shipped()]
    cli.main(["recipes", "arithmetic"])
    assert {line.split("/")[0].strip() for line in capsys.readouterr().out.splitlines()} == {
        "arithmetic"
    }
    cli.main(["recipes", "arithmetic/quick"])
    assert capsys.readouterr().out.rstrip() == shipped()["arithmetic/quick"].read_text().rstrip()
    cli.main(["recipes", "arithmetic/quick", "--copy"])
    assert "recipes/arithmetic/quick.yaml" in capsys.readouterr().out
    cli.main(["recipes", "arithmetic/quick", "--copy", "--quiet"])
    assert capsys.readouterr().out == ""
    os.environ.pop("TRL_MINER_QUIET")
