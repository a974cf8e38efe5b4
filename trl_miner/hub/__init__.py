"""Publish a run on the Hub: its card, and what goes with it."""
