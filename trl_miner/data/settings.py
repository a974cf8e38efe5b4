"""The settings that say what the rows of a data set hold, of recipes and of `trl-miner eval`."""

DATA_SETTINGS = {
    "dataset_prompt_column": "Column with the prompts. Under any other name than `prompt` it holds"
    " questions, from which prompts are built, or messages.",
    "dataset_solution_column": "Column with the reference answers, or a field of one, such as"
    " `reward_model.ground_truth`.",
    "dataset_options_column": "Column with the options of multiple-choice questions.",
    "options_columns": "Columns with one option each, in order, such as `[A, B, C, D]`. They replace"
    " `dataset_options_column`.",
    "context_columns": "Columns that are shown with the question: a passage before it, an input"
    " after it.",
    "first_option": "Number of the first option, 0 or 1, if the reference answers are numbers of"
    " options. It must be given if no row shows which it is.",
    "answer_pattern": "Regular expression that finds the reference answer in its column, such as"
    " `#### (.+)` for GSM8K. The last match counts, and in it the first group, if there is one.",
    "answer_after": "Words after which the reference answer stands in its column, such as `So the"
    " answer is`. Their last occurrence counts.",
    "decimal_comma": "Read 15,50 as 15.5 in reference answers and completions. If false, it is read"
    " as the two numbers 15 and 50.",
}
