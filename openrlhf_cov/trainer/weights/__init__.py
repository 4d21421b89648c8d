"""New weights for the engines: how they are sent, when, and the check that they arrived.

Sending over NCCL and CUDA IPC is upstream's code, which ``ray.upstream_sender`` calls.
"""
