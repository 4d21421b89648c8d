"""Training sets and prompts: read data sets, check labels, remove duplicates, write rows, apply templates.

Benchmarks belong to ``evaluation``, and the meaning of a label to ``rewards``.
"""
