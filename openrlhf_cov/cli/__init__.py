"""The commands. Each module parses its flags, calls the package that does the work, and prints the result.

Nothing outside this package imports a command. A command that other code needs as well has its flags and its work in
the package of its subject, and only ``main`` here.
"""
