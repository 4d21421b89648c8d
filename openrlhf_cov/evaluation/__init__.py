"""Evaluation on benchmarks: their data, prompts, grading, statistics, tables and pages.

The package samples from a model through any backend that yields completions. ``trainer`` and the command ``evaluate``
start the engines and servers.
"""
