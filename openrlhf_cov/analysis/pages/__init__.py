"""Charts and pages: one description of a chart, drawn for a page or as a file."""
