"""The settings that say what the rows of a data set hold, of recipes and of `trl-miner eval`."""

DATA_SETTINGS = {
    "dataset_prompt_column": "Column with the prompts. Another than prompt holds questions, from"
    " which prompts are built, or messages.",
    "dataset_solution_column": "Column with the golds, or a field of one: reward_model.ground_truth.",
    "dataset_options_column": "Column with the options of multiple-choice questions.",
    "options_columns": "In its place a column for each option, in order: [A, B, C, D].",
    "context_columns": "Columns that are shown with the question: a passage before it, an input"
    " behind it.",
    "first_option": "Where golds number the options: the number of the first, 0 or 1. Needed where"
    " no row has 0 or the number of the last.",
    "answer_pattern": "A regular expression that finds the gold in the column with the golds, such"
    " as '#### (.+)' for GSM8K. The last match counts, or its first group.",
    "answer_after": "The gold follows the last of these words, such as 'So the answer is'.",
    "decimal_comma": "Read 15,50 as 15.5, in golds and in answers. false: as 15 and 50.",
}
