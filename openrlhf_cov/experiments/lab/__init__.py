"""Training of an embedded task in one process, without Ray, vLLM and DeepSpeed.

Methods and losses come from ``models``; the tasks and their base policies come from ``tiny_task``.
"""
