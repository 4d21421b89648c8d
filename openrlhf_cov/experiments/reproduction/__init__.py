"""The figures and tables of the paper as commands, and how these commands are carried out one after the other.

Flags of a recipe belong to the scripts of the recipes, from which these commands are read.
"""
