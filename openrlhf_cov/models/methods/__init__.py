"""The methods against entropy collapse, one file each."""

from openrlhf_cov.models.method import Method
from openrlhf_cov.models.methods import (
    cegppo,
    cispo,
    clip_cov,
    dppo,
    entrocraft,
    gmpo,
    gspo_token,
    kl_cov,
    nsr,
    passk,
    psr,
    qae,
    sapo,
    top_entropy,
    w_reinforce,
)

MODULES = (
    clip_cov,
    kl_cov,
    top_entropy,
    cispo,
    gspo_token,
    dppo,
    sapo,
    cegppo,
    gmpo,
    qae,
    passk,
    psr,
    nsr,
    w_reinforce,
    entrocraft,
)
METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in MODULES}
