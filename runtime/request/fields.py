"""The one table of request fields: model, layout, cluster and options.

Options, `#KERNELCAST` lines, JSON, OpenAPI, model and runs files, and columns of a search follow from its rows.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.dataclass import fields as dataclass_fields
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.field_types import (
    FLAG,
    Field,
    adapted,
    choice,
    counted,
    counts,
    layer_parts,
    names,
    number,
    stated,
    table,
    text,
    watts,
    whole,
)

Norm = Literal["layer_norm", "rms_norm"]
Activation = Literal["gelu", "swiglu", "geglu", "squared_relu"]
Mixer = Literal["attention", "mamba2", "gated_delta_net"]
Router = Literal["softmax", "sigmoid"]
ContextExchange = Literal["ring", "all_to_all", "all_gather"]
Attention = Literal["flash", "fused_softmax", "unfused"]
AttentionKernel = Literal["as-measured", "flash-1", "flash-1-triton", "flash-2", "flash-3", "cudnn"]
Biases = Literal["all", "attention", "qkv", "mlp", "none"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v"]
LayerSplit = Literal["even", "paper", "balanced"]
ReduceDtype = Literal["same", "float32"]
RecomputeModule = Literal[
    "core_attn", "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj", "per_op"
]
OffloadModule = Literal[
    "all", "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
ExpertDispatcher = Literal["all_to_all", "deepep", "hybridep"]
EagerKernels = Literal["none", "all_but_norms", "all"]
CudaGraphs = Literal["none", "partial", "full"]
OptimizerKind = Literal["adam_fused", "adam_foreach", "adam_loop", "sgd", "lion"]
StateType = Literal["float32", "bfloat16", "8bit"]
LossKind = Literal["plain", "native", "fused", "in_place"]
GradientCollective = Literal["all_reduce", "reduce_scatter"]
TensorOverlap = Literal["none", "weight_gradients", "products"]
Float8Recipe = Literal[
    "none", "tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "nvfp4", "nvfp4_plain"
]
LinearKind = Literal["attention", "mlp", "experts"]
AdaptedLinear = Literal[
    "attention", "q_proj", "k_proj", "v_proj", "o_proj", "mlp", "gate_proj", "up_proj", "down_proj"
]
FrozenWeights = Literal["same", "nf4", "nf4_double"]
Objective = Literal["next_token", "dpo", "dpo_precomputed"]
ModuleKind = Literal["torch", "torchtitan", "megatron", "megatron_local"]
TimelineKind = Literal["simulate", "closed-form"]
RankBy = Literal["step-time", "tokens-per-gpu"]
FrameworkName = Literal["megatron-lm", "torchtitan", "deepspeed", "llm-foundry", "nemo"]

MAX_DEGREE = 1_000_000
MAX_SIZE = 2**31 - 1
MAX_LAYERS = 10_000
AS_MEASURED: AttentionKernel = "as-measured"
DEFAULT_BUCKET_ENTRIES = 1_260_000_000
"""Entries of a framework's gradient bucket (docs/method.md, A step: the authors' 1.26e9)."""

LAYER_PARTS: Mapping[str, str] = {
    "M": "mamba2", "G": "gated_delta_net", "*": "attention", "-": "mlp", "E": "experts"}  # fmt: skip
"""Parts of a layer by the letters of Megatron-LM's hybrid patterns."""

_SIZE = whole(1, MAX_SIZE)
_SIZE_OR_NONE = whole(0, MAX_SIZE)
_DEGREE = whole(1, MAX_DEGREE)
_SYNCS = whole(0, 100)
_TOKENS_OF_EXPERTS = counts(whole(0, MAX_SIZE), "whole numbers, one per expert, such as 96,120,80,88")
_COUNTS = counts(whole(0, MAX_DEGREE), "whole numbers, one per stage, such as 11,12,12,9")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFields:
    """Fields of `ModelConfig`; one that is not given may follow from the others."""

    name: str = stated(text("a text on one line", one_line=True), "Name of the model.", required=True)
    hidden_size: int = stated(_SIZE, "Hidden size, d.", required=True)
    sequence_length: int = stated(_SIZE, "Sequence length in tokens, l.", unit="tokens", required=True)
    attention_heads: int = stated(_SIZE, "Attention heads, h.", required=True)
    layers: int = stated(whole(1, MAX_LAYERS), "Transformer layers, n.", old=("encoders",), required=True)
    vocabulary_size: int = stated(_SIZE, "Vocabulary size, unpadded.", unit="tokens", required=True)
    kv_heads: int = stated(_SIZE, "Key-value heads.", otherwise="attention_heads")
    head_size: int = stated(_SIZE, "Size of a head.", otherwise="hidden_size / attention_heads")
    mlp_size: int = stated(_SIZE, "Width of the MLP.", otherwise="4 · hidden_size")
    value_head_size: int = stated(_SIZE_OR_NONE, "Size of a value head; 0 for head_size.", 0)
    rotary_size: int = stated(_SIZE_OR_NONE, "Part of a query or key head with rotary embedding; 0 for all of it.", 0)
    query_rank: int = stated(_SIZE_OR_NONE, "Rank of the query down-projection (latent attention); 0 for none.", 0)
    kv_rank: int = stated(
        _SIZE_OR_NONE, "Rank of the joint key-value down-projection (latent attention); 0 for none.", 0)
    layer_pattern: str = stated(layer_parts(LAYER_PARTS),
        "Parts of the layers, repeated: M Mamba-2, G gated delta net, * attention, - MLP, E experts; a letter per "
        "layer, or several with spaces between layers. Empty for attention and MLP or experts in every layer.", "")
    recurrent_heads: int = stated(_SIZE_OR_NONE, "Heads of Mamba-2, or value heads of a gated delta net.", 0)
    recurrent_head_size: int = stated(_SIZE_OR_NONE, "Size of such a head.", 0)
    recurrent_groups: int = stated(_SIZE_OR_NONE, "Groups of Mamba-2, or key heads of a gated delta net.", 0)
    recurrent_state_size: int = stated(
        _SIZE_OR_NONE, "State size of Mamba-2, or key head size of a gated delta net.", 0)
    experts: int = stated(_SIZE_OR_NONE, "Routed experts per layer (mixture of experts); 0 for none.", 0)
    experts_per_token: int = stated(_SIZE_OR_NONE, "Routed experts per token (top-k).", 0)
    expert_size: int = stated(_SIZE_OR_NONE, "Width of a routed expert; 0 for mlp_size.", 0)
    expert_latent_size: int = stated(_SIZE_OR_NONE, "Size of routed experts' inputs (LatentMoE); 0 for hidden_size.", 0)
    shared_expert_size: int = stated(_SIZE_OR_NONE, "Total width of the shared experts.", 0)
    dense_layers: int = stated(whole(0, MAX_LAYERS), "Number of first layers with a dense MLP.", 0)
    expert_interval: int = stated(whole(1, MAX_LAYERS), "Every n-th layer after the dense layers has experts.", 1)
    router: Router = stated(choice(get_args(Router)), "Score function of the router.", "softmax")
    norm: Norm = stated(choice(get_args(Norm)), "Normalization.", "layer_norm")
    activation: Activation = stated(choice(get_args(Activation)), "Activation of the MLP.", "gelu")
    attention: Attention = stated(choice(get_args(Attention)), "Attention kernel.", "flash")
    rotary: bool = stated(FLAG, "Rotary position embedding.", True)
    unrotated_interval: int = stated(whole(0, MAX_LAYERS), "Every n-th layer has no rotary embedding; 0 for none.", 0)
    attention_sinks: bool = stated(FLAG, "Softmax of each head has an additional learned logit (gpt-oss).", False)
    attention_gate: bool = stated(FLAG, "A gate multiplies what attention returns (Qwen3-Next).", False)
    parallel_residual: bool = stated(FLAG, "Attention and MLP read the same input.", False)
    biases: Biases = stated(choice(get_args(Biases)), "Linears with a bias.",
        otherwise="the attention's with LayerNorm, the MLP's with GeLU")
    tied_embeddings: bool = stated(FLAG, "The output projection shares the embedding's weights.", False)
    learned_positions: int = stated(_SIZE_OR_NONE, "Rows of a learned position embedding; 0 for none.", 0)
    sliding_window: int = stated(
        _SIZE_OR_NONE, "Sliding-window size of attention; 0 for full attention.", 0, unit="tokens")
    window_chunks: bool = stated(FLAG, "Attention is restricted to chunks of the window's size (Llama 4).", False)
    global_interval: int = stated(whole(0, MAX_LAYERS), "Every n-th layer has full attention; 0 for none.", 0)
    qk_norm: bool = stated(FLAG, "Normalize queries and keys.", False)
    post_norms: bool = stated(FLAG, "Additional norms after attention and MLP.", False)
    visible_share: float = stated(number(0, 1, "a number above 0 and at most 1", above=True),
        "Fraction of the causal mask that remains with packed documents.", 1.0)
    extra_predictions: int = stated(whole(0, 100), "Layers for multi-token prediction.", 0)
    forward_syncs: int = stated(_SYNCS, "All-reduces of a layer's forward pass in the tensor-parallel group.",
        otherwise="1 with a parallel residual, else 2")
    backward_syncs: int = stated(_SYNCS, "All-reduces of a layer's backward pass.", otherwise="2")


MODEL = table(*(replace(one.metadata["row"], name=one.name) for one in dataclass_fields(ModelFields)))
"""Fields of a model (`ModelConfig`)."""

@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFields:
    """Fields of `Parallelism`; the columns of a search in this order."""

    pp: int = stated(_DEGREE, "Pipeline stages.", 1, degree=True, required=True)
    tp: int = stated(_DEGREE, "Tensor-parallel degree.", 1, degree=True, old=("mp",), required=True)
    dp: int = stated(_DEGREE, "Data-parallel degree.", 1, degree=True, replicates=True, required=True)
    cp: int = stated(_DEGREE, "Context-parallel degree: shards of a sequence.", 1, degree=True, replicates=True)
    ep: int = stated(_DEGREE, "Expert-parallel degree: devices that share a layer's experts, within tp · dp · cp.", 1)
    expert_tp: int = stated(_DEGREE, "Tensor-parallel degree of experts, within tp · dp · cp.", 1)
    micro_batch: int = stated(_DEGREE, "Samples per micro-batch.", unit="samples", required=True)
    micro_batches: int = stated(
        _DEGREE, "Micro-batches per update; or give the global batch instead.", required=True)
    schedule: Schedule = stated(choice(get_args(Schedule)),
        "Pipeline schedule (zero_bubble is ZB-H1; dualpipe_v is half of dualpipe, in V shape).", "1f1b")
    virtual_stages: int = stated(_DEGREE, "Model chunks per device, for interleaved; zb_v and dualpipe_v have 2.", 1)
    sequence_parallel: bool = stated(
        FLAG, "Sequence parallelism: shard norms and residuals along the sequence.", False)
    recompute: Recompute = stated(
        choice(get_args(Recompute)), "Activation checkpointing: none, of modules (selective), or full layers.", "none")
    zero: int = stated(
        whole(0, 3), "ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also parameters (FSDP).", 1)
    layer_counts: tuple[int, ...] | None = stated(_COUNTS, "Layers per stage, or per chunk.",
        otherwise="chosen by layer_split", old=("encoder_counts",))
    layer_split: LayerSplit = stated(choice(get_args(LayerSplit)),
        "Layers per stage: even (else paper), paper (n + 5 blocks spread evenly), or balanced by time.", "even",
        of_stack=True)
    reduce_dtype: ReduceDtype = stated(choice(get_args(ReduceDtype)),
        "Dtype of stored and reduced gradients: same as in training, or float32.", "same", of_stack=True)
    loss: LossKind = stated(choice(get_args(LossKind)),
        "Cross-entropy: plain (in float32), native (Megatron-LM's, with one more copy), fused (no float32 copy), "
        "or in_place (the gradient overwrites the logits).", "plain",
        of_stack=True)
    recompute_modules: tuple[RecomputeModule, ...] = stated(
        names(get_args(RecomputeModule), f"one or more of {', '.join(get_args(RecomputeModule))}", alone="per_op"),
        "Modules that selective checkpointing recomputes.", ("core_attn",), of_stack=True)
    recompute_layers: int = stated(
        whole(0, MAX_LAYERS), "Recompute only the first N layers of each chunk; 0 for all layers.", 0,
        of_stack=True)
    recompute_together: int = stated(whole(1, MAX_LAYERS),
        "Layers per checkpoint; only the input of the first layer is saved.", 1, of_stack=True)
    recompute_early_stop: bool = stated(FLAG,
        "Stop recomputing at the last tensor that the backward pass needs, as torch.utils.checkpoint does.", False,
        of_stack=True)
    dropout: float = stated(number(0, 1, "a number from 0 to 1"),
        "Dropout after embedding, attention and MLP, and of attention weights.", 0.0, of_stack=True)
    vocabulary_multiple: int = stated(_SIZE, "Pad the vocabulary to a multiple of this times tp.", 128, of_stack=True)
    optimizer: OptimizerKind = stated(choice(get_args(OptimizerKind)),
        "Adam (fused, foreach or a loop over tensors), SGD with momentum, or Lion.",
        "adam_fused", of_stack=True)
    optimizer_states: StateType = stated(choice(get_args(StateType)), "Dtype of the optimizer's moments.", "float32",
        of_stack=True)
    host_launch_us: float = stated(number(0, 1_000, "µs from 0 to 1000"),
        "Host time to launch a kernel in µs; no kernel takes less. 0 if the host runs ahead.", 0.0,
        of_stack=True)
    attention_kernel: AttentionKernel = stated(choice(get_args(AttentionKernel)),
        "Kernel of fused attention: the measured one, or another, scaled by published ratios.",
        AS_MEASURED, of_stack=True)
    kept_by: ModuleKind = stated(choice(get_args(ModuleKind)),
        "Implementation of the layers, which save and gather different activations: PyTorch's (torch), torchtitan's, "
        "or Megatron-core's with TransformerEngine (megatron) or without (megatron_local).", "torch",
        of_stack=True)
    exposed_share: float = stated(number(0, 1, "a number from 0 to 1"),
        "Exposed (not hidden) fraction of overlapped collectives; at least 0.5 within a layer.", 0.25,
        of_stack=True)
    gradient_collective: GradientCollective = stated(choice(get_args(GradientCollective)),
        "Gradient reduction of ZeRO 1: the paper's all-reduce, or Megatron-LM's reduce-scatter.",
        "all_reduce", of_stack=True)
    shard_group: int = stated(whole(0, MAX_DEGREE),
        "Replicas per sharding group (hybrid sharding, HSDP); 0 for all.", 0,
        of_stack=True)
    overlap_gradients: bool = stated(FLAG, "Overlap gradient reduction with the last backward pass.", False,
        of_stack=True)
    overlap_parameters: bool = stated(
        FLAG, "Overlap the parameter all-gather of ZeRO 1 and 2 with the first forward pass.", False,
        of_stack=True)
    overlap_bucket: int = stated(
        _SIZE_OR_NONE,
        "Bucket size, in parameters, of both overlaps; 0 for the larger of 40 million and 1 million per replica.", 0,
        of_stack=True)
    context_exchange: ContextExchange = stated(choice(get_args(ContextExchange)),
        "Context-parallel communication: ring, all-to-all over heads, or all-gather of keys and values.",
        "ring", of_stack=True)
    expert_imbalance: float = stated(number(1, 1_000, "a number from 1 to 1000"),
        "Tokens on the most loaded expert-parallel device, as a multiple of the mean.", 1.0, of_stack=True)
    expert_tokens: tuple[int, ...] | None = stated(_TOKENS_OF_EXPERTS,
        "Tokens per expert: one list for all layers, or the lists of all layers with experts in order.",
        otherwise="equal, times expert_imbalance", of_stack=True)
    expert_capacity: float = stated(number(0, 1_000, "a number from 0 to 1000"),
        "Capacity factor: tokens per expert above this multiple of the mean are dropped; 0 to drop none.", 0.0,
        of_stack=True)
    expert_padding: bool = stated(FLAG, "Pad every expert's input to its capacity.", False, of_stack=True)
    expert_dispatcher: ExpertDispatcher = stated(choice(get_args(ExpertDispatcher)),
        "Token dispatch: one copy per expert (all_to_all), or one per node, forwarded inside the node (deepep, "
        "hybridep); with --expert-overlap hybridep's permutation overlaps too.", "all_to_all", of_stack=True)
    cuda_graphs: CudaGraphs = stated(choice(get_args(CudaGraphs)),
        "CUDA graphs, which hide host time: none, of modules (partial), or of whole passes (full).", "none",
        of_stack=True)
    eager: EagerKernels = stated(choice(get_args(EagerKernels)),
        "Ops that run uncompiled, as several kernels of PyTorch: none, all of norms, rotary embedding and activation, "
        "or all but norms (RMSNorm is fused from PyTorch 2.9 on).", "none", of_stack=True)
    tensor_overlap: TensorOverlap = stated(choice(get_args(TensorOverlap)),
        "Overlap of tensor-parallel collectives: none, with weight gradients, or with all GEMMs.",
        "none", of_stack=True)
    fp8_recipe: Float8Recipe = stated(choice(get_args(Float8Recipe)),
        "Linears in 8 or 4 bit: scales per tensor (current or delayed), row or block of 128, MXFP8, or NVFP4 (plain: "
        "without Hadamard transforms).",
        "none",
        of_stack=True)
    fp8_linears: tuple[LinearKind, ...] = stated(
        names(get_args(LinearKind), "one or more of attention, mlp, experts"),
        "Linears that use fp8_recipe; router and logits never do.", get_args(LinearKind), of_stack=True)
    fp8_weights: bool = stated(FLAG, "Store weights of FP8 linears in FP8 only (--fp8-param-gather).", False,
        of_stack=True)
    fp8_activation_store: bool = stated(FLAG,
        "Save the input of the MLP's activation in FP8 (activation_func_fp8_input_store).", False, of_stack=True)
    fp8_attention: bool = stated(FLAG,
        "Fused attention in 8 bit (fp8_dot_product_attention).", False, of_stack=True)
    fp8_dispatch: bool = stated(FLAG, "Send tokens to experts, and gradients of their outputs, in FP8.", False,
        of_stack=True)
    expert_overlap: bool = stated(FLAG,
        "Overlap all-to-alls of experts with another micro-batch's compute (always with dualpipe).", False,
        of_stack=True)
    offload_optimizer: float = stated(number(0, 1, "a number from 0 to 1"),
        "Fraction of the optimizer states kept and updated on the host.", 0.0, of_stack=True)
    offload_activations: float = stated(number(0, 1, "a number from 0 to 1"),
        "Fraction of saved activations that is offloaded to the host.", 0.0,
        of_stack=True)
    offload_modules: tuple[OffloadModule, ...] = stated(
        names(get_args(OffloadModule), f"one or more of {', '.join(get_args(OffloadModule))}"),
        "Modules whose saved inputs are offloaded, by Megatron-LM's names.", ("all",), of_stack=True)
    host_link_gb_per_s: float = stated(number(0, 10_000, "GB/s from 0 to 10000"),
        "Bandwidth between device and host, per direction; 0 for the device table's (PCIe, NVLink-C2C).",
        0.0, of_stack=True)
    host_memory_gb_per_s: float = stated(number(0, 100_000, "GB/s from 0 to 100000"),
        "Host memory bandwidth per device for the optimizer; required with offload_optimizer.", 0.0,
        of_stack=True)
    power_limit_w: float = stated(watts(10_000), "Power limit of a device, such as 500W; 0 for its usual limit.", 0.0,
        unit="W", old=("power_limit",), of_stack=True)
    lora_rank: int = stated(_SIZE_OR_NONE, "Rank of LoRA's adapters; 0 to train all weights.", 0, of_stack=True)
    lora_linears: tuple[AdaptedLinear, ...] = stated(adapted(get_args(AdaptedLinear)),
        "Linears with adapters (target_modules); routed experts never have them.", ("attention", "mlp"), of_stack=True)
    lora_dropout: float = stated(number(0, 1, "a number from 0 to 1"), "Dropout before adapters.", 0.0, of_stack=True)
    frozen_weights: FrozenWeights = stated(choice(get_args(FrozenWeights)),
        "Dtype of linears frozen by LoRA: same as in training, or 4 bit (QLoRA) with a scale per 64 weights (nf4), "
        "which nf4_double stores in 8 bit.", "same", of_stack=True)
    objective: Objective = stated(choice(get_args(Objective)),
        "next_token (pre-training, SFT), or DPO on pairs of sequences: with the reference model's forward pass (dpo), "
        "or its log-probabilities computed before (dpo_precomputed).", "next_token", of_stack=True)


LAYOUT = table(*(replace(one.metadata["row"], name=one.name) for one in dataclass_fields(LayoutFields)))
"""Fields of a layout (`Parallelism`); the columns of a search in this order."""

DEGREES = tuple(row.name for row in LAYOUT.values() if row.degree)
"""Their product is the number of devices."""
EXPERT_DEGREES = ("ep", "expert_tp")
"""How the devices of a stage share its experts."""
EXPERT_LOAD = tuple(f"expert_{what}" for what in ("imbalance", "tokens", "capacity", "padding"))
"""Fields that decide the number of rows per expert."""
REPLICATING = tuple(row.name for row in LAYOUT.values() if row.replicates)
"""Their product is the number of devices that hold the same parameters."""
SAMPLES = ("dp", "micro_batch", "micro_batches")
"""Their product is the global batch."""
STACK = tuple(row.name for row in LAYOUT.values() if row.of_stack)
"""Fields of the software stack, the same in all layouts of a search."""
SHARED: Mapping[str, Field] = {
    name: replace(LAYOUT[name], default="balanced") if name == "layer_split" else LAYOUT[name] for name in STACK
}
"""Fields of the software stack with the defaults of a search: it balances layers by time."""
SEARCHED = tuple(name for name in LAYOUT if name not in (*STACK, "layer_counts"))
"""Fields that a search chooses."""

SEQUENCE_LENGTH = Field("sequence_length", _SIZE, "Sequence length in tokens.", otherwise="the model's", unit="tokens")
OPTIONS = table(
    Field("global_batch", _SIZE, "Samples per update; determines the micro-batches.", unit="samples"),
    Field("gpus_per_node", _DEGREE, "Devices per node.", otherwise="the fabric's, else the bundle's, else one node"),
    Field("fabric", text("a shipped fabric's name, or the path of a .toml or .kcast file", one_line=True),
        "Network: a name, a description (.toml) or a bundle of collectives (.kcast).",
        otherwise="the bundle's"),
    Field("stack", text("a shipped stack's name, or the path of a .toml file", one_line=True),
        "Software stack: correction factors fitted to measured steps (kernelcast stack list).",
        otherwise="the framework's, else no correction"),
    Field("framework", choice(get_args(FrameworkName)),
        "Training framework: sets its defaults and its stack, and allows only layouts that it runs.",
        otherwise="from --layout or --as, else none is assumed"),
    Field("bucket_entries", _SIZE, "Bucket size of gradient and parameter collectives.",
        DEFAULT_BUCKET_ENTRIES, unit="entries"),
    Field("timeline", choice(get_args(TimelineKind)), "Simulation of the schedule, or the paper's closed form (eq. 7).",
        "simulate"),
)
REQUEST: Mapping[str, Field] = {"sequence_length": SEQUENCE_LENGTH, **LAYOUT, **OPTIONS}
"""Fields of a prediction, apart from the model and `MEMORY`, which options give with a unit."""

# More than any device has: a typing error of a few zeros would make every layout fit.
GPU_MEMORY = Field("gpu_memory_bytes", replace(whole(1, 2**42), expected="a size from 1 byte to 4 TiB"),
    "Memory of a device.", otherwise="the bundle's", unit="bytes")
RESERVED_MEMORY = Field(
    "reserved_memory_bytes", whole(0, 2**60), "Memory of a device that driver and CUDA context take.",
    otherwise="1.5 GiB on GPUs, none on CPUs", unit="bytes",
)
MEMORY = table(GPU_MEMORY, RESERVED_MEMORY)

FIT_PROBABILITY = Field("fit_probability", number(0.001, 0.999, "a probability from 0.001 to 0.999"),
    "Minimum probability that a layout fits into a device's memory.", 0.95)
SEARCH = table(
    Field("gpus", _SIZE, "Number of devices, all of them used: one or several."),
    Field("rank_by", choice(get_args(RankBy)), "Rank by step time, or by tokens per second per device.", "step-time"),
    Field("top", whole(1, 10_000), "Number of layouts to show.", 10),
    FIT_PROBABILITY,
)
"""Fields that only a search has."""

STEPS = whole(1, 10**12)
TOKENS = Field("tokens", counted(1, 10**18), "Tokens to train on, such as 300B or 15T.")
DATA = table(
    TOKENS,
    Field("samples", counted(1, 10**15), "Samples of a fine-tuning data set, instead of --tokens."),
    Field("epochs", number(0, 1e6, "a number above 0 and at most 1e6", above=True),
        "Passes over the data set (--samples).", otherwise="1"),
    Field("sample_tokens", number(1, MAX_SIZE, f"a number from 1 to {MAX_SIZE}"),
        "Mean tokens of a sample without padding.", otherwise="one sample fills a sequence"),
    Field("packing_efficiency", number(0, 1, "a number above 0 and at most 1", above=True),
        "Fraction of a sequence's tokens that are not padding.", otherwise="1"),
)
"""How much is trained on."""
WISHES = table(
    Field("gpus", _SIZE, "Number of devices, all of them used; layout options that are not given are searched."),
    *DATA.values(),
    Field("days", number(0, 36_600, "days, a number above 0 and at most 36600", above=True),
        "Find the fewest devices that train on --tokens or --samples within this number of days."),
    Field("largest", choice(("global-batch", "sequence-length")),
        "Find the largest global batch or sequence length that fits into memory."),
)
"""Goals of a search, for a prediction that leaves parts of the layout open."""
# fmt: on


def renamed(values: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    """`values` under the current names of their fields; UsageError where a field is given by two of its names."""
    found: dict[str, Any] = {}
    for row in fields.values():
        names = [name for name in (row.name, *row.old) if name in values]
        if len(names) > 1:
            raise UsageError(f"{' and '.join(names)} are both given, expected only {row.name}")
    now = {old: row.name for row in fields.values() for old in row.old}
    for name, value in values.items():
        found[now.get(name, name)] = value
    return found
