"""Sizes of element types, by torch's names."""

from collections.abc import Mapping
from types import MappingProxyType

ELEMENT_BYTES: Mapping[str, int] = MappingProxyType(
    {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
)
