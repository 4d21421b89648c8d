"""The machines: memory and placement of a run, checks of a host, the connection to Ray, hosts without a GPU.

Only ``cpu_host.py`` knows what a host without an accelerator needs. What runs on the machines is in ``trainer``.
"""
