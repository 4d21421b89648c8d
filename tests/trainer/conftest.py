"""Upstream's modules import on a CPU host only after the stand-ins are installed."""

from openrlhf_cov.trainer import cpu_host

cpu_host.install()
