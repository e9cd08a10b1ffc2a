"""Megatron-LM: flags of pretrain_gpt.py and of torchrun (docs/frameworks.md)."""

from functools import partial
from math import gcd

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.frameworks.cut import even_cut, layout_text, read_layout_text
from kernelcast.runtime.frameworks.facts import Facts
from kernelcast.runtime.frameworks.framework import Framework
from kernelcast.runtime.frameworks.megatron_kinds import (
    ContextExchangeType,
    ExpertLayers,
    ExpertTensorParallel,
    Heads,
    usual_model,
)
from kernelcast.runtime.frameworks.megatron_recomputation import Recompute
from kernelcast.runtime.frameworks.rows import (
    Beyond,
    Choice,
    Found,
    Lacks,
    OptimizerOffload,
    Option,
    Part,
    Row,
    Same,
    Settings,
    lacks,
)
from kernelcast.runtime.frameworks.shell import LAUNCHER, WORLD_SIZE, parse_shell, render_shell
from kernelcast.runtime.request.field_types import FLAG
from kernelcast.runtime.request.fields import LAYOUT, MODEL, SEARCH


class Launch(Row):
    """torchrun's nodes and processes per node: the devices of the job. WORLD_SIZE counts where they are not given."""

    keys = (*LAUNCHER, WORLD_SIZE)
    fields = ("devices", "gpus_per_node")

    def write(self, facts: Facts) -> Part:
        """As many processes on every node, as torchrun wants it."""
        devices, per_node = facts["devices"], facts["gpus_per_node"]
        processes = devices if devices <= per_node else gcd(devices, per_node)
        settings = dict(zip(LAUNCHER, (devices // processes, processes), strict=True))
        uneven = devices > per_node != processes
        lost = f"{per_node} devices per node (torchrun starts {processes} on every node)"
        return Part(settings, (lost,) if uneven else ())

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Nothing where they are no numbers: `--nproc-per-node gpu`, an unknown variable."""
        kind = SEARCH["gpus"].kind
        nodes, processes, world = (kind.read(settings.get(key)) for key in self.keys)
        if isinstance(processes, int) and isinstance(nodes, int):
            return Found({"devices": nodes * processes, "gpus_per_node": processes})
        return Found({} if world is None else {"devices": world})


class Pipeline(Row):
    """Schedule and cut: the interleaved schedule is the one with several chunks per stage."""

    layout = "--pipeline-model-parallel-layout"
    per_chunk = "--num-layers-per-virtual-pipeline-stage"
    chunks = "--num-virtual-stages-per-pipeline-rank"
    first = "--decoder-first-pipeline-num-layers"
    last = "--decoder-last-pipeline-num-layers"
    ends = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
    keys = (layout, per_chunk, chunks, first, last, *ends)
    fields = ("schedule", "virtual_stages", "layer_counts")

    def write(self, facts: Facts) -> Part:
        """Chunks of the same size by their size, others by the layout."""
        schedule, counts = facts["schedule"], facts["layer_counts"]
        used = "interleaved" if facts["virtual_stages"] > 1 else "1f1b"
        name = "1F1B" if used == "1f1b" else "interleaved 1F1B"
        lost = () if schedule == used else (f"schedule {schedule} ({name} is used)",)
        if len(set(counts)) > 1:
            return Part({self.layout: layout_text(counts)}, lost)
        return Part({self.per_chunk: counts[0]} if facts["virtual_stages"] > 1 else {}, lost)

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The layers of every chunk as Megatron-LM cuts them."""
        pp, layers = facts["pp"], facts["layers"]
        if self.layout in settings:
            counts = read_layout_text(str(settings[self.layout]), self.layout)
            virtual_stages, rest = divmod(len(counts), pp)
            if rest:
                raise UsageError(f"{self.layout} has {len(counts)} chunks, expected a multiple of pp ({pp})")
        else:
            numbers = {
                key: MODEL["layers"].kind.parse(key, settings[key])
                for key in self.keys[1:5]
                if key in settings
            }
            per_chunk = numbers.get(self.per_chunk)
            virtual_stages = numbers.get(self.chunks, layers // pp // per_chunk if per_chunk else 1)
            # Ends that count as a layer: the chunks that hold them have one less.
            before, after = (int(FLAG.parse(key, settings.get(key, False))) for key in self.ends)
            found = even_cut(
                layers + before + after,
                pp,
                max(1, virtual_stages),
                numbers.get(self.first),
                numbers.get(self.last),
            )
            if found is not None and min(found[0] - before, found[-1] - after) >= 0:
                found = (found[0] - before, *found[1:-1], found[-1] - after) if len(found) > 1 else (layers,)
            if found is None or (per_chunk is not None and per_chunk not in found and not before + after):
                named = "".join(f", {key} {value}" for key, value in numbers.items())
                raise UsageError(
                    f"pp {pp}{named} does not divide {layers} layers, expected chunks of whole layers"
                )
            counts = found
        schedule = "interleaved" if virtual_stages > 1 else "1f1b"
        return Found({"schedule": schedule, "virtual_stages": virtual_stages, "layer_counts": counts})


class DistributedOptimizer(Row):
    """How ZeRO 1 combines gradients: Megatron-LM's scatters them, perhaps among some of the replicas."""

    used = "--use-distributed-optimizer"
    instances = "--num-distributed-optimizer-instances"
    keys = (used, instances)
    fields = ("gradient_collective", "shard_group")

    def write(self, facts: Facts) -> Part:
        """Copies of the optimizer's shards, where there are several."""
        shards, replicas = facts["shard_group"] or facts["replicas"], facts["replicas"]
        return Part({self.instances: replicas // shards} if facts["zero"] and shards < replicas else {})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Nothing without a sharded optimizer."""
        if not facts["zero"]:
            return Found({})
        copies = LAYOUT["dp"].kind.parse(self.instances, settings.get(self.instances, 1))
        return Found({"gradient_collective": "reduce_scatter", "copies": copies})


class TensorOverlap(Row):
    """Sums of input gradients always overlap with weight gradients; userbuffers also split products."""

    key = "--tp-comm-overlap"
    keys = (key,)
    fields = ("tensor_overlap",)

    def write(self, facts: Facts) -> Part:
        """The flag."""
        return Part({self.key: True} if facts["tensor_overlap"] == "products" else {})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Nothing without tensor parallelism."""
        if facts["tp"] == 1:
            return Found({})
        return Found({"tensor_overlap": "products" if settings.get(self.key) else "weight_gradients"})


class GroupedQueries(Row):
    """Fewer key-value heads than heads."""

    keys = ("--group-query-attention", "--num-query-groups")
    fields = ("kv_heads",)

    def write(self, facts: Facts) -> Part:
        """Both flags, where there are fewer."""
        fewer = facts["kv_heads"] < facts["attention_heads"]
        return Part(dict(zip(self.keys, (True, facts["kv_heads"]), strict=True)) if fewer else {})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The groups, where they are used."""
        used, groups = (settings.get(key) for key in self.keys)
        if not used or groups is None:
            return Found({})
        return Found({"kv_heads": MODEL["kv_heads"].kind.parse(self.keys[1], groups)})


class Positions(Row):
    """How positions are told, and the longest sequence: they belong to the model, and are not read."""

    keys = ("--position-embedding-type", "--max-position-embeddings")

    def write(self, facts: Facts) -> Part:
        """A learned table with its rows, else rotary or none up to the sequence."""
        rows, rotary = facts["learned_positions"], facts["rotary"]
        kind = "learned_absolute" if rows else "rope" if rotary else "none"
        settings = dict(zip(self.keys, (kind, rows or facts["sequence_length"]), strict=True))
        return Part(settings, ("rotary with learned_positions",) if rows and rotary else ())


class Dropout(Row):
    """Its probability after blocks and of attention's weights; both are on unless they are set to 0."""

    keys = ("--hidden-dropout", "--attention-dropout")
    fields = ("dropout",)

    def write(self, facts: Facts) -> Part:
        """The same for both."""
        return Part(dict.fromkeys(self.keys, f"{facts['dropout']:g}"))

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The one after blocks, or the other where that is off; the kernels take their time whatever it is."""
        hidden, attention = (
            LAYOUT["dropout"].kind.parse(key, settings.get(key, _USUAL_DROPOUT)) for key in self.keys
        )
        differ = bool(hidden) != bool(attention)
        note = (
            f"dropout {hidden:g} and of attention {attention:g} are read as {hidden or attention:g} of both"
        )
        return Found({"dropout": float(hidden or attention)}, (note,) if differ else ())


_USUAL_DROPOUT = 0.1

_FSDP = {"--use-megatron-fsdp": True}
_SHARDING = "--data-parallel-sharding-strategy"
_OPTIMIZER = {"--use-distributed-optimizer": True}
# Megatron-FSDP refuses other checkpoints.
_WITH_FSDP = {**_OPTIMIZER, "--ckpt-format": "fsdp_dtensor"}

_FP8, _RECIPE = "--fp8-format", "--fp8-recipe"
_FUSED_LOSS, _LOSS = {"--cross-entropy-loss-fusion": True}, "--cross-entropy-fusion-impl"
_MODULES = "--transformer-impl"
_SCORES = "--moe-router-score-function"


def _moments(dtype: str) -> dict[str, str]:
    return {"--exp-avg-dtype": dtype, "--exp-avg-sq-dtype": dtype}


# fmt: off
ROWS = (
    Launch(),
    Same("--tensor-model-parallel-size", "tp", 1),
    Same("--pipeline-model-parallel-size", "pp", 1),
    Same("--context-parallel-size", "cp", 1, usual=1),
    Beyond("cp", ContextExchangeType()),
    Same("--expert-model-parallel-size", "ep", 1, usual=1),
    ExpertTensorParallel(),
    Pipeline(),
    Same("--micro-batch-size", "micro_batch"),
    Same("--global-batch-size", "global_batch"),
    Choice("sequence_parallel", (Option(False), Option(True, {"--sequence-parallel": True}))),
    Choice("zero", (
        Option(0),
        Option(1, _OPTIMIZER),
        Option(0, _FSDP, only_read=True),
        Option(0, {**_FSDP, _SHARDING: "no_shard"}, only_read=True),
        Option(1, {**_FSDP, _SHARDING: "optim"}, only_read=True),
        Option(2, {**_FSDP, _SHARDING: "optim_grads"}, _WITH_FSDP),
        Option(3, {**_FSDP, _SHARDING: "optim_grads_params"}, _WITH_FSDP),
        Option(3, {"--use-torch-fsdp2": True}, only_read=True),
    )),
    DistributedOptimizer(),
    Choice("overlap_gradients", (Option(False), Option(True, {"--overlap-grad-reduce": True}))),
    Choice("overlap_parameters", (Option(False), Option(True, {"--overlap-param-gather": True}))),
    Same("--ddp-bucket-size", "overlap_bucket", usual=0),
    TensorOverlap(),
    Recompute(),
    Choice("reduce_dtype", (
        Option("same", {"--grad-reduce-in-bf16": True}),
        Option("same", {"--grad-reduce-in-bf16": True, "--bf16": True}, only_read=True),
        Option("same", {"--main-grads-dtype": "bf16", "--bf16": True}, only_read=True),
        Option("same", only_read=True),
        Option("float32", {"--bf16": True}),
        Option("float32", {"--accumulate-allreduce-grads-in-fp32": True}, only_read=True),
    )),
    Choice("loss", (
        Option("plain"),
        Option("native", _FUSED_LOSS, only_read=True),
        Option("plain", {_LOSS: "native"}, only_read=True),
        Option("native", {**_FUSED_LOSS, _LOSS: "native"}),
        Option("fused", {**_FUSED_LOSS, _LOSS: "te"}, written="loss fused (in_place is used)"),
        Option("in_place", {**_FUSED_LOSS, _LOSS: "te"}),
    )),
    # Both are written alike: what modules keep is no setting of a framework.
    Choice("kept_by", (
        Option("torch"),
        Option("megatron_local", {_MODULES: "local"}),
        Option("megatron", {_MODULES: "transformer_engine"}, only_read=True),
        Option("megatron"),
    )),
    Same("--seq-length", "sequence_length"),
    Positions(),
    Same("--num-layers", "layers"),
    Same("--hidden-size", "hidden_size"),
    Same("--ffn-hidden-size", "mlp_size"),
    Same("--num-attention-heads", "attention_heads"),
    Heads(),
    GroupedQueries(),
    Choice("qk_norm", (Option(False), Option(True, {"--qk-layernorm": True}))),
    Same("--num-experts", "experts", usual=0),
    Same("--moe-router-topk", "experts_per_token", usual=0),
    Same("--moe-ffn-hidden-size", "expert_size", usual=0),
    Same("--moe-shared-expert-intermediate-size", "shared_expert_size", usual=0),
    ExpertLayers(),
    Choice("router", (
        Option("softmax"),
        Option("softmax", {_SCORES: "softmax"}, only_read=True),
        Option("sigmoid", {_SCORES: "sigmoid"}, {"--moe-router-enable-expert-bias": True}),
    )),
    Same("--mtp-num-layers", "extra_predictions", usual=0),
    Choice("norm", (Option("layer_norm", {"--normalization": "LayerNorm"}),
                    Option("rms_norm", {"--normalization": "RMSNorm"}))),
    Choice("activation", (Option("gelu"), Option("swiglu", {"--swiglu": True}))),
    Choice("biases", (
        Option("all"),
        Option("none", {"--disable-bias-linear": True}),
        Option("qkv", {"--disable-bias-linear": True, "--add-qkv-bias": True}),
    )),
    Choice("tied_embeddings", (Option(True), Option(False, {"--untie-embeddings-and-output-weights": True}))),
    Same("--vocab-size", "vocabulary_size"),
    Same("--make-vocab-size-divisible-by", "vocabulary_multiple", 128),
    Dropout(),
    Choice("attention", (
        Option("flash", {"--attention-backend": "flash"}),
        Option("fused_softmax", {"--attention-backend": "unfused"}),
        Option("unfused", {"--attention-backend": "unfused"}, written="attention unfused (its softmax is fused)"),
        Option("flash", {"--attention-backend": "fused"}, only_read=True),
        Option("flash", {"--attention-backend": "auto"}, only_read=True),
    )),
    Choice("dtype", (Option("float32"), Option("bfloat16", {"--bf16": True}), Option("float16", {"--bf16": True}))),
    Choice("fp8_weights", (Option(False), Option(True, {"--fp8-param-gather": True}))),
    lacks("fp8_activation_store", False),
    lacks("lora_dropout", 0.0),
    Choice("fp8_recipe", (
        Option("none"),
        Option("tensorwise", {_FP8: "hybrid", _RECIPE: "tensorwise"}),
        Option("tensorwise", {_FP8: "e4m3", _RECIPE: "tensorwise"}, only_read=True),
        Option("blockwise", {_FP8: "e4m3", _RECIPE: "blockwise"}),
        Option("blockwise", {_FP8: "hybrid", _RECIPE: "blockwise"}, only_read=True),
        *(Option("tensorwise", {_FP8: kind, **recipe}, only_read=True, read="delayed scaling is read as tensorwise")
          for kind in ("hybrid", "e4m3") for recipe in ({}, {_RECIPE: "delayed"})),
    )),
    Same("--moe-expert-capacity-factor", "expert_capacity", usual=0.0, unset=("auto", "None")),
    Choice("expert_padding", (Option(False), Option(True, {"--moe-pad-expert-input-to-capacity": True}))),
    Choice("expert_overlap", (Option(False), Option(True, {"--overlap-moe-expert-parallel-comm": True}))),
    lacks("fp8_dispatch", False),
    lacks("offload_activations", 0.0),
    lacks("attention_kernel", "as-measured"),
    OptimizerOffload("--optimizer-cpu-offload", True, "--optimizer-offload-fraction"),
    lacks("lora_rank", 0),
    lacks("parallel_residual", False),
    lacks("optimizer", "adam_fused"),
    Choice("optimizer_states", (
        Option("float32"),
        Option("float32", _moments("fp32"), only_read=True),
        Option("bfloat16", _moments("bf16"), {"--use-precision-aware-optimizer": True}),
        Option("bfloat16", _moments("fp16"), only_read=True),
        Option("8bit", _moments("fp8"), {"--use-precision-aware-optimizer": True}),
    )),
    lacks("post_norms", False),
    lacks("visible_share", 1.0),
    Lacks(lambda facts: f"sliding_window {window}" if (window := facts["sliding_window"]) else ""),
)
# fmt: on

_SWITCHES = frozenset(
    key
    for row in ROWS
    if isinstance(row, Choice)
    for option in row.options
    for key, value in (*option.settings.items(), *option.extra.items())
    if value is True
) | {GroupedQueries.keys[0], Recompute.activations, TensorOverlap.key, Heads.latent, *Pipeline.ends}

MEGATRON = Framework(
    name="megatron-lm",
    title="Megatron-LM",
    rows=ROWS,
    parse=partial(parse_shell, switches=_SWITCHES, lists=(Recompute.modules, ContextExchangeType.key)),
    render=render_shell,
    is_form_of=lambda text: True,
    model=usual_model,
)
