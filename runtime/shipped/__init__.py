"""What ships as package data: models by name, the device table; bundles, fabrics and stacks."""

from pathlib import Path

MODELS = Path(__file__).resolve().parent / "models"
"""A TOML file per built-in model, with its source."""

FAMILIES = Path(__file__).resolve().parent / "families.toml"
"""Which fields of Hugging Face's configurations give which fields of a model, by family."""

DEVICES = Path(__file__).resolve().parent / "devices.toml"
"""Published peaks of devices, a source per row."""

FABRICS = Path(__file__).resolve().parent / "fabrics"
"""A TOML file per described fabric, with its source."""

LINKS = Path(__file__).resolve().parent / "links.toml"
"""What links of a kind take and reach, of fabrics that were measured."""

HARDWARE = Path(__file__).resolve().parent / "hardware.toml"
"""Hardware that can be named: its bundle, who answers for the rest, its usual fabric."""

TRANSFERS = Path(__file__).resolve().parent / "transfers.csv"
"""How far operators were off that were carried from one device to another."""

BUNDLES = Path(__file__).resolve().parent / "bundles"
"""Shipped bundles; `make datasets` makes them from datasets/."""

SUMS = BUNDLES / "SHA256SUMS"
"""Their digests, as sha256sum prints them, and as comments their manifests' digests; `make datasets` writes it."""

ATTENTION_KERNELS = Path(__file__).resolve().parent / "attention_kernels.toml"
"""Kernels of fused attention: where they run, which were measured, their published rates."""

POWER = Path(__file__).resolve().parent / "power.toml"
"""What devices draw, of those whose power was measured."""

MEMORY_ERRORS = Path(__file__).resolve().parent / "memory_errors.toml"
"""How far measured memory lies from predicted."""

SUSTAINED = Path(__file__).resolve().parent / "sustained.toml"
"""Rates of matrix products that devices hold under load."""

STACKS = Path(__file__).resolve().parent / "stacks"
"""What software stacks do to sums of operators; `make stacks` makes them from the measured steps in validate/."""

STEP_ERRORS = Path(__file__).resolve().parent / "step_errors.json"
"""What sums of operators got wrong in the measured steps in validate/; `make step-errors` writes it."""

STEP_SPREAD = Path(__file__).resolve().parent / "step_spread.csv"
"""How single steps scatter around their median, and start-up times; `make step-spread` writes it."""
