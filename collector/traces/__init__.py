"""Profiler traces: reading them, and attributing kernels to the calls that launched them."""
