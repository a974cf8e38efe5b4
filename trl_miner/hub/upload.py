"""Push to the Hub: what goes to which branch, again where an error may pass, and explained where it
does not."""

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ..common.redaction import learn, redact
from ..data.prompt_form import FILE as PROMPT_FORM
from ..runs.held_out import FILE as HELD_OUT
from ..runs.models import Model
from .folder import LEADERBOARDS, assemble, result_path
from .model_card import PICTURE

T = TypeVar("T")
# 412: somebody else has committed meanwhile
_TRANSIENT_STATUS = (408, 412, 425, 429, 500, 502, 503, 504)
_OFFLINE = "OfflineModeIsEnabled"
# Of an earlier push: weights under other names would be loaded instead of the new ones, the rest
# taken for theirs.
_REPLACED = (
    *"model*.safetensors model.safetensors.index.json adapter_model.safetensors".split(),
    "adapter_config.json",
    PROMPT_FORM,
    HELD_OUT,
    PICTURE,
    *map(result_path, LEADERBOARDS),
)


def check_repo_id(repo_id: str) -> None:
    """Raise ValueError unless it is USER/NAME."""
    from huggingface_hub.utils import validate_repo_id

    if repo_id.count("/") != 1:
        raise ValueError(
            f"--repo-id {repo_id!r} is not USER/NAME. Put your user name on the Hub in front."
        )
    validate_repo_id(repo_id)


def write_folder(model: Model, target: Path, name: str, benchmarks: Any) -> None:
    """Write what would be pushed into `target`, a new folder. If a file must not be pushed, nothing
    is written.

    `name` is the repository's, and `benchmarks` come from a `scores.json`.
    """
    if target.exists():
        raise ValueError(
            f"--dry-run must name a new folder: got {target}. Remove it, or name another."
        )
    with tempfile.TemporaryDirectory(prefix="trl-miner-push-") as folder:
        assemble(model, Path(folder), name=name, benchmarks=benchmarks)
        shutil.copytree(folder, target)


def push_model(
    model: Model,
    repo_id: str,
    *,
    private: bool | None,
    revision: str | None,
    benchmarks: Any = None,
    message: str | None = None,
    token: str | None = None,
) -> str:
    """Push a model, and create the repository and the branch if they are missing. Return the
    address.

    What an earlier push has left beside it is removed from the repository's root. An OSError says
    what to do.
    """
    from huggingface_hub import HfApi, constants

    from .. import __version__

    learn({"token": token})
    api = HfApi(token=token, library_name="trl_miner", library_version=__version__)
    message = message or (
        "Upload model" if model.step is None else f"Upload model of step {model.step}"
    )
    branch = None if revision == "main" else revision
    with tempfile.TemporaryDirectory(prefix="trl-miner-push-") as folder:
        assemble(model, Path(folder), name=repo_id, benchmarks=benchmarks)

        def push() -> None:
            api.create_repo(repo_id, private=private, exist_ok=True)
            if branch:
                api.create_branch(repo_id, branch=branch, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id, folder_path=folder, revision=branch, commit_message=message,
                delete_patterns=list(_REPLACED),
            )  # fmt: skip

        try:
            with_retries(push, f"Push to {repo_id}")
        except Exception as error:
            raise OSError(explain(error, repo_id)) from error
    page = f"{constants.ENDPOINT}/{repo_id}"
    return f"{page}/tree/{quote(branch)}" if branch else page


def with_retries(action: Callable[[], T], title: str) -> T:
    """Call an action, five times at most as long as its error may pass: the network, 5xx, 429."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    def tell(state: Any) -> None:
        error = _short(state.outcome.exception())
        print(f"{title} failed: {error}. Next try in {state.upcoming_sleep:.0f} s.", flush=True)

    return Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_exponential(multiplier=2, max=60),
        stop=stop_after_attempt(5),  # inside each of which huggingface_hub retries, too
        before_sleep=tell,
        reraise=True,
    )(action)


def is_transient(error: BaseException) -> bool:
    """Return whether trying again may help."""
    causes = _causes(error)
    if statuses := [
        cause.response.status_code
        for cause in causes
        if getattr(cause, "response", None) is not None
    ]:
        return statuses[0] in _TRANSIENT_STATUS
    # TransportError by name: huggingface_hub uses httpx before version 2, and httpx2 since
    names = {base.__name__ for cause in causes for base in type(cause).__mro__}
    return (
        bool(names & {"ConnectionError", "TimeoutError", "TransportError"})
        and _OFFLINE not in names
    )


def explain(error: BaseException, repo_id: str) -> str:
    """Return an error of the Hub as a sentence, with what to do."""
    hint = (
        "Check the token (`hf auth login`, or HF_TOKEN), which must have the right to write there,"
        " and push again."
    )
    if is_transient(error):
        hint = (
            "The Hub or the network has a problem: try again later. What has arrived is not sent"
            " twice."
        )
    return f"Push to {repo_id} failed: {_short(error)}. {hint}"


def _causes(error: BaseException | None) -> list[Any]:
    """Return an error and those that it was raised from."""
    return [] if error is None else [error, *_causes(error.__cause__)]


def _short(error: BaseException) -> str:
    """Return the message of the Hub's answer, else the innermost, on one line. A query may be a
    signature and goes."""
    causes = _causes(error)
    told = next(
        (cause for cause in causes if getattr(cause, "response", None) is not None), causes[-1]
    )
    text = " ".join(str(told).split()) or type(told).__name__
    return redact(re.sub(r"\?[\w%.-]+=\S+", "", text)).rstrip(".")[:300]
