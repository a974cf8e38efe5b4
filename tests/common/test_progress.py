"""What a command shows while it works and at its end, and nothing of it with --quiet."""

import os

from trl_miner.common.progress import be_quiet, finish, is_quiet, track


def test_closing_lines(capsys):
    finish(["runs/a", "runs/b"], ["trl-miner report runs/a"])
    expected = "Wrote\n  runs/a\n  runs/b\nNext\n  trl-miner report runs/a\n"
    assert capsys.readouterr().out == expected
    finish([], [])
    assert capsys.readouterr().out == ""


def test_short_work_shows_no_bar_and_loses_no_item(capsys):
    assert [*track(iter("abc"), "reading", total=3)] == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_quiet_is_quiet_in_this_process_and_its_children(capsys, monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ})
    be_quiet()
    finish(["runs/a"], ["next"])
    assert is_quiet() and os.environ["TRL_MINER_QUIET"]
    assert [*track([1, 2], "reading")] == [1, 2]
    assert capsys.readouterr() == ("", "")
