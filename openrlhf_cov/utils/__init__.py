"""Helpers without a subject of their own: files of JSON lines, the terminal, metrics, redaction of secrets.

Several packages use each of them. A module that belongs to one package is not here.
"""
