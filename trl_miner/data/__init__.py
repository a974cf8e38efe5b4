"""Training sets, benchmarks and embedded worlds: prompts with their gold answers."""
