"""Checkpoints: what is saved and restored, which run a folder holds, and how a run ends."""
