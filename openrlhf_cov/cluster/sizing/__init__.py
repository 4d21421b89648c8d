"""Sizes of a run: memory of each role, placement on GPUs, updates of a step."""
