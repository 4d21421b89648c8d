"""The methods against entropy collapse, one file each.

A file has the settings of its method, its plan or its loss, and ``METHOD``, which describes it. What several methods
share belongs to ``models``.
"""

from importlib import import_module

from openrlhf_cov.models.method import Method
from openrlhf_cov.models.slots import Slot

# What selects comes first: selected tokens, in the metrics, are those of the first method of a run with a plan.
NAMES = (
    "clip_cov kl_cov lp_reg top_entropy erc clip_b clip_v random_drop steer cw_grpo stare positive_weight entropic "
    "entropy_advantage repo_r cispo gspo_token dppo sapo cegppo gmpo "
    "qae passk psr nsr w_reinforce entrocraft wapo dr_grpo lite_ppo maxrl rs_grpo ucpo prime "
    "adaptive_clip adaptive_entropy"
).split()
MODULES = tuple(import_module(f"{__name__}.{name}") for name in NAMES)
METHODS: dict[str, Method[Slot]] = {module.METHOD.name: module.METHOD for module in MODULES}
