"""The live dashboard of training runs in a terminal: the state of a run, its alerts, and what the screen shows.

It reads the same files as the report and changes none of them. The fit of the entropy law belongs to ``analysis``.
"""
