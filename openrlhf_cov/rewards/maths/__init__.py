"""This package grades answers to mathematics problems against their labels.

The choice of a grader for each row, the processes in which formulas are computed, and the grading of programs do not
belong here: see ``sources``, ``pool`` and ``code`` beside this package. Read ``grading`` first, then ``extraction``
and ``boxes`` (which text is the answer), ``normalization``, ``numerals``, ``units``, ``latex``, ``shapes`` and
``names`` (the parts of a text), ``labels``, ``prompt`` and ``grammar`` (how an answer is read), and last ``values``,
``rules`` and ``symbolic`` (whether two formulas are equal).
"""
