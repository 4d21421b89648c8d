"""Embedded tasks: problems, rewards and base policies that are made on this machine."""
