"""The settings of a recipe, and of `trl-miner eval`, that say what a data set holds."""

from dataclasses import dataclass

from ..common.names import setting


@dataclass
class DataArguments:
    """Where the rows are, which columns hold what, and how questions become prompts."""

    dataset_name: str | None = setting(
        None,
        "A file (csv, tsv, json, jsonl, parquet, xlsx), a folder of files, a data set's name on the"
        " Hub, or trl_miner/arithmetic.",
    )
    dataset_config: str | None = setting(None, "Configuration of the data set on the Hub.")
    dataset_train_split: str = setting("train", "Split to train on.")
    dataset_test_split: str = setting(
        "test", "Split that held-out problems are drawn from. Without one, from the train split."
    )
    sheet: str | None = setting(None, "Sheet of a spreadsheet.")
    dataset_prompt_column: str | None = setting(
        None, "Column of the questions, or COLUMN.FIELD for a field of one."
    )
    dataset_solution_column: str | None = setting(
        None, "Column of the reference answers, or COLUMN.FIELD, as in `reward_model.ground_truth`."
    )
    dataset_options_column: str | None = setting(
        None, "Column that holds the options of multiple-choice questions."
    )
    options_columns: list[str] | None = setting(
        None, "Columns with one option each, in order, as in `[A, B, C, D]`."
    )
    first_option: int | None = setting(
        None, "Number of the first option, 0 or 1, where reference answers are numbers of options."
    )
    answer_pattern: str | None = setting(
        None,
        "Regular expression that finds the reference answer in its column, as in `#### (.+)`. The"
        " last match counts, and of it the group, if there is one.",
    )
    decimal_comma: bool = setting(
        False, "Read 15,50 as 15.5 in reference answers and completions, not as a list."
    )
    math_accept_unboxed: bool = setting(
        False, "Let math_reward take an answer without \\boxed{}: the last one in the text."
    )
    prompt_style: str | None = setting(
        None,
        "chat (messages), plain (text), or verbatim (prompts as they stand). The default suits the"
        " model: as it was trained, else chat where there is a chat template and the name does not"
        " say base.",
    )
    system_prompt: str | None = setting(None, "System prompt, in place of the paper's instruction.")
    prompt_template: str | None = setting(
        None, "Text with {question} in it, in place of the paper's words."
    )
