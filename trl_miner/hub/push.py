"""Push a run: its weights, tokenizer, card, picture and scores, and nothing else."""

import json
import re
import tempfile
import time
from pathlib import Path

from ..common.redaction import hide
from ..data.prompts import FILE as PROMPT_FORM
from ..evaluation.held_out import FILE as HELD_OUT
from ..run.folder import damage, newest_checkpoint, step_of
from ..run.record import RECORD, read_record
from .card import CARD, PICTURE, make_card

WEIGHTS = ["model*.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"]
# Beside them, what a model needs to run; no pickles, optimizer states or logs.
OTHERS = [
    *"config.json generation_config.json adapter_config.json *.jinja".split(),
    *"tokenizer.json tokenizer_config.json *.model special_tokens_map.json".split(),
    *"added_tokens.json vocab.* merges.txt processor_config.json".split(),
    PROMPT_FORM,
]
OF_RUN = [HELD_OUT, PICTURE]
# Of an earlier push: weights by other names would be loaded in the place of the new ones.
REPLACED = [*WEIGHTS, "adapter_config.json", PROMPT_FORM, *OF_RUN]
WAIT_SECONDS = 5.0  # before the second try


def push(
    folder: Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    evaluation: Path | None = None,
    token: str | None = None,
) -> str:
    """Push the model of a run's folder or checkpoint, and return its address.

    Args:
        folder: Of a killed run, the newest whole checkpoint is pushed; of a LoRA run, the adapter
            alone.
        repo_id: USER/NAME; it is created where it is missing.
        private: Whether a new repository is.
        revision: Branch to push to, which is created where it is missing.
        evaluation: Folder of `trl-miner eval`, for the card's scores.
        token: Default: HF_TOKEN, or that of `hf auth login`.

    Raises:
        ValueError: There is no model, it is damaged, or a file leads out of the folder.
        OSError: The Hub refuses, or cannot be reached at a second try.
    """
    from huggingface_hub import HfApi

    api, weights = HfApi(token=token, library_name="trl_miner"), find_weights(folder)
    run = weights.parent if (weights.parent / RECORD).is_file() else weights
    scores = json.loads((evaluation / "scores.json").read_text("utf-8")) if evaluation else None

    def send(target: Path) -> str:
        page = api.create_repo(repo_id, private=private or None, exist_ok=True)
        if revision:
            api.create_branch(page.repo_id, branch=revision, exist_ok=True)
        api.upload_folder(
            repo_id=page.repo_id, folder_path=target, revision=revision,
            commit_message="Upload model", delete_patterns=REPLACED,
        )  # fmt: skip
        return str(page)

    with tempfile.TemporaryDirectory(prefix="trl-miner-push-") as name:
        target, step = Path(name), step_of(weights)
        link_files(run, OF_RUN, run, target)
        link_files(weights, WEIGHTS + OTHERS, run, target)
        card = make_card(target, read_record(run), name=repo_id, evaluation=scores, step=step)
        (target / CARD).write_text(card, "utf-8")
        for wait in WAIT_SECONDS, 0:
            try:
                return send(target)
            except Exception as error:
                said = f"Push to {repo_id} failed: {_said(error)}."
                if not wait:
                    raise OSError(
                        f"{said} Check the token: `hf auth login`, or HF_TOKEN."
                    ) from None
                print(said, "Trying again.", flush=True)
                time.sleep(wait)
    raise AssertionError("unreachable")


def _said(error: Exception) -> str:
    """Return what an error says on one line, without a token and the signature of an address."""
    return re.sub(r"\?\S+", "", hide(" ".join(str(error).split())))[:300]


def find_weights(folder: Path) -> Path:
    """Return the folder with a run's newest weights: its own, or a checkpoint's.

    Raises:
        ValueError: There are none, or they are damaged.
    """
    state, newest = folder / "trainer_state.json", newest_checkpoint(folder)
    ended = json.loads(state.read_text("utf-8"))["global_step"] if state.is_file() else -1
    if newest and (step_of(newest) or 0) > ended:
        print(f"{folder} holds no finished model: {newest.name} is pushed.", flush=True)
        return newest
    fault = "" if step_of(folder) is None else damage(folder)
    if fault or not [*folder.glob("*model*.safetensors")]:
        raise ValueError(
            f"No whole model in {folder}{fault and f': {fault}'}. Give the output_dir of a run, or"
            " another checkpoint."
        )
    return folder


def link_files(source: Path, patterns: list[str], run: Path, target: Path) -> None:
    """Fill `target` with links to what patterns name in a folder.

    Raises:
        ValueError: One leads out of the run's folder, which may be a stranger's.
    """
    for pattern in patterns:
        for path in source.glob(pattern):
            if not path.resolve().is_relative_to(run.resolve()):
                raise ValueError(f"{path} leads out of the run. Put the file itself there.")
            (target / path.name).symlink_to(path.resolve())
