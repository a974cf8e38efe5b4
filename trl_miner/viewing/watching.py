"""`trl-miner watch`: the report of a run, written again while the run trains."""

import time
from pathlib import Path

from ..common.network import not_found
from ..runs.history import has_state, read_run
from .report import write_report
from .rollouts import find_rollouts

_PATIENCE = 4  # a look may take a quarter of the time


def watch(folder: Path, output: str | Path | None = None, *, seconds: int = 30) -> Path:
    """Write the report of a run whenever its files have changed, until the run has ended.

    Args:
        folder: The run, which may have no log yet.
        output: The folder of the report; None: see `write_report`.
        seconds: Between two looks; longer where a report takes long.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: A file is damaged.
    """
    if not folder.exists():
        raise FileNotFoundError(f"{not_found('Run folder', folder)} Give the output_dir of a run.")
    page, seen, failed = None, None, None
    while True:
        start, found = time.monotonic(), _fingerprint(folder)
        if found != seen:
            try:
                is_over = has_state(folder) and read_run(folder).finished
                page = _write(folder, output, None if is_over else seconds, page) if found else None
                if is_over and page:
                    return page
                seen = found
            except ValueError:  # a file may be half written, but not twice
                if failed == found:
                    raise
                failed = found
        if page is None and seen == ():
            print(f"Waiting for a log or for rollouts in {folder}.", flush=True)
        time.sleep(max(seconds, _PATIENCE * (time.monotonic() - start)))


def _write(
    folder: Path, output: str | Path | None, refresh: int | None, before: Path | None
) -> Path:
    page = write_report([folder], output, refresh=refresh, quiet=True)
    if before is None and refresh:
        print(f"Open {page}: it is written anew every {refresh} seconds.", flush=True)
    return page


def _fingerprint(folder: Path) -> tuple[tuple[str, int], ...]:
    """Return what changes when a run has written something that a report shows; empty: nothing."""
    files = find_rollouts(folder)
    paths = [*(files.paths if files else ()), *folder.glob("**/trainer_state.json")]
    paths += [folder / "held_out.json"]
    return tuple((str(path), path.stat().st_size) for path in paths if path.is_file())
