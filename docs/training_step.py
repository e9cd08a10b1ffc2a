"""A small GPT that two processes train with data parallelism, with a trace of three steps: the example of traces.md.

torchrun --nproc-per-node 2 training_step.py traces
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

D, HEADS, LAYERS, LENGTH, VOCABULARY, SAMPLES = 256, 4, 4, 256, 8000, 2  # as in traced-gpt.toml
STEPS = 3


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        b, length, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, length, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, length, d))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    """Token ids [b, length] to logits [b · length, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, D), nn.Embedding(LENGTH, D)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(LENGTH, device=tokens.device))
        logits: Tensor = self.head(self.norm(self.blocks(x))).flatten(0, 1)
        return logits


def train(folder: Path, before_step: Callable[[], None] = lambda: None) -> None:
    """Train six steps, and trace the last three into `folder`."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.set_num_threads(1)
    model = Model().to(device)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(
        activities=activities, record_shapes=True, schedule=schedule(wait=1, warmup=2, active=STEPS)
    ) as profiler:
        for _ in range(3 + STEPS):
            before_step()
            tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), device=device)
            logits = parallel(tokens[:, :-1])
            functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    folder.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"rank{dist.get_rank()}.json.gz"))
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
