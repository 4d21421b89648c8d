"""The commands: each module parses its flags, calls the package that does the work, and prints the result.

Nothing outside this package imports a command. A command whose work other code needs as well has its flags and its
work in the package of its subject, and only ``main`` here.
"""
