"""Checks before a run starts, and the dry run, which prints what would be started."""
