"""Training sets and prompts: read data sets, check labels, remove duplicates, write rows, apply templates.

A row here is text with a label. Benchmarks belong to ``evaluation``, and the meaning of a label to ``rewards``.
"""
