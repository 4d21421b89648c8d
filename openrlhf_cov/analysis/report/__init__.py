"""The report of training runs: a page, figures, tables and exported numbers.

What is computed from a single run or several belongs to ``analysis``; how a chart is drawn belongs to ``pages``.
"""
