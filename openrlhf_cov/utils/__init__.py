"""Helpers without a subject of their own: files of JSON lines, the terminal, metrics, redaction of secrets.

A module that belongs to one package is not here.
"""
