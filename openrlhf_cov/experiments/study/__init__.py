"""Studies: methods, configurations and seeds from one specification, and the page with their results.

A study starts runs of the lab or of the trainer. How a single run trains does not belong here.
"""
