"""Prompts and golds, one module per data set; `arithmetic` is the world that needs no download."""
