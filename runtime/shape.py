"""The sizes that a workload vector can depend on (docs/method.md, Symbols)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Everything a workload vector can depend on (docs/method.md); fields that an operator does not use stay 1.

    `vocabulary_size` is the padded one. `attention_heads`, `kv_heads`, `mlp_size` and `vocabulary_size` are those of
    the whole model; workload vectors divide them by `tensor_parallel`. `explicit_head_size` is for models whose heads
    are not hidden_size / attention_heads wide.
    """

    micro_batch: int = 1
    sequence_length: int = 1
    hidden_size: int = 1
    attention_heads: int = 1
    explicit_head_size: int = 0
    kv_heads: int = 1
    mlp_size: int = 1
    vocabulary_size: int = 1
    tensor_parallel: int = 1
    stage_layers: int = 1
    stage_parameters: int = 1
    data_parallel: int = 1
    nodes: int = 1
    gpus_per_node: int = 1

    @property
    def tokens(self) -> int:
        """b·l, tokens of a micro-batch."""
        return self.micro_batch * self.sequence_length

    @property
    def head_size(self) -> int:
        """d/h, elements of a head."""
        return self.explicit_head_size or self.hidden_size // self.attention_heads

    @property
    def attention_width(self) -> int:
        """Width of all heads together: d, unless heads have a size of their own."""
        return self.attention_heads * self.explicit_head_size if self.explicit_head_size else self.hidden_size

    @property
    def local_heads(self) -> int:
        """h/tp, query heads on one device."""
        return self.attention_heads // self.tensor_parallel

    @property
    def local_kv_heads(self) -> int:
        """Key-value heads on one device."""
        return self.kv_heads // self.tensor_parallel

    @property
    def qkv_width(self) -> int:
        """Width of queries, keys and values together."""
        return (self.attention_heads + 2 * self.kv_heads) * self.head_size

    @property
    def local_mlp_size(self) -> int:
        """MLP columns on one device."""
        return self.mlp_size // self.tensor_parallel

    @property
    def local_vocabulary(self) -> int:
        """v/tp, vocabulary rows on one device."""
        return self.vocabulary_size // self.tensor_parallel
