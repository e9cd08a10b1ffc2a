"""Sizes of element types, by torch's names; one element of the 4-bit type holds two entries."""

from collections.abc import Mapping

ELEMENT_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float4_e2m1fn_x2": 1,
}
