"""Upstream's models import on a CPU host only after the stand-ins are installed; settings of covariance."""

import pytest

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.models.cov_config import CovConfig

cpu_host.install()


@pytest.fixture(scope="session")
def cov_config():
    """Function (cov_type, ratio, band of Clip-Cov, ...) -> CovConfig; ratios may be as large as 1."""

    def make(cov_type, ratio, lower=-9.0, upper=9.0, **others):
        band = {"clip_cov_lb": lower, "clip_cov_ub": upper} if cov_type == "clip_cov" else {}
        settings = {f"{cov_type}_ratio": ratio} | band | others
        return CovConfig(cov_type=cov_type, allow_large_cov_ratio=True, **settings)

    return make
