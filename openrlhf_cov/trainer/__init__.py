"""Training with Ray, vLLM and DeepSpeed; ``loop.py`` is the algorithm of a global step.

The stages of a step are records (``records.py``) that pass from the rollout to the advantages and the update. The
mathematics of methods is in ``models``, and what is measured from files after a run is in ``analysis``.
"""
