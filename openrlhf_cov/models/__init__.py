"""The methods and the losses as pure functions, and the policy's output head.

A method is one file of ``methods/``. The code here knows tensors, not Ray, DeepSpeed or files; ``trainer`` and the
lab call it in the same way.
"""
