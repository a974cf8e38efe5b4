"""A mistake in one line: what is said, by whom, and the exit code."""

import errno
import os
import subprocess
import sys

import pytest

from trl_miner.common.errors import describe, is_disk_full, told_in_one_line

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def tell(error, capsys):
    """Return the exit code of an error within a command, and what stands on stderr."""
    with pytest.raises(SystemExit) as ended, told_in_one_line("report"):
        raise error
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("seed is 'a'.\n  It must\nbe a number."), "seed is 'a'. It must be a number."),
        (FULL, "The disk is full ([Errno 28] No space left on device). Free some space."),
        (BrokenPipeError(32, "Broken pipe"), "[Errno 32] Broken pipe"),  # of a reward function's
        (KeyError("reward"), "KeyError: 'reward'. --traceback shows where."),
    ],
)
def test_a_mistake_is_one_line_and_code_2(error, told, capsys):
    assert tell(error, capsys) == (2, f"trl-miner report: error: {told}\n")


def test_ctrl_c_is_one_line_and_code_130(capsys):
    assert tell(KeyboardInterrupt(), capsys) == (130, "trl-miner report: stopped by Ctrl-C.\n")


def test_a_message_shows_no_secret_and_the_traceback_on_request(monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.setenv("TRL_MINER_TRACEBACK", "1")
    _, told = tell(ValueError("401 for hf_0123456789"), capsys)
    assert "Traceback" in told and "in tell" in told
    assert told.endswith("error: 401 for ***\n") and "hf_0" not in told


def test_a_full_disk_is_seen_behind_the_errors_of_those_who_write():
    # as safetensors and torch tell it
    rust = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    try:
        try:
            raise FULL
        except OSError:
            raise RuntimeError("unexpected pos 64 vs 0") from None  # from None: the context stays
    except RuntimeError as error:
        wrapped = error
    assert is_disk_full(FULL) and is_disk_full(rust) and is_disk_full(wrapped)
    assert not is_disk_full(ValueError("a full disk of other people's"))
    assert "disk is full" in describe(rust)


def test_of_several_processes_the_first_speaks():
    code = (
        "from trl_miner.common import errors\n"
        "errors._PATIENCE_SECONDS = 3600\n"
        "with errors.told_in_one_line('train'): raise ValueError('no')"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "RANK": "1"}, stderr=subprocess.PIPE
    )
    first = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "RANK": "0"}, capture_output=True
    )
    assert first.returncode == 2 and first.stderr == b"trl-miner train: error: no\n"
    assert other.poll() is None  # it waits for the end that the first one's brings
    other.kill()
    assert other.communicate()[1] == b""
