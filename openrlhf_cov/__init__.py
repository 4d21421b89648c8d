"""Study and control entropy collapse in RL for reasoning models: Clip-Cov, KL-Cov and 34 other methods on OpenRLHF.

Imports point down this list; ``pyproject.toml`` has the layers, which are checked.

    cli           commands: parse flags, call, print
    experiments   the lab, studies, the paper's exhibits, embedded tasks
    trainer       training with Ray, vLLM and DeepSpeed: the loop, the updates, the roles
    integrations  the methods in the trainers of TRL and verl
    evaluation    benchmarks: sample a model, grade, compare
    analysis      read runs: laws, report, dashboard, pages
    cluster       the hosts: sizes, checks, the connection to Ray, hosts without a GPU
    data          training sets and the text of prompts
    models        the methods (``models/methods``: 36, one of them a control), their losses, the policy's output head
    rewards       graders of mathematics and programs, and the reward service
    utils         files, the terminal, metrics

Two files beside the packages hold settings: ``config.py`` of a run, ``settings.py`` how a setting is declared.
"""
