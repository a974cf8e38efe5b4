"""Push a run: its weights, tokenizer, card, picture and scores, and nothing else."""

from pathlib import Path


def push(
    folder: Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    evaluation: Path | None = None,
    token: str | None = None,
) -> str:
    """Push the model of a run folder or checkpoint, and return its address. Of a killed run, the
    newest whole checkpoint is pushed; of a LoRA run the adapter alone.

    Raises:
        ValueError: No model is there, or a file leads out of the folder.
        OSError: The Hub refused, twice where trying again may help.
    """
    raise NotImplementedError
