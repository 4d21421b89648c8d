"""Rule-based rewards: graders of mathematics and of programs, the sandbox, and the reward service.

A grader reads a response and a label and returns a grade. How rewards become advantages is in ``trainer`` and
``models``.
"""
