"""Evaluation on benchmarks: their data, prompts, grading, statistics, tables and pages.

The package asks a model through any backend that yields completions. Engines and servers are started elsewhere: by
``trainer`` and by the command ``evaluate``.
"""
