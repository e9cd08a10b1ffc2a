"""Measures one operator at one shape, under the conditions of a step."""
