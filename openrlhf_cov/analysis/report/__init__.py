"""The report of training runs: a page, figures and tables."""
