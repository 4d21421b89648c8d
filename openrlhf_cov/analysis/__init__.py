"""The analysis of finished and running runs, from their files alone: read, compute, describe charts, write pages.

Report and dashboard belong here. Nothing here trains, and training does not import this package.
"""
