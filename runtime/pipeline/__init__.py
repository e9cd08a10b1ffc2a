"""Time of one update in a pipeline: the paper's closed form, and an exact simulation (docs/timeline.md)."""
