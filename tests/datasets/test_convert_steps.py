"""tests/datasets/convert_steps.py: published tables become the runs files that ship."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernelcast.validate.runs import RunsFile
from tests.datasets import convert_steps as convert

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT.parent / "shared" / "data"
TABLES = {"llm-foundry": "steps/llm-foundry-a100.csv", "simumax": "simumax/b200_steps_part.json"}
CSV = """\
machine,model,hidden_size,attention_heads,layers,vocabulary,sequence_length,gpus,micro_batch,micro_batches,\
recompute,step_s
A100-SXM4-80GB,mpt-tiny,64,4,2,1000,128,16,3,2,full,1.5
A100-SXM4-40GB,mpt-tiny,64,4,2,1000,256,8,3,2,none,2.5
"""
ROW: dict[str, Any] = {
    "case": "llama3_70b_l12_tp1_pp2_dp4_mbc4_cef",
    "model": "llama3-70b",
    "layer_num": 12,
    "mbc": 4,
    "vp_size": 1,
    "pp_comm_async": False,
    "status": "ok",
    "real_ms": 843.0,
    "rel_err_pct": -1.5,
    "peak_memory_by_rank_mb": {"0": {"max_allocated_mb": 2048.0}, "4": {"max_allocated_mb": 1024.0}},
}


def read(texts: dict[str, str], folder: Path) -> dict[str, RunsFile]:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return {name: RunsFile.read(folder / f"{name}.toml") for name in texts}


def test_fsdp_steps_are_sorted_by_machine(tmp_path: Path) -> None:
    files = read(convert.llm_foundry(CSV.encode()), tmp_path)
    assert set(files) == {"llm-foundry-a100-40gb", "llm-foundry-a100-80gb"}
    assert {name[-4:]: file.device for name, file in files.items()} == {
        "40gb": "a100-sxm-40gb",
        "80gb": "a100-sxm",
    }
    [run] = files["llm-foundry-a100-80gb"].runs
    layout = run.parallelism
    assert (layout.dp, layout.micro_batch, layout.micro_batches, layout.zero) == (16, 3, 2, 3)
    assert (layout.recompute, run.measured_s) == ("full", 1.5)
    assert (run.model.name, run.model.sequence_length, run.model.learned_positions) == ("mpt-tiny", 128, 128)
    assert run.model.tied_embeddings
    assert not run.model.rotary


def test_megatron_steps_have_even_stages_and_the_fullest_ranks_memory(tmp_path: Path) -> None:
    parallel = ROW | {"case": "llama3_70b_tp2_pp1_dp4_l12_mbc4_cef"}
    texts = convert.simumax(json.dumps({"rows": [ROW, parallel]}).encode())
    one, other = read(texts, tmp_path)["simumax-b200"].runs
    assert (one.parallelism.layer_counts, one.parallelism.sequence_parallel) == ((6, 6), False)
    assert (other.parallelism.tp, other.parallelism.sequence_parallel) == (2, True)
    assert (one.memory_gib, one.measured_s, one.published_error) == ((2.0, 1.0), 0.843, -0.015)
    assert other.memory_gib == (2.0,)
    assert {run.parallelism.kept_by for run in (one, other)} == {"megatron"}


@pytest.mark.parametrize(
    "change",
    [
        {"status": "failed", "case": "llama3_70b_l12_tp4_pp1_dp2_mbc4_cef"},
        {"vp_size": 2, "case": "llama3_70b_l12_tp1_pp2_dp4_mbc8_cef"},
    ],
)
def test_what_cannot_be_asked_for_is_named_and_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    texts = convert.simumax(json.dumps({"rows": [ROW, ROW | change]}).encode())
    assert len(read(texts, tmp_path)["simumax-b200"].runs) == 1
    comment = " ".join(line[2:] for line in texts["simumax-b200"].splitlines() if line.startswith("#"))
    assert change["case"] in comment


def test_experts_and_context_parallelism_have_files_of_their_own(tmp_path: Path) -> None:
    rows = [
        ROW,
        ROW | {"case": "llama3_70b_l12_tp2_cp4_pp1_dp1_seq32768_mbc4_cef"},
        ROW | {"model": "deepseekv2", "case": "deepseekv2_tp1_ep8_pp1_dp8_l12_mbc4_cef"},
    ]
    files = read(convert.simumax(json.dumps({"rows": rows}).encode()), tmp_path)
    [dense], [context], [experts] = (
        files[f"simumax-b200{kind}"].runs for kind in ("", "-context", "-experts")
    )
    assert (dense.parallelism.cp, dense.model.sequence_length) == (1, 4096)
    assert (context.parallelism.cp, context.parallelism.context_exchange) == (4, "all_to_all")
    assert (context.model.sequence_length, context.parallelism.dp) == (32768, 1)
    assert (experts.parallelism.ep, experts.model.experts, experts.model.kv_rank) == (8, 160, 512)


@pytest.mark.parametrize("source", TABLES)
def test_what_ships_is_what_the_tables_say(source: str) -> None:
    table = DATA / TABLES[source]
    if not table.is_file():
        pytest.skip(f"no {TABLES[source]} in ../shared/data")
    for name, text in convert.CONVERT[source](table.read_bytes()).items():
        assert (ROOT / "validate" / f"{name}.toml").read_text(encoding="utf-8") == text
