"""What several parts need: errors in one line, secrets that are hidden, progress, and names."""
