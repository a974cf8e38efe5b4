"""The rows to train on, and those held out: of a file, a folder, a data set, a benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .prompts import Kind, PromptForm
from .settings import DataArguments

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class TrainingData:
    """What a run trains on, and what it scores.

    Attributes:
        train: Rows with `prompt` (text or messages), `solution` (text), `options` and `level`
            where there are some, and the columns of the source that are called otherwise, which
            reach reward functions.
        problems: The rows held out, with the same columns; None: none.
        form: How questions become prompts, for `save_form`; None: not known.
        kind: "choice" where the rows have options, else "math": which reward suits them.
        about: What was read, in words.
    """

    train: "Dataset"
    problems: "Dataset | None"
    form: PromptForm | None
    kind: Kind
    about: str


def load_training_data(
    args: DataArguments,
    model: str,
    tokenizer: Any,
    held_out: float | str | None = 0,
    mixture: Any = None,
    *,
    needs_answers: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
) -> TrainingData:
    """Load what a recipe trains on.

    Args:
        args: The data's settings.
        model: Name or folder of the model, whose form of prompts is used.
        tokenizer: The model's.
        held_out: A number of problems, a share below 1, or a benchmark (`aime24`, `mine=PATH`).
        mixture: TRL's `DatasetMixtureConfig`, in place of `dataset_name`.
        needs_answers: Whether a reward function grades against reference answers. Without one
            the rows may lack them, and prompts stand as they are.
        template_kwargs: `chat_template_kwargs` of the run, kept in the form.

    Raises:
        ValueError: The source cannot be read, or no usual name says which column holds what.
    """
    raise NotImplementedError
