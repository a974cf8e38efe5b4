"""Push to the Hub: retry errors that may pass, and explain the others."""

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ..progress import Progress, is_quiet
from ..redaction import redact
from ..runs.models import Model, find_checkpoints, find_model
from ..text import one_line
from .folder import assemble, copy

T = TypeVar("T")
PAUSES = (2.0, 8.0, 30.0, 60.0)  # seconds between attempts, inside each of which huggingface_hub retries too
_TRANSIENT_STATUS = (408, 412, 425, 429, 500, 502, 503, 504)  # 412: somebody else has committed meanwhile
# Weights of an earlier push under other names would be loaded instead of the new ones.
_REPLACED = ("model*.safetensors", "model.safetensors.index.json", "adapter_model.safetensors", "adapter_config.json")


def check_repo_id(repo_id: str) -> None:
    """Raise ValueError unless it is USER/NAME."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"--repo-id must be USER/NAME: got {repo_id!r}. {error}") from error
    if repo_id.count("/") != 1:
        raise ValueError(f"--repo-id must be USER/NAME: got {repo_id!r}. Put your Hub user name in front.")


def plan(run: Path, *, checkpoints: bool) -> dict[str | None, Model]:
    """Return the model for each revision of the repository. None stands for the revision that the user names."""
    models: dict[str | None, Model] = {None: find_model(run)}
    return models | {model.weights.name: model for model in (find_checkpoints(run) if checkpoints else ())}


def write_folder(models: Mapping[str | None, Model], target: Path, name: str, benchmarks: Any) -> Iterator[Path]:
    """Write what would be pushed into `target`; with checkpoints, into one folder per revision in it."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"--dry-run must name an empty or a new folder: got {target}. Remove it, or name another.")
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    for revision, model in models.items():
        folder = target if len(models) == 1 else target / (revision or "main")
        with _removed_on_error(target, made):
            folder.mkdir(parents=True, exist_ok=True)
            assemble(model, folder, name=name, place=copy, benchmarks=benchmarks if revision is None else None)
        yield folder


@contextlib.contextmanager
def _removed_on_error(target: Path, made: Sequence[Path]) -> Iterator[None]:
    """Leave nothing in a folder behind if the block raises, nor those of the folders that were made for it."""
    try:
        yield
    except BaseException:
        for path in target.iterdir() if target.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def push_models(
    models: Mapping[str | None, Model],
    repo_id: str,
    *,
    private: bool | None,
    revision: str | None,
    benchmarks: Any,
    say: Callable[[str], None],
) -> None:
    """Push each model to its revision. The user's own comes first, so that the others branch off from it."""
    for branch, model in models.items():
        with tempfile.TemporaryDirectory(prefix="trl-miner-push-") as folder:
            scores = benchmarks if branch is None else None
            assemble(model, Path(folder), name=repo_id, place=os.symlink, benchmarks=scores)
            if not is_quiet():
                where = f"{repo_id}, revision {branch or revision or 'main'}"
                say(f"{model.weights} goes to {where}:\n{listing(Path(folder))}")
            message = "Upload model" if model.step is None else f"Upload model of step {model.step}"
            # on a terminal huggingface_hub shows its own progress
            with Progress(f"pushing to {repo_id}", unit="", quiet=sys.stderr.isatty()):
                push_folder(
                    Path(folder), repo_id, private=private, revision=branch or revision, message=message, say=say
                )


def repo_urls(models: Mapping[str | None, Model], repo_id: str, revision: str | None) -> list[str]:
    """Return the addresses of what `push_models` has pushed."""
    from huggingface_hub import constants

    page = f"{constants.ENDPOINT}/{repo_id}"
    branches = [branch or revision or "main" for branch in models]
    return [page if branch == "main" else f"{page}/tree/{quote(branch)}" for branch in branches]


def push_folder(
    folder: Path,
    repo_id: str,
    *,
    message: str,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    path_in_repo: str | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Upload a folder, and create the repository and the branch if they are missing.

    Weights under other names are removed from the repository's root. An OSError says what to do.
    """
    from huggingface_hub import HfApi

    from .. import __version__

    api = HfApi(token=token, library_name="trl_miner", library_version=__version__)

    def push() -> None:
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision not in (None, "main"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            path_in_repo=path_in_repo,
            revision=revision,
            commit_message=message,
            delete_patterns=None if path_in_repo else list(_REPLACED),
        )

    try:
        with_retries(push, f"The push to {repo_id}", say=say)
    except Exception as error:
        raise OSError(explain(error, repo_id)) from error


def with_retries(
    action: Callable[[], T], title: str, *, pauses: Sequence[float] = PAUSES, say: Callable[[str], None] | None = None
) -> T:
    """Call an action, again after each pause as long as its error may pass: the network, 5xx, 429."""
    say = say or (lambda text: print(text, file=sys.stderr, flush=True))
    for attempt, pause in enumerate(pauses, start=1):
        try:
            return action()
        except Exception as error:
            if not is_transient(error):
                raise
            say(f"{title} failed, attempt {attempt} of {len(pauses) + 1}: {_short(error)}. Next try in {pause:.0f} s.")
        time.sleep(pause)
    return action()


def is_transient(error: BaseException) -> bool:
    """Return whether trying again may help."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    for link in _causes(error):
        status = getattr(getattr(link, "response", None), "status_code", None)
        if status is not None:
            return status in _TRANSIENT_STATUS
        if isinstance(link, OfflineModeIsEnabled):
            return False
        # by name: huggingface_hub uses httpx before version 2, and httpx2 since
        is_network = any(base.__name__ == "TransportError" for base in type(link).__mro__)
        if is_network or isinstance(link, (ConnectionError, TimeoutError)):
            return True
    return False


def explain(error: BaseException, repo_id: str) -> str:
    """Return an error of the Hub as a sentence, with what to do."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    causes = list(_causes(error))
    statuses = [getattr(getattr(link, "response", None), "status_code", None) for link in causes]
    status = next((code for code in statuses if code is not None), None)
    if any(isinstance(link, OfflineModeIsEnabled) for link in causes):
        hint = "HF_HUB_OFFLINE forbids the network: unset it, or write the folder with --dry-run FOLDER."
    elif status == 401:
        hint = "Log in with `hf auth login`, or set HF_TOKEN to a token that may write."
    elif status == 403:
        hint = "The token must have the right to write there: create one at https://huggingface.co/settings/tokens."
    elif is_transient(error):
        hint = "The Hub or the network has a problem: try again later. What has arrived is not sent twice."
    else:
        hint = "Nothing is lost: fix this, and push again."
    return f"The push to {repo_id} must reach the Hub: got {_short(error)}. {hint}"


def listing(folder: Path) -> str:
    """Return the files of a folder with their sizes, as lines."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    names = [one_line(path.relative_to(folder)) for path in files]
    width = max(map(len, names))
    rows = [*zip(names, sizes, strict=True), (f"{len(files)} files", sum(sizes))]
    return "\n".join(f"  {name:<{width}}  {_size(size):>9}" for name, size in rows)


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.{int(unit != 'B')}f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _short(error: BaseException) -> str:
    """Return the innermost message on one line, addresses without their query, which may be a signature."""
    last = list(_causes(error))[-1]
    status = next((link for link in _causes(error) if getattr(link, "response", None) is not None), last)
    text = " ".join(str(status).split()) or type(status).__name__
    return redact(re.sub(r"\?[\w%.-]+=\S+", "", text)).rstrip(".")[:300]
