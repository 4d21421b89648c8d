"""The methods against entropy collapse, one file each."""

from openrlhf_cov.models.method import Method
from openrlhf_cov.models.methods import (
    adaptive_clip,
    adaptive_entropy,
    cispo,
    clip_cov,
    cw_grpo,
    entropy_advantage,
    erc,
    kl_cov,
    positive_weight,
    random_drop,
    repo_r,
    stare,
    steer,
    top_entropy,
)

MODULES = (
    clip_cov,
    kl_cov,
    top_entropy,
    erc,
    random_drop,
    steer,
    cw_grpo,
    stare,
    positive_weight,
    entropy_advantage,
    repo_r,
    cispo,
    adaptive_clip,
    adaptive_entropy,
)
"""What selects comes first: the metrics of selected tokens are those of the first method that picks any."""
METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in MODULES}
