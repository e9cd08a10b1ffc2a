"""Collectives between processes: the processes, their groups, and how long a collective takes."""
