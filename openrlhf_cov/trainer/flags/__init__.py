"""The flags of a training: their declaration, and what follows from one flag for another.

``upstream.py`` declares the flags of OpenRLHF. Those of this project are the fields of the classes in
``openrlhf_cov.config`` and ``openrlhf_cov.models.cov_config``; ``parser.py`` adds them to the parser and checks them.
Checks that read files or the cluster belong to the preflight.
"""
