"""Checks before a run starts, and the dry run, which prints what would be started.

Checks of a single flag's value belong to ``flags`` and to the settings in ``openrlhf_cov.config``.
"""
