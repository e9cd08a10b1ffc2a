"""Predicted steps beside measured ones: published tables, real training here, calibration."""
