"""The methods against entropy collapse, one file each."""

from openrlhf_cov.models.method import Method
from openrlhf_cov.models.methods import cispo, clip_cov, kl_cov, top_entropy

MODULES = (clip_cov, kl_cov, top_entropy, cispo)
METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in MODULES}
