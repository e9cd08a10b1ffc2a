"""Measures one operator at one workload, under the conditions of a training step."""
