"""Facts about this host and what they mean for a run, as ``openrlhf-cov doctor`` prints them.

Checks of a particular training run belong to ``openrlhf_cov.trainer.preflight``.
"""
