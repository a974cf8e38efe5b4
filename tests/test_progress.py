"""Progress and closing lines, on real terminals (pseudo-terminals) and in real pipes, of real
commands."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from harness import write_recipe
from transformers.utils import logging

from trl_miner import cli
from trl_miner.common.progress import Progress, duration, finish, is_quiet, quietly, track
from trl_miner.recipe.parsing import make_parser
from trl_miner.train import main
from trl_miner.training.callbacks import short_line

COMMANDS = (
    "launch",
    "doctor",
    "eval",
    "score",
    "compare",
    "inspect",
    "report",
    "sft",
    "recipes",
    "push",
)
COMMANDS += ("data deepscaler", "data medical")


def on_a_terminal(command, **kwargs):
    """The lines on a pseudo-terminal of 80 columns, each as it was last written; the last is the
    cursor's."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    written = bytearray()

    def read():
        with contextlib.suppress(OSError):  # EIO: nobody has the other end open any more
            while chunk := os.read(ours, 65536):
                written.extend(chunk)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    done = subprocess.run(
        command, stdin=theirs, stdout=theirs, stderr=theirs, timeout=120, **kwargs
    )
    os.close(theirs)
    reader.join(10)
    assert done.returncode == 0
    assert b"\x1b" not in written  # nothing moves the cursor
    return [
        line.rpartition("\r")[2].rstrip()
        for line in written.decode().replace("\r\n", "\n").split("\n")
    ]


def script(text):
    return [
        sys.executable,
        "-c",
        "import sys, time\nfrom trl_miner.common.progress import *\n" + text,
    ]


WORK = """
import warnings
warnings.formatwarning = lambda message, *rest, **more: f"{message}\\n"
with Progress("sampling", 50, unit="samples") as progress:
    for number in range(50):
        time.sleep(0.01)
        progress.update()
        if number == 20:
            print("printed")
            warnings.warn("warned")
"""
LINE = r" \d+/50 \[00:0\d<[\d:]+, [\d.]+ samples/s\]"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3900, "1 h 5 min")]
)
def test_durations_are_words(seconds, words):
    assert duration(seconds) == words


def test_on_a_terminal_all_else_stands_above_the_bar():
    *above, bar, last = on_a_terminal(script(WORK))
    assert above == ["printed", "warned"] and last == ""
    assert re.fullmatch(r"sampling: 100%\|█+\|" + LINE, bar) and len(bar) < 80


def test_in_a_pipe_there_are_plain_lines():
    fast = "import trl_miner.common.progress as p\np._LOG_SECONDS = 0.05\n"
    done = subprocess.run(script(fast + WORK), capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("sampling")]
    assert done.stderr.isascii() and "\r" not in done.stderr
    assert len(lines) > 2 and all(
        re.fullmatch(r"sampling: +\d+%\|[#\d ]*\|" + LINE, line) for line in lines
    )
    assert " 50/50 " in lines[-1] and done.stdout == "printed\n"


def test_of_two_the_inner_one_is_silent(capsys):
    for _ in track(track("ab", "inner"), "outer", total=2):
        pass
    with Progress("next", unit=""):
        pass
    said = capsys.readouterr().err
    assert re.fullmatch(r"outer: 100%.* 2/2 .*\n", said)


def test_a_line_without_an_end_is_not_lost(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    for _ in track([1], "sampling"):
        sys.stderr.write("a line\nthe rest")
    assert "the rest\n" in terminal.getvalue()


def test_quiet_is_silent(capsys):
    with quietly(), quietly(False):
        assert is_quiet() and list(track([1, 2], "a")) == [1, 2]
        finish(["x"], "y")
    with Progress("b", 3, quiet=True) as work:
        work.update()
    assert capsys.readouterr() == ("", "") and not is_quiet()


# Real commands.


@pytest.fixture(scope="module", autouse=True)
def no_bars_of_transformers():
    """A command in a process of its own says so in the environment before it imports them."""
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


def closing(text):
    """The paths and the commands of the closing lines, which are the last; nothing where there are
    none."""
    head, _, tail = text.partition("Wrote\n")
    assert "Next\n" not in head
    written, _, commands = tail.partition("Next\n")
    return [[line.strip() for line in part.splitlines()] for part in (written, commands)]


@pytest.fixture
def recipe(policy, tmp_path):
    more = dict(
        held_out=2, score_samples=2, reward_funcs=["harness.mixed_reward"], disable_tqdm=False
    )
    return write_recipe(
        tmp_path / "a recipe.yaml", model_name_or_path=policy, output_dir=tmp_path / "run", **more
    )


@pytest.mark.slow
def test_train_on_a_terminal(recipe, tmp_path):
    # transformers has bars of its own on a terminal
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-m", "trl_miner.cli", "train", "--config", recipe]
    rows = on_a_terminal(command, cwd=Path(__file__).parent, env=environment)
    bars = [row.partition("%")[0] for row in rows if "%|" in row]
    assert bars == ["scoring: 100", "training: 100"]
    order = [
        "before training, on 2",
        "step 1: reward",
        "step 2: reward",
        "training: 100%",
        "after training, on 2",
    ]
    places = [next(i for i, row in enumerate(rows) if row.startswith(start)) for start in order]
    assert places == sorted(places)
    run = tmp_path / "run"
    written, commands = closing("\n".join(rows))
    names = ["README.md", "trainer_state.json", "training.png", "held_out.json"]
    assert written == [str(run), *(str(run / name) for name in names)]
    shown = [line for line in commands if line.startswith("trl-miner")]
    assert shown == [f"trl-miner try {run}", f"trl-miner report {run}"]


def test_a_quiet_training_says_its_scores_alone(recipe, capfd):
    main(["--config", recipe, "--quiet"])
    said = capfd.readouterr()
    assert re.fullmatch(r"before training, on 2 .*\nafter training, on 2 .*\n", said.out)
    assert "it/s" not in said.err and "scoring" not in said.err and "training:" not in said.err


def test_metrics_that_a_log_lacks_are_left_out():
    assert (
        short_line(3, {"reward": 0.25, "groups/ph": 0.5, "loss": 1.0})
        == "step 3: reward 0.250 | prompts all right 50 %"
    )
    shares = {"groups/ph": 0.4, "rollouts/used": 0.78, "rollouts/grpo": 0.6, "step_time": 3.98}
    assert short_line(5, {"reward": 0.74, **shares}) == (
        "step 5: reward 0.740 | prompts all right 40 % | completions with a gradient 78 % (GRPO"
        " alone: 60 %) | 3.98 s/step"
    )


def test_every_command_and_the_training_script_have_quiet(capsys):
    for command in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            cli.main([*command.split(), "--help"])
        assert "--quiet" in capsys.readouterr().out, command
    assert "--quiet" in make_parser().format_help()
