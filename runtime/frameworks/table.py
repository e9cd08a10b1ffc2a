"""The frameworks by name."""

from collections.abc import Mapping

from kernelcast.runtime.frameworks.deepspeed import DEEPSPEED
from kernelcast.runtime.frameworks.megatron import MEGATRON
from kernelcast.runtime.frameworks.rows import Framework
from kernelcast.runtime.frameworks.torchtitan import TORCHTITAN

FRAMEWORKS: Mapping[str, Framework] = {
    framework.name: framework for framework in (MEGATRON, TORCHTITAN, DEEPSPEED)
}
