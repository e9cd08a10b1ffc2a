"""Time of one update in a pipeline of stages: the paper's closed form, and an exact simulation.

See docs/timeline.md.
"""
