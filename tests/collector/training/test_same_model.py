"""However a model is laid out, real steps train the same: losses, gradients, clipped or not, and updated weights."""

import json
from math import prod
from pathlib import Path

import pytest

from kernelcast.collector.launch import run_workers

GPT = {
    "name": "gpt", "hidden_size": 32, "sequence_length": 16, "attention_heads": 4, "layers": 4, "vocabulary_size": 200
}  # fmt: skip
LLAMA = GPT | {
    "name": "llama", "kv_heads": 2, "norm": "rms_norm", "activation": "swiglu", "mlp_size": 88, "biases": "none"
}  # fmt: skip
MIXTURE = LLAMA | {
    "name": "mixture", "experts": 4, "experts_per_token": 2, "expert_size": 40, "expert_latent_size": 20,
    "shared_expert_size": 24, "dense_layers": 1,
}  # fmt: skip
CONTEXT = {"cp": 2, "context_exchange": "all_to_all"}
LAYOUTS = {
    "1-2-1": {"tp": 2},
    "1-1-2": {"dp": 2, "zero": 0},
    "1-1-2, ZeRO-1": {"dp": 2},
    "2-1-1": {"pp": 2},
    "2-2-1": {"pp": 2, "tp": 2},
    "1-2-2": {"tp": 2, "dp": 2},
    "2-1-2": {"pp": 2, "dp": 2},
    "2-1-1, gpipe": {"pp": 2, "schedule": "gpipe"},
    "2-1-1, interleaved": {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
    "1-1-1, recomputed": {"recompute": "full"},
    "2-2-1, recomputed": {"pp": 2, "tp": 2, "recompute": "full"},
    "1-2-1, attention recomputed": {"tp": 2, "recompute": "selective"},
    "1-1-1, MLP and norms recomputed": {"recompute": "selective", "recompute_modules": ["mlp", "layernorm"]},
    "1-2-1, MLP recomputed": {"tp": 2, "recompute": "selective", "recompute_modules": ["mlp"]},
    "2-1-1, some layers recomputed": {"pp": 2, "recompute": "full", "recompute_layers": 1},
    "1-1-1-cp2": CONTEXT,
    "1-1-1-cp2, recomputed": CONTEXT | {"recompute": "full"},
    "1-2-1-cp2": CONTEXT | {"tp": 2},
    "1-1-2-cp2": CONTEXT | {"dp": 2},
    "2-1-1-cp2": CONTEXT | {"pp": 2},
}
OF_EXPERTS = {
    "1-1-2-ep2": {"dp": 2, "zero": 0, "ep": 2},
    "1-1-2-ep2, recomputed": {"dp": 2, "zero": 0, "ep": 2, "recompute": "full"},
    "1-1-2-ep2, experts recomputed": {
        "dp": 2,
        "zero": 0,
        "ep": 2,
        "recompute": "selective",
        "recompute_modules": ["moe"],
    },
    "1-1-4-ep2": {"dp": 4, "zero": 0, "ep": 2},
    "1-1-4-ep4": {"dp": 4, "zero": 0, "ep": 4},
    "2-1-2-ep2": {"pp": 2, "dp": 2, "zero": 0, "ep": 2},
    "1-1-2": {"dp": 2},
}
MODELS = {
    "gpt": GPT,
    "llama": LLAMA,
    "parallel residual": GPT | {"parallel_residual": True},
    "unfused": LLAMA | {"attention": "unfused", "rotary": False},
}

# Every rank trains its part of each layout and, by itself, the whole; then it compares what it holds.
WORKER = """
import json, sys, torch, torch.distributed as dist
from kernelcast.collector.training.groups import GroupCache, Groups, Shard
from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.worker import Trainer
from kernelcast.runtime import ModelConfig, Parallelism

NORM = 0.25  # well below the norm of these gradients

def own(name, whole, model, index, parts, experts):
    def rows(block): return block.chunk(parts)[index]
    if name.endswith((".experts_gate_up", ".experts_down")):
        return whole.chunk(experts[1])[experts[0]]
    if parts == 1: return whole
    if name.endswith((".qkv", ".qkv_bias")):
        h, k = model.attention_heads * model.head_size, model.kv_heads * model.head_size
        return torch.cat([rows(part) for part in whole.split([h, k, k])])
    if name.endswith((".mlp_up", ".mlp_up_bias", ".mlp_gate_up")):
        return torch.cat([rows(part) for part in whole.chunk(2 if model.activation == "swiglu" else 1)])
    if name.endswith((".attention_output", ".mlp_down")):
        return whole.chunk(parts, dim=1)[index]
    return rows(whole) if name.startswith(("embedding.", "logits.weights.logits")) else whole

def differences(model, options, cache, rank):
    layout = Parallelism(**{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 2, "micro_batches": 4} | options)
    groups = Groups.of(layout, rank, cache)
    alone = Parallelism(pp=1, tp=1, dp=1, micro_batch=2, micro_batches=4 * layout.dp)
    if groups is None: return None
    cpu = torch.device("cpu")
    trainer = Trainer(TrainingJob(model=model, parallelism=layout, bucket_entries=1000), groups, device=cpu, seed=3)
    no_groups = Groups(stage=0, data_index=0, shard=Shard(), world=None, pipeline=None, data=None, expert_data=None)
    whole = Trainer(TrainingJob(model=model, parallelism=alone), no_groups, device=cpu, seed=3)
    loss, expected = torch.tensor(trainer.passes()), whole.passes()
    dist.all_reduce(loss, group=groups.world)
    found = {"loss": [float(loss) / layout.tp, expected]}
    known = {}
    for what in ("gradients", "clipped", "weights"):
        if what == "clipped":
            trainer.clip(NORM), whole.clip(NORM)
            squares = torch.stack([p.grad.square().sum() for p in whole.chunks[0].parameters()])
            found["norm"] = float(squares.sum().sqrt())
        if what == "weights":
            trainer._optimizer.step(), whole._optimizer.step()
        values = {n: p if what == "weights" else p.grad for n, p in whole.chunks[0].named_parameters()}
        worst, compared = 0.0, 0
        for chunk, number in zip(trainer.chunks, range(groups.stage, layout.chunks, layout.pp)):
            before = sum(trainer._job.chunk_layers[:number])
            for name, parameter in chunk.named_parameters():
                head, _, tail = name.partition(".")
                if head == "layers":
                    index, _, rest = tail.partition(".")
                    name = f"layers.{before + int(index)}.{rest}"
                expected = own(name, values[name], model, groups.shard.index, layout.tp,
                               (groups.shard.experts.index, layout.ep))
                mine = parameter if what == "weights" else parameter.grad
                worst = max(worst, float((mine - expected).abs().max() / expected.abs().max().clamp_min(1e-12)))
                compared += mine.numel()
        found[what] = worst
    found["compared"] = compared
    return found

request = json.loads(open(sys.argv[1]).read())
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, cache, answers = dist.get_rank(), GroupCache(), {}
for label, (model, options) in request.items():
    answers[label] = differences(ModelConfig(**model), options, cache, rank)
    dist.barrier()
open(f"{sys.argv[2]}/{rank}", "w").write(json.dumps(answers))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_every_layout_trains_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compares.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cases = {f"gpt {name}": (GPT, options) for name, options in LAYOUTS.items()}
    cases |= {f"mixture {name}": (MIXTURE, options) for name, options in OF_EXPERTS.items()}
    windows = LLAMA | {"sliding_window": 5, "global_interval": 2}
    cases |= {"windows 1-1-1-cp2": (windows, CONTEXT)}
    cases |= {f"{name} 2-2-1": (model, {"pp": 2, "tp": 2}) for name, model in MODELS.items()}
    request = tmp_path / "request.json"
    request.write_text(json.dumps(cases))
    run_workers("compares", [str(request), str(tmp_path)], processes=4, threads=1, timeout_s=3000)
    ranks = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(4)]
    for label, (_, options) in cases.items():
        found = [rank[label] for rank in ranks if rank[label] is not None]
        sizes = [options.get(name, 1) for name in ("pp", "tp", "dp", "cp")]
        assert len(found) == prod(sizes), label
        for one in found:
            assert one["loss"][0] == pytest.approx(one["loss"][1], rel=1e-5), label
            assert one["loss"][1] == pytest.approx(5.55, abs=0.3), label  # ln 256: it knows nothing yet
            # float32 sums in another order; a wrong gradient is off by percents.
            assert one["gradients"] < 5e-4, label
            assert one["norm"] == pytest.approx(0.25, rel=1e-4), label
            assert one["clipped"] < 5e-4, label
            assert one["weights"] < 5e-4, label
            assert one["compared"] > 3000, label
