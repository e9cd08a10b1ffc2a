"""Profiler traces: read, and kernels given to what ran them."""
