"""What ships as package data: models by name; bundles, fabrics, stacks and the device table join them here."""

from pathlib import Path

MODELS = Path(__file__).resolve().parent / "models"
"""A TOML file per built-in model, with its source."""
