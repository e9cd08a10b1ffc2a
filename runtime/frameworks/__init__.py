"""A layout as arguments of a training framework, and arguments as a layout: Megatron-LM, torchtitan, DeepSpeed, LLM
Foundry and NeMo; scripts of accelerate are read.

Every framework is a table of rows; `write` and `read` go through it.
"""

NAMES = ("megatron-lm", "torchtitan", "deepspeed", "llm-foundry", "nemo")
"""The frameworks, in the order in which they are listed."""
