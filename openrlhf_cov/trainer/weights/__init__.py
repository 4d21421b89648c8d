"""New weights for the engines: how they are sent, when, and the check that they arrived.

Sending over NCCL and CUDA IPC is upstream's code, which ``openrlhf_cov.trainer.ray.upstream_sender`` calls.
"""
