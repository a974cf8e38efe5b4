"""What a rollout is paid: every method as pure functions of tensors, one file each. Needs torch alone."""
