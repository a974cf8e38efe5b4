"""Where the base model of the embedded world is."""

from .arithmetic import FOLDER, MODEL


def find_model(name: str) -> str:
    """Return what `from_pretrained` takes: the name itself or, for the embedded world, the folder
    of its base model."""
    return str(FOLDER) if name == MODEL else name
