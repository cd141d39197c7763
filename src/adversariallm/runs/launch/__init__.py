"""Where runs are worked on: in this process, in local processes, or in Slurm jobs.

Launchers only supply processes; which run is whose, what is done and what is left the store alone
decides.
"""
