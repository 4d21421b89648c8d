"""Charts and pages: one description of a chart, drawn in a page, as a file or in a terminal.

What a chart shows is described by the packages that have the numbers. Only a renderer of this package knows Plotly,
matplotlib or plotext.
"""
