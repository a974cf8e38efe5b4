"""What is trained on and scored: benchmarks, the embedded world, own files, prompts, a preview."""
