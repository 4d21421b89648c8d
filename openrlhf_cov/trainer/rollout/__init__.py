"""Rollouts: prompts, requests to the engines, rewards, and dynamic sampling.

The actors of the engines belong to ``ray``, and what is computed from the samples belongs to the modules of
``trainer``.
"""
