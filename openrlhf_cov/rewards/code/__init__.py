"""The rule for programs: find the program in a response, run it on the tests of its label, and grade it.

``sandbox.py`` runs programs on this machine and ``fusion.py`` through a service; both compare outputs and values
outside the sandbox. Code that runs inside the sandbox belongs to ``inside``. Answers in mathematics belong to
``maths``, and the choice between the rules to ``openrlhf_cov/rewards/sources.py``.
"""
