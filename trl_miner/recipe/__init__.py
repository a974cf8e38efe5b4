"""Recipes: found, read, listed."""
