"""The samples of a rollout are cut here: shares of the ranks, update windows and micro-batches.

What is computed on them stands in ``openrlhf_cov.trainer.update``.
"""
