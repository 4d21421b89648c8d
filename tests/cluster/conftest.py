"""Upstream's modules import on a CPU host only with the stand-ins installed."""

from openrlhf_cov.cluster import cpu_host

cpu_host.install()
