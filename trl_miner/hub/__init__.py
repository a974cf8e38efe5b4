"""Publish runs on the Hub: find the model, assemble the folder with its card, push it."""
