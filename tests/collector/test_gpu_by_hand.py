"""What is done on GPUs only, with torch's calls by hand: places, kernels of attention, groups, fingerprints."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kernelcast.collector.benches import BENCHES, Place, Point, UnsupportedError
from kernelcast.collector.communication import comm, peers
from kernelcast.collector.communication.collectives import Members
from kernelcast.collector.communication.layouts import layouts
from kernelcast.collector.communication.peers import LostPeersError, joined
from kernelcast.collector.communication.world import World
from kernelcast.collector.functions import transformer
from kernelcast.collector.machine import probe as probing
from kernelcast.collector.measuring import cache_state, companions, harness
from kernelcast.collector.measuring.companions import Companions, check_processes
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.runtime import UsageError
from tests.collector.training.compared import worker

GPU = Place(torch.device("cuda"), torch.bfloat16)


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Four GPUs; which device is chosen, and waited for."""
    found: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: found.append(f"on {device}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: found.append(f"waits for {device}"))
    return found


def test_processes_have_a_gpu_each(said: list[Any], plan: Plan) -> None:
    check_processes(4, GPU, threads=99)
    with pytest.raises(UsageError, match=r"^processes per node: found 5, expected at most 4, the GPUs here$"):
        check_processes(5, GPU, threads=1)
    own = Companions(4, Place(torch.device("cuda", 2), torch.float16), threads=3, seed=10)._settings
    assert [(str(place.device), place.dtype, *rest) for place, *rest in own] == [
        (f"cuda:{number}", torch.float16, (), 3, seed) for number, seed in ((3, 11), (0, 12), (1, 13))
    ]
    assert companions._place_of(1, GPU).device == torch.device("cuda", 1)
    settings: Any = SimpleNamespace(place=lambda: GPU, operators=())
    place, points = comm.what_to_exchange(
        plan, World(rank=6, local_rank=2, size=8, local_size=4), settings, "tp2"
    )
    assert (str(place.device), place.dtype, points[0].vector) == ("cuda:2", torch.bfloat16, (2048, 1, 2))
    message = (
        "collect comm: 5 processes and 4 CUDA device(s) on this node, expected a device for each process"
    )
    with pytest.raises(UsageError) as caught:
        comm.what_to_exchange(plan, World(rank=0, local_rank=0, size=5, local_size=5), settings, "")
    assert str(caught.value) == message
    assert [str(worker._device(kind, 6)) for kind in ("cuda", "cpu")] == ["cuda:2", "cpu"]
    assert said == ["on cuda:2"]


def test_a_gpus_cache_is_its_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=800)
    )
    monkeypatch.setattr(
        cache_state, "torch",
        SimpleNamespace(cuda=torch.cuda, ones=lambda *size, **more: made.append((size, more)) or torch.zeros(1)),
    )  # fmt: skip
    cache_state.CacheState(GPU.device).as_in_a_step([])
    assert made == [((300,), {"device": GPU.device})]


class OnGpu(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU.device


def test_attention_on_a_gpu_is_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[Any] = []

    @contextmanager
    def kernel(backend: Any) -> Iterator[None]:
        forced.append(backend)
        yield

    monkeypatch.setattr(transformer, "sdpa_kernel", kernel)
    plain = [torch.randn(2, 5, heads, 3) for heads in (4, 2, 2)]
    query, key, value = (one.as_subclass(OnGpu) for one in plain)
    expected = transformer.causal_attention(*plain)
    assert forced == []
    found: dict[str, Any] = {}
    monkeypatch.setattr(transformer, "version", lambda name: {"flash-attn": "2.9"}[name])
    for package, calls in ((None, 1), (SimpleNamespace(flash_attn_func=lambda *given, causal: found.update(
        given=given, causal=causal) or torch.full((2, 5, 4, 3), 7.0)), 0)):  # fmt: skip
        monkeypatch.setitem(sys.modules, "flash_attn", package)
        transformer._function.cache_clear()
        transformer.flash_attn_version.cache_clear()
        said = transformer.causal_attention(query, key, value)
        assert said.shape == (2, 5, 12)
        assert forced == [torch.nn.attention.SDPBackend.FLASH_ATTENTION] * calls
        assert transformer.flash_attn_version() == ("2.9" if package else "")
        if package is None:
            torch.testing.assert_close(said.as_subclass(torch.Tensor), expected)
        else:
            assert (said == 7).all()
            assert (found["given"], found["causal"]) == ((query, key, value), True)
        forced.clear()
    transformer.masked_attention(query, key, value, torch.ones(5, 5, dtype=torch.bool))
    assert forced == []  # torch's flash kernel takes no mask
    transformer.masked_attention(query, key, value, None)
    assert len(forced) == 1
    transformer._function.cache_clear()
    transformer.flash_attn_version.cache_clear()


@pytest.mark.parametrize(
    ("operator", "vector"), [("flash_attention", (1, 8, 4, 4, 8)), ("attention_block", (1, 8, 8, 4, 4, 4, 8))]
)
def test_attention_on_a_gpu_is_of_16_bit(operator: str, vector: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match=r"^flash attention on CUDA needs fp16 or bf16, found fp32$"):
        BENCHES[operator](Point(operator=operator, vector=vector), Place(GPU.device, torch.float32))


def test_kernels_are_profiled_where_there_are_any(monkeypatch: pytest.MonkeyPatch, said: list[Any]) -> None:
    asked: list[Any] = []

    @contextmanager
    def profile(activities: list[Any]) -> Iterator[Any]:
        asked.append([one.name for one in activities])
        yield SimpleNamespace(export_chrome_trace=lambda path: None)

    monkeypatch.setattr(harness, "profile", profile)
    monkeypatch.setattr(harness, "read_trace", lambda path: path.name)
    for device in (torch.device("cpu"), GPU.device):
        assert harness.profiled(device, lambda: asked.append("work")) == "trace.json"
        harness.synchronise(device)
    assert asked == [["CPU"], "work", ["CPU", "CUDA"], "work"]
    assert said == ["waits for cuda"]


def test_fingerprints_of_a_node_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "gpu_fields", lambda device: {"kind": "cuda", "device_name": "Example GPU"})
    monkeypatch.setattr(probing, "gpu_links", lambda: ("NVLink ×18",))
    monkeypatch.setattr(probing, "network_links", lambda: ("400 Gb/s ×8",))
    monkeypatch.setattr(probing, "driver_version", lambda: "550.1")
    monkeypatch.setattr(probing, "flash_attn_version", lambda: "2.9")
    monkeypatch.setattr(probing.os, "environ", {"NCCL_ALGO": "Ring", "OTHER": "1", "OMP_PROC_BIND": "true"})
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    found = probing.probe(GPU.device, threads=3, processes=2)
    assert (found.compute.kind, found.compute.device_name) == ("cuda", "Example GPU")
    fabric, software = found.fabric, found.software
    assert (fabric.backend, fabric.gpus_per_node, fabric.links, fabric.nics) == (
        "nccl", 4, ("NVLink ×18",), ("400 Gb/s ×8",)
    )  # fmt: skip
    assert (software.torch, software.driver, software.cuda, software.cudnn, software.nccl) == (
        torch.__version__, "550.1", "12.8", "91002", "2.27.3",
    )  # fmt: skip
    assert {"NCCL_ALGO=Ring", cache_state.SETTING, "flash-attn=2.9"} <= set(software.environment)
    assert not any(one.startswith("OTHER") for one in software.environment)


class Distributed:
    """torch.distributed of one process of four, which says what it is asked."""

    def __init__(self, said: list[Any], backend: str) -> None:
        self.said, self.backend, self.group = said, backend, SimpleNamespace(WORLD="world")

    def get_backend(self) -> str:
        return self.backend

    def init_process_group(self, *given: Any, **more: Any) -> None:
        self.said.append(("init", *given, more))

    def new_group(self, ranks: Any = None, backend: str = "") -> str:
        self.said.append(("new", ranks, backend))
        return f"group {ranks or backend}"

    def barrier(self, group: str) -> None:
        self.said.append(("barrier", group))

    def all_gather_object(self, found: list[Any], value: Any, group: str) -> None:
        assert found == [None] * 4
        found[:] = [(value, rank, group) for rank in range(4)]

    def broadcast_object_list(self, box: list[Any], src: int, group: str) -> None:
        box[0] = (*box, src, group)

    def destroy_process_group(self) -> None:
        self.said.append("destroyed")


@pytest.mark.parametrize(
    ("device", "backend", "control"), [("cuda", "nccl", "group gloo"), ("cpu", "gloo", "world")]
)
def test_processes_that_join(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str, control: str
) -> None:
    said: list[Any] = []
    heard: list[int] = []
    monkeypatch.setattr(peers, "dist", Distributed(said, backend))
    monkeypatch.setattr(peers, "calm_gloo", lambda: said.append("calm"))
    watchdog: Any = SimpleNamespace(heard=lambda: heard.append(1), interrupted="perhaps")
    world = World(rank=1, local_rank=1, size=4, local_size=4, init_method="tcp://x")
    asked: dict[str, Any] = {"timeout_s": 5.0, "watchdog": watchdog}
    begin = [
        ("init", backend, {"init_method": "tcp://x", "rank": 1, "world_size": 4, "timeout": timedelta(seconds=65)}),
        "calm", *([("new", None, "gloo")] if device == "cuda" else []),
    ]  # fmt: skip
    with joined(world, torch.device(device), **asked) as own:
        assert (said, len(heard), own.interrupted) == (begin, 1, "perhaps")
        assert own.gather("x") == [("x", rank, control) for rank in range(4)]
        assert own.from_first("x") == ("x", 0, control)
        assert len(heard) == 3
        [pairs, whole] = layouts("1x2,1x4", world)
        for _ in range(2):
            assert own.members(pairs) == Members(ranks=(0, 1), handle="group [0, 1]")  # type: ignore[arg-type]
            assert own.members(whole) == Members(ranks=(0, 1, 2, 3), handle="world")  # type: ignore[arg-type]
        assert said[len(begin) :] == [("new", [0, 1], ""), "calm", ("new", [2, 3], ""), "calm"]
        said.clear()
    assert said == [("barrier", control)] * 2 + ["destroyed"]
    assert len(heard) == 9
    for error in (ArithmeticError("odd"), KeyboardInterrupt()):
        said.clear()
        with pytest.raises(type(error)), joined(world, torch.device(device), **asked):
            raise error
        assert said == [*begin, "destroyed"]

    def fails(*given: Any, **more: Any) -> None:
        raise RuntimeError("[x] gone")

    monkeypatch.setattr(peers.dist, "barrier", fails)
    with (
        pytest.raises(LostPeersError, match=f"{backend}: .*gone"),
        joined(world, torch.device(device), **asked),
    ):
        pass
    assert said[-1] == "destroyed"
    monkeypatch.setattr(peers.dist, "destroy_process_group", fails)
    with pytest.raises(ArithmeticError), joined(world, torch.device(device), **asked):
        raise ArithmeticError("first")
    assert dist.group.WORLD is None
