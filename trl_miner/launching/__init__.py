"""Start a vLLM server and a training on several GPUs, and end them together: `trl-miner launch`."""
