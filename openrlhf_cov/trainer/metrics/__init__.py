"""The metrics of a step: observed on the ranks, averaged over samples and sources, and written to files and trackers.

Formulas of diagnostics stand in ``models``; the analysis of finished runs is the package ``analysis``.
"""
