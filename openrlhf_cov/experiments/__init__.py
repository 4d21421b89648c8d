"""Experiments that run on a laptop or through the trainer: the lab, studies over seeds, and the paper's exhibits.

Embedded tasks, which need no download, belong here too. How a policy is updated does not: the lab calls ``models``,
and studies of the trainer call ``trainer``.
"""
