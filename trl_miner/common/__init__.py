"""What every folder may use: errors, texts, progress, values of settings. It imports nothing else
of ours."""
