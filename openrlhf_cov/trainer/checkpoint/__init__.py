"""Checkpoints: what is saved and restored, which run a folder holds, and how a run ends.

Checks of a folder before a run starts belong to ``preflight``.
"""
