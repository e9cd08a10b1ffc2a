"""A layout as arguments of a training framework, and arguments as a layout: Megatron-LM, torchtitan, DeepSpeed.

Every framework is a table of rows (`megatron.py`, `torchtitan.py`, `deepspeed.py`); `write` and `read` go through it.
"""

NAMES = ("megatron-lm", "torchtitan", "deepspeed")
"""The frameworks, in the order in which they are listed."""
