"""Embedded tasks: problems, rewards and base policies that are made on this machine, and the demo that trains on them.

Training in one process belongs to ``lab``.
"""
