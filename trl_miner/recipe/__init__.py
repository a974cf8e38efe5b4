"""Recipes, as far as their problems: where they are, how they and command lines are parsed, the
problems that they train on, and the preview that shows those and refuses some."""
