"""A bench, the point it runs, and the place where it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernelcast.runtime.operators import OPERATORS, Direction, Operator, Vector


class UnsupportedError(Exception):
    """This device cannot run the operator; the message is stored with the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The unit of measuring: all directions of an operator at a workload vector, planned for a role."""

    operator: str
    vector: Vector
    role: str = ""

    @property
    def law(self) -> Operator:
        return OPERATORS[self.operator]


@dataclass(frozen=True, slots=True)
class Place:
    """Device and precision of a bench."""

    device: torch.device
    dtype: torch.dtype

    def activation(self, *size: int) -> Tensor:
        """A random input that requires a gradient."""
        return torch.randn(size, device=self.device, dtype=self.dtype).requires_grad_()

    def parameter(self, *size: int) -> Tensor:
        """A small random weight with an existing gradient, as in every micro-batch of a step."""
        weight = (torch.randn(size, device=self.device, dtype=self.dtype) * 0.02).requires_grad_()
        weight.grad = torch.zeros_like(weight)
        return weight

    def indices(self, high: int, *size: int) -> Tensor:
        """Random integers below `high`."""
        return torch.randint(high, size, device=self.device)


@dataclass(frozen=True, slots=True)
class Bench:
    """`forward` returns the outputs; the gradients `output_gradients` then flow back to the inputs.

    Gradients of `activations` replace `.grad`, as if passed to the previous operator; gradients of `parameters` are
    added to `.grad`.
    """

    forward: Callable[[], Tensor | tuple[Tensor, ...]]
    activations: Sequence[Tensor] = ()
    parameters: Sequence[Tensor] = ()
    output_gradients: list[Tensor] = field(default_factory=list)

    def outputs(self) -> tuple[Tensor, ...]:
        """Run forward once; one output is a tuple of one."""
        result = self.forward()
        return result if isinstance(result, tuple) else (result,)

    def backward(self, outputs: tuple[Tensor, ...], direction: Direction = Direction.BACKWARD) -> None:
        """Run backward once: all of it, or the gradients of the activations or of the parameters alone.

        The input gradient comes first and retains the graph for the weight gradient. Output gradients are made before
        timing, so no loss kernel is counted.
        """
        activations = () if direction is Direction.WEIGHT_GRADIENT else self.activations
        parameters = () if direction is Direction.INPUT_GRADIENT else self.parameters
        # Not torch.autograd.backward: it copies a shared gradient into a leaf's `.grad`, such as the one that an
        # addition passes to both of its inputs. In a model these are no leaves, and nothing is copied.
        found = torch.autograd.grad(
            outputs,
            [*activations, *parameters],
            self.output_gradients or None,
            retain_graph=direction is Direction.INPUT_GRADIENT,
        )
        for activation, gradient in zip(activations, found, strict=False):
            activation.grad = gradient
        for parameter, gradient in zip(parameters, found[len(activations) :], strict=True):
            assert parameter.grad is not None
            parameter.grad += gradient

    def prepare(self) -> None:
        """Make the output gradients; a scalar output (the loss) needs none."""
        self.output_gradients.extend(torch.randn_like(out) for out in self.outputs() if out.ndim > 0)

    def reset(self) -> None:
        """Clear the inputs' gradients, as a step does; the parameters' gradients accumulate."""
        for tensor in self.activations:
            tensor.grad = None


Builder = Callable[[Point, Place], Bench]
