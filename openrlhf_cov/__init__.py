"""Covariance-selected policy losses, and 25 other methods against entropy collapse, for RL with OpenRLHF.

Imports point down this list; ``pyproject.toml`` has the layers, which are checked.

    cli           commands: parse flags, call, print
    experiments   the lab, studies, the paper's exhibits, embedded tasks
    trainer       training with Ray, vLLM and DeepSpeed: the loop, the updates, the roles
    evaluation    benchmarks: ask a model, grade, compare
    analysis      read runs: laws, report, dashboard, pages
    cluster       the hosts: sizes, checks, the connection to Ray, hosts without a GPU
    data          training sets and the text of prompts
    models        the methods, their losses and the policy's output head
    rewards       graders of mathematics and programs, and the reward service
    utils         files, the terminal, metrics
"""
