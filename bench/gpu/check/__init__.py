"""What scripts/gpu_check is made of."""
