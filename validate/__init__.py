"""Compares predicted steps with measured ones: published tables, real training, calibration."""
