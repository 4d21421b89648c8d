"""The methods against entropy collapse, one file each."""

from openrlhf_cov.models.method import Method
from openrlhf_cov.models.methods import cispo, clip_cov, kl_cov, top_entropy
from openrlhf_cov.models.methods import cegppo, dppo, gmpo, gspo_token, sapo
from openrlhf_cov.models.methods import nsr, passk, psr, qae, w_reinforce

SURROGATES = (cispo, gspo_token, dppo, sapo, cegppo, gmpo)
ESTIMATORS = (qae, passk, psr, nsr, w_reinforce)
MODULES = (clip_cov, kl_cov, top_entropy, *SURROGATES, *ESTIMATORS)
METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in MODULES}
