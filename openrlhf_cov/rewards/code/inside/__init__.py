"""The code that runs inside the sandbox: it starts a program, limits its system calls, and runs its tests.

These modules import only the standard library, and each other by their plain names, as the sandbox has nothing else.
Nothing here decides whether a program is correct: a program may take over its own process, so
``openrlhf_cov/rewards/code/judge.py`` compares results outside.
"""
