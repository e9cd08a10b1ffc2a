"""A mixture of experts in the place of an MLP: router, dispatch, the experts of a device, combination, shared experts.

Every device routes its own tokens (with tensor parallelism, its part of the sequence). They are sent to the devices
that hold their experts, whose products run as one grouped one, and sent back (Megatron-core's all-to-all dispatcher).
"""

from collections import Counter
from functools import partial

from kernelcast.runtime.request.fields import LinearKind
from kernelcast.runtime.step.calls import Calls, call
from kernelcast.runtime.step.layers.linear import Matrix
from kernelcast.runtime.step.layers.mlp import Mlp
from kernelcast.runtime.step.layers.sizes import Kept, Number

_KINDS: tuple[LinearKind, LinearKind] = ("experts", "mlp")
"""Kinds of linears of routed and shared experts."""
_SCORE_BYTES = 4
"""Scores of experts are in fp32."""
_PROBABILITY_ENTRIES = 2
"""Entries of 16 bits of a row's probability, in fp32: it is sent along, as the experts' activation multiplies by it
(Megatron-core from 0.13 on)."""


class Experts(Mlp):
    """Routed experts of one layer on one device, and those that every token goes to."""

    __slots__ = ()

    @property
    def up_role(self) -> str:
        """That of the shared experts: rows of routed ones are sent, not gathered."""
        return "shared_gate_up" if self.sizes.shared_expert_width else ""

    @property
    def down_role(self) -> str:
        return "shared_down" if self.sizes.shared_expert_width else ""

    @property
    def rows(self) -> Number:
        """Rows of the fullest device's experts; devices that share an expert have each other's rows too."""
        return self.sizes.imbalance * self.sizes.sent_rows * self.sizes.expert_tp

    @property
    def calls(self) -> Calls:
        return (*self._routed, *self._shared)

    @property
    def _routed(self) -> Calls:
        s, model, branches = self.sizes, self.sizes.model, self.branches
        rows = max(1, round(self.rows))
        of_each = max(1, round(rows / s.experts))
        sorts = int(s.ep > 1 and s.experts > 1)  # what comes in is in the order of the senders
        permute = call("permute", s.local_tokens, model.experts_per_token, s.hidden)
        resort = call("copy", rows, s.hidden, count=sorts)
        linear = partial(s.linears.calls, "experts")
        up, down = f"experts_{'gate_' if self.is_gated else ''}up", "experts_down"
        return (
            *s.linears.plain(s.local_tokens, s.hidden, model.experts, role="router"),
            call("router", s.local_tokens, model.experts),
            permute,
            resort,
            *linear(s.experts, of_each, s.hidden, branches * s.expert_width, role=up),
            call(self.activation_operator, 1, rows, s.expert_width),
            *linear(s.experts, of_each, s.expert_width, s.hidden, role=down),
            resort,
            call("unpermute", s.local_tokens, model.experts_per_token, s.hidden),
        )

    @property
    def _shared(self) -> Calls:
        s, width = self.sizes, self.sizes.shared_expert_width
        if not width:
            return ()
        return (
            *s.linears.calls("mlp", s.tokens, s.hidden, self.branches * width, role="shared_gate_up"),
            call(self.activation_operator, s.micro_batch, s.length, width),
            *s.linears.calls("mlp", s.tokens, width, s.hidden, role="shared_down"),
            call("residual_add", s.micro_batch, s.local_length, s.hidden),
        )

    @property
    def _sent_entries(self) -> Number:
        return max(1, round(self.sizes.imbalance * self.sizes.sent_rows * self.sizes.hidden))

    @property
    def exchanges(self) -> Calls:
        """What is sent to the experts, in 8 bit half as much, with its probabilities, and what comes back."""
        s, entries = self.sizes, self._sent_entries
        layout = s.expert_group.nodes, s.expert_group.gpus_per_node
        probabilities = max(1, round(_PROBABILITY_ENTRIES * s.imbalance * s.sent_rows))
        there = -(-entries // 2) if s.dispatches_float8 else entries
        sent = Counter([there, entries, probabilities])
        return tuple(
            call("all_to_all", size, *layout, role="expert", count=count * int(s.ep > 1))
            for size, count in sent.items()
        )

    @property
    def forward_collectives(self) -> Calls:
        """Rows are sent to their experts and back; of experts that are cut, gathered and their results summed."""
        s = self.sizes
        entries, cut = self._sent_entries, s.expert_tensor_group
        return (
            *(() if s.overlaps_experts else self.exchanges),
            *(
                call(
                    name, size, cut.nodes, cut.gpus_per_node, role="expert_tensor", count=int(s.expert_tp > 1)
                )
                for name, size in (("all_gather", entries), ("reduce_scatter", entries * s.expert_tp))
            ),
        )

    @property
    def backward_collectives(self) -> Calls:
        """Gradients go the same ways back."""
        return self.forward_collectives

    @property
    def until_last_kept(self) -> Calls:
        """All of it: weights of the combination, and the shared experts' sum, need what comes last."""
        return self.calls

    @property
    def dense_parameters(self) -> Number:
        """Router (d·E, and E with sigmoid scores, whose choice has a bias, or with biases) and shared experts."""
        s = self.sizes
        biases = s.model.experts if s.model.router == "sigmoid" or self.has_bias else 0
        return s.model.experts * s.hidden + biases + (self.branches + 1) * s.hidden * s.shared_expert_width

    @property
    def expert_parameters(self) -> Number:
        """Those of the device's experts: (branches + 1)·d·f, with biases branches·f + d more, each E/ep / expert_tp."""
        s = self.sizes
        biases = self.branches * s.expert_width + s.hidden if self.has_bias else 0
        return s.experts * ((self.branches + 1) * s.hidden * s.expert_width + biases)

    @property
    def parameters(self) -> Number:
        return self.dense_parameters + self.expert_parameters

    def kept_bytes(self, kept: Kept) -> Number:
        """Scores and probabilities in fp32, rows as they are computed on, and what the MLPs of all experts keep."""
        s = self.sizes
        after_silu = self.is_gated and not kept.modules.fuses_gate
        activated = kept.element * (self.branches + after_silu)
        scores = 2 * _SCORE_BYTES * s.local_tokens * s.model.experts
        read, by_shared = (s.linears.input_bytes(kind, kept.element) for kind in _KINDS)
        results = kept.modules.kept_results * kept.element * s.imbalance * s.sent_rows * s.hidden
        routed = self.rows * (read * s.hidden + (activated + read) * s.expert_width) + results
        shared = s.tokens * (activated + by_shared) * s.shared_expert_width
        if s.model.shared_expert_size:
            # The router keeps what shared experts read.
            shared = shared + s.linears.copy_bytes("mlp") * s.local_tokens * s.hidden
        return scores + routed + shared

    def weight_gradient_bytes(self, kept: Kept) -> Number:
        s, widths = self.sizes, self.branches + 1
        routed = self.rows * (2 * s.hidden + widths * s.expert_width)
        return kept.element * (
            2 * s.local_tokens * s.hidden + routed + s.tokens * widths * s.shared_expert_width
        )

    @property
    def weights(self) -> tuple[Matrix, ...]:
        s = self.sizes
        experts, shared = (
            (Matrix(kind, s.hidden, self.branches * width, count), Matrix(kind, width, s.hidden, count))
            for kind, width, count in zip(
                _KINDS, (s.expert_width, s.shared_expert_width), (s.experts, 1), strict=True
            )
        )
        return (*experts, *(shared if s.model.shared_expert_size else ()))

    @property
    def input_kind(self) -> LinearKind | None:
        """None: the router reads its norm's output in the training's type."""
        return None

    def gradient_bytes(self, kept: Kept) -> tuple[Number, Number]:
        s = self.sizes
        of_rows = kept.element * self.rows * s.hidden
        no_gradient = kept.modules.accumulates_in_products or s.linears.is_frozen
        of_weights = 0 if no_gradient else kept.element * s.experts * s.expert_width * s.hidden
        width = kept.element * self.rows * s.expert_width
        return of_rows + width + of_weights, of_rows + self.branches * width
