"""The flags of OpenRLHF: their declaration, and what follows from one flag for another.

Flags of this project do not belong here: they are the fields of the classes in ``openrlhf_cov.config`` and
``openrlhf_cov.models.cov_config``. Checks that read files or the cluster belong to the preflight.
"""
