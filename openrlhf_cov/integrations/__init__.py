"""The methods in other trainers. ``trl`` needs TRL and ``verl`` needs verl; neither needs OpenRLHF.

How a method works does not belong here, but in ``models``, which these modules call.
"""
