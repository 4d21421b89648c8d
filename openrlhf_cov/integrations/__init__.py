"""The methods in other trainers. ``trl`` needs TRL and ``verl`` needs verl; neither needs OpenRLHF."""
