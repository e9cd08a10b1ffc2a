"""One transformer layer as a list of ops: norm, attention, residual, norm, MLP or experts, residual.

In hybrid models Mamba-2 or a gated delta net is in the place of attention, and a layer may have one of both halves.
"""

from kernelcast.runtime.request.fields import LinearKind
from kernelcast.runtime.step.layers import mlp as dense
from kernelcast.runtime.step.layers.attention import ATTENTION
from kernelcast.runtime.step.layers.norm import norm
from kernelcast.runtime.step.layers.tensor_parallel import Mixer, Products, enter_region, leave_region
from kernelcast.runtime.step.op import Number, Op, Ops, op
from kernelcast.runtime.step.passes import remembered_ops
from kernelcast.runtime.step.sizes import Sizes

INPUT, INPUT_NORM = "layer_input", "input_norm"
ATTENTION_RESIDUAL, MLP_NORM = "attention_residual", "pre_mlp_norm"


@remembered_ops
def transformer_layer(s: Sizes) -> Ops:
    """The ops of one layer in order. With GeLU, LayerNorm, dropout and softmax it keeps sbh(34 + 5as/h) (eq. 1–4 of
    arXiv 2205.05198) and norms' statistics; with an MLP of 4d it has `4d + 8d(d+1)/tp + d(4d+1)/tp` parameters (Table
    III).
    """
    kind, parallel, regions = s.kind, s.model.parallel_residual, _Regions(s)
    residual = (_residual_add(s, ATTENTION_RESIDUAL),) if kind.mixer else ()
    # The next norm reads the sum; with a parallel residual it reads the layer's input, and all is added last.
    between = tuple(one._replace(saves=s.activation_bytes) for one in residual) if kind.has_mlp else residual
    ops = (
        Op(INPUT, saves=s.activation_bytes),
        *(_mixer_half(s, regions) if kind.mixer else ()),
        *(() if parallel else between),
        *(_mlp_half(s, regions) if kind.has_mlp else ()),
        *(residual if parallel else ()),
        *((_residual_add(s, "mlp_residual"),) if kind.has_mlp else ()),
    )
    return tuple([Op._make((*one[:-1], True)) for one in ops])  # `in_layer` is the last field


def mixer_gradient_bytes(s: Sizes) -> Number:
    """Gradients in use at the fullest moment of the backward pass of what mixes tokens."""
    return mixer_of(s).gradient_bytes(s) if s.kind.mixer else 0


def mixer_of(s: Sizes) -> Mixer:
    """What mixes the tokens of a layer that has a mixer."""
    if s.kind.mixer == "attention":
        return ATTENTION
    from kernelcast.runtime.step.layers.recurrent import RECURRENT

    return RECURRENT


def _mixer_half(s: Sizes, regions: "_Regions") -> Ops:
    is_apart = (s.kind.mixer == "attention" and s.model.kv_rank > 0) or not s.modules.fuses_norms
    return (
        norm(s, INPUT_NORM, read_by="attention", module="layernorm" if is_apart else ""),
        *regions.enter("attention"),
        *mixer_of(s).ops(s),
        *regions.leave("attention"),
        *_post_norm(s, "post_attention_norm"),
    )


def _mlp_half(s: Sizes, regions: "_Regions") -> Ops:
    has_experts = s.kind.has_experts
    # The router reads its norm's output in the training's type.
    read_by: LinearKind | None = None if has_experts else "mlp"
    is_apart = has_experts or not s.modules.fuses_norms
    return (
        norm(s, MLP_NORM, read_by=read_by, module="layernorm" if is_apart else "mlp"),
        *regions.enter("mlp"),
        *(_experts(s) if has_experts else dense.mlp(s)),
        *regions.leave("mlp"),
        *_post_norm(s, "post_mlp_norm"),
    )


def _experts(s: Sizes) -> Ops:
    from kernelcast.runtime.step.layers.experts import experts

    return experts(s)


def _residual_add(s: Sizes, name: str) -> Op:
    return op(name, "residual_add", s.micro_batch, s.local_length, s.hidden)


def _post_norm(s: Sizes, name: str) -> Ops:
    """A norm of what attention or MLP return (Gemma 2); no module of Megatron-core runs it again."""
    return (norm(s, name, module=""),) if s.model.post_norms else ()


class _Regions:
    """The tensor-parallel regions of a layer: attention's and the MLP's, or with one of `forward_syncs` and
    `backward_syncs` one around both. Routed experts have none.
    """

    def __init__(self, s: Sizes) -> None:
        model, self.s = s.model, s
        self.columns: dict[str, tuple[str, ...]] = {}
        self.rows: dict[str, str] = {}
        if s.kind.mixer:
            mixer = mixer_of(s)
            self.columns["attention"], self.rows["attention"] = mixer.columns(s), mixer.output
        if not s.kind.has_mlp:
            pass
        elif not s.kind.has_experts:
            self.columns["mlp"], self.rows["mlp"] = (dense.up_product(s),), dense.DOWN
        elif model.shared_expert_size:
            from kernelcast.runtime.step.layers import experts as moe

            self.columns["mlp"], self.rows["mlp"] = (moe.SHARED_UP,), moe.SHARED_DOWN
        fewer = 2 - len(self.rows)
        self.syncs = (max(0, model.forward_syncs - fewer), max(0, model.backward_syncs - fewer))

    def enter(self, half: str) -> Ops:
        """Collectives before a half's column-parallel products."""
        forward, backward = (self._enter(half, syncs) for syncs in self.syncs)
        return enter_region(self.s, half, forward, backward, module=self._module(half))

    def leave(self, half: str) -> Ops:
        """Collectives after a half's row-parallel product."""
        forward, backward = (self._leave(half, syncs) for syncs in self.syncs)
        return leave_region(self.s, half, forward, backward, module=self._module(half))

    def _module(self, half: str) -> str:
        of_mlp = half == "mlp" and (self.syncs[0] > 1 or "attention" not in self.rows)
        return ("shared_experts" if self.s.kind.has_experts else "mlp") if of_mlp else ""

    def _enter(self, half: str, syncs: int) -> Products:
        """Where attention and MLP share a collective it comes before attention."""
        if half not in self.columns:
            return Products((), 0)
        if syncs > 1 and len(self.columns) > 1:
            return Products(self.columns[half], syncs - 1 if half == "mlp" else 1)
        shared = tuple(name for names in self.columns.values() for name in names)
        return Products(shared, syncs if half == next(iter(self.columns)) else 0)

    def _leave(self, half: str, syncs: int) -> Products:
        """Where attention and MLP share a collective it comes after the MLP, which is the last to compute."""
        if half not in self.rows:
            return Products((), 0)
        own = (self.rows[half],)
        # Gradients of what is summed together are gathered together.
        if self.syncs[0] > 1 and len(self.rows) > 1:
            return Products(own, max(0, syncs - 1) if half == "mlp" else min(1, syncs))
        return Products(own, syncs if half == list(self.rows)[-1] else 0)
