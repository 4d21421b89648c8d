"""Studies: methods, configurations and seeds from one specification, and the page with their results."""
