"""The models as one rank holds them: loading, forward passes, DeepSpeed, and the policy as updates and scoring see it.

Losses and updates stand in ``trainer``; what Ray calls stands in ``openrlhf_cov.trainer.ray``.
"""
