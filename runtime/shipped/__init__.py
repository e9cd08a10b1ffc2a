"""What ships as package data: models by name, the device table; bundles, fabrics and stacks join them here."""

from pathlib import Path

MODELS = Path(__file__).resolve().parent / "models"
"""A TOML file per built-in model, with its source."""

DEVICES = Path(__file__).resolve().parent / "devices.toml"
"""Published peaks of devices, a source per row."""

FABRICS = Path(__file__).resolve().parent / "fabrics"
"""A TOML file per described fabric, with its source."""

HARDWARE = Path(__file__).resolve().parent / "hardware.toml"
"""Hardware whose operators ship, with its usual fabric."""

BUNDLES = Path(__file__).resolve().parent / "bundles"
"""Those bundles; `make datasets` makes them from datasets/."""
