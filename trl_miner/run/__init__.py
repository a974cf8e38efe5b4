"""A run: from a recipe to a trained folder."""
