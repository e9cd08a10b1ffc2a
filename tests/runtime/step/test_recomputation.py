"""Which layers and modules run again."""

import pytest

from kernelcast.runtime.step.recomputation import Recomputation


@pytest.mark.parametrize(
    ("kind", "recomputed", "of_chunk", "kept"),
    [
        ("full", 0, 4, 0),  # 0: all of them
        ("full", 1, 4, 3),
        ("full", 3, 4, 1),
        ("full", 4, 4, 0),
        ("full", 5, 4, 0),
        ("selective", 1, 4, 0),
        ("none", 1, 4, 0),
    ],
)
def test_layers_that_are_kept_whole(kind: str, recomputed: int, of_chunk: int, kept: int) -> None:
    assert Recomputation(kind=kind, layers=recomputed).kept_layers(of_chunk) == kept  # type: ignore[arg-type]


def test_modules_run_again_only_where_it_is_selective() -> None:
    for kind in ("none", "selective", "full"):
        how = Recomputation(kind=kind, modules=("mlp",))  # type: ignore[arg-type]
        assert how.runs_again("mlp") is (kind == "selective")
        assert not how.runs_again("core_attn")
