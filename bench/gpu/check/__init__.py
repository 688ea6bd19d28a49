"""Modules of scripts/gpu_check."""
