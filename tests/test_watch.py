"""`trl-miner watch`: the report of a run that trains."""

import json
import time

import pandas as pd
import pytest
from browser import needs_browser, open_page

from trl_miner.cli import main
from trl_miner.viewing import watching
from trl_miner.viewing.report import write_report


def write_step(folder, step, prompt="1 + 1?"):
    """The table of a generation batch, as TRL writes it."""
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    rows = {
        "step": step,
        "prompt": [prompt] * 4,
        "completion": [f"{step} {one}" for one in "abcd"],
        "reward": [1.0, 0, 0, step % 2],
    }
    table = pd.DataFrame(rows | {"advantage": [1.0, -0.5, -0.5, 0.0]})
    table.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


def write_state(folder, step, planned):
    log = [{"step": done, "reward": 0.5} for done in range(1, step + 1)]
    state = {"global_step": step, "max_steps": planned, "log_history": log}
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps(state))


class Clock:
    """Stands in for the time between two looks: does the next action in it."""

    def __init__(self, *actions):
        self.actions, self.pages = list(actions), []

    def sleep(self, folder):
        page = folder / "report" / "index.html"
        self.pages.append(page.read_text() if page.is_file() else None)
        self.actions.pop(0)()


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """Does one action after each look, and returns the pages that there were."""

    def watch(*actions):
        clock = Clock(*actions)
        monkeypatch.setattr(watching.time, "sleep", lambda seconds: clock.sleep(tmp_path))
        assert main(["watch", str(tmp_path), "--seconds", "7"]) == 0
        return clock.pages

    return watch


def test_the_page_follows_the_run_until_it_ends(tmp_path, looks, capsys):
    pages = looks(
        lambda: write_step(tmp_path, 1),
        lambda: write_step(tmp_path, 2),
        lambda: write_state(tmp_path / "checkpoint-2", 2, 3),
        lambda: write_state(tmp_path, 3, 3),
    )
    assert pages[0] is None and '<meta http-equiv="refresh" content="7">' in pages[1]
    assert "4 rollouts of 1 different" in pages[1] and "8 rollouts of 1 different" in pages[2]
    assert "2 of 3 steps" in pages[3] and "Step 2" in pages[3]
    assert 'http-equiv="refresh"' not in (tmp_path / "report" / "index.html").read_text()
    said = capsys.readouterr().out
    assert said.startswith("Waiting for a log or for rollouts in ") and said.count("Open ") == 1


def test_a_file_that_is_half_written_is_read_at_the_next_look(tmp_path, looks):
    write_step(tmp_path, 1)
    path = tmp_path / "completions" / "completions_00001.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    pages = looks(lambda: path.write_bytes(whole), lambda: write_state(tmp_path, 1, 1))
    assert pages[0] is None and "4 rollouts" in pages[1]


def test_a_damaged_file_and_a_missing_folder_are_errors(tmp_path, monkeypatch, capsys):
    write_step(tmp_path, 1)
    (tmp_path / "completions" / "completions_00001.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: None)
    assert main(["watch", str(tmp_path)]) == 2 and "cannot be read" in capsys.readouterr().err
    assert (
        main(["watch", str(tmp_path / "none")]) == 2
        and "Run folder not found: " in capsys.readouterr().err
    )


@needs_browser
def test_a_browser_loads_the_page_anew(tmp_path):
    write_step(tmp_path, 1)
    page = write_report([tmp_path], refresh=1, quiet=True)
    with open_page(page) as opened:
        assert "4 rollouts" in opened.locator("main").inner_text()
        write_step(tmp_path, 2)
        write_report([tmp_path], refresh=1, quiet=True)
        end = time.monotonic() + 20
        while "8 rollouts" not in opened.locator("main").inner_text():
            assert time.monotonic() < end
            opened.wait_for_timeout(100)
        opened.assert_quiet()
