"""The size of a run: memory of each role, placement on GPUs, updates of a step.

Everything is computed from flags and the shape of the model; no GPU is asked.
"""
