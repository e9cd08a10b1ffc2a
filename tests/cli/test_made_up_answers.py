"""What commands print of answers that take minutes to compute, of made-up ones: `made_up_answers.txt`, to the letter.

WRITE_MADE_UP_ANSWERS=1 pytest THIS_FILE writes it again. Values are drawn by their types (made_up.py).
"""

import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace as stub
from typing import Any

import pytest

from kernelcast.cli import (
    collect,
    collect_plan,
    commons_sites,
    demo,
    probe,
    train,
    validate_data,
    validate_memory,
    validate_run,
    validate_steps,
)
from kernelcast.cli import predict as predict_
from kernelcast.collector.communication.peers import FailedAloneError, FirstFailedError, LostPeersError
from kernelcast.collector.compute import Collected
from kernelcast.collector.machine.peaks import PeakRates
from kernelcast.collector.machine.probe import Fingerprints
from kernelcast.runtime import DataError, Estimator, Parallelism, UsageError
from kernelcast.runtime.answers.uncertainty import StepErrors
from kernelcast.runtime.bundle.regressor_entry import KINDS
from kernelcast.runtime.estimate import fitting_changes, training  # noqa: F401 - for annotations
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.intent import best, fewest_devices, largest  # noqa: F401
from kernelcast.runtime.intent.answer import IntentAnswer
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.models import find_model
from kernelcast.sampling.collect import BudgetProgress, Reached
from kernelcast.sampling.preview import Preview
from kernelcast.store import Database
from kernelcast.store.commons.agreement import Agreement
from kernelcast.train.report.figures import TrainingFigures
from kernelcast.validate.comparison import COMPONENTS_OF_STEP
from kernelcast.validate.effects import Option
from kernelcast.validate.fabrics import FabricValidation
from kernelcast.validate.memory import MemoryValidation
from kernelcast.validate.prior import PriorValidation
from kernelcast.validate.published import Published
from kernelcast.validate.run_report import RunReport
from tests.cli.made_up import Maker
from tests.cli.printed import ended

_DEEP = re.compile(r'\n +(?=["\]}[{])|(?<=[\[,])\n +(?=[-\d.#tfn"]+,?$)', re.MULTILINE)
TEXT = Path(__file__).with_name("made_up_answers.txt")
TINY = {
    "hidden_size": 8,
    "sequence_length": 4,
    "attention_heads": 2,
    "layers": 4,
    "vocabulary_size": 100,
    "name": "tiny",
}
LAYOUTS = [
    Parallelism(pp=2, tp=2, dp=4, micro_batch=1, micro_batches=8, zero=3, recompute="full"),
    Parallelism(pp=2, tp=1, dp=1, micro_batch=2, micro_batches=4, schedule="interleaved", virtual_stages=2),
    Parallelism(pp=1, tp=1, dp=1, micro_batch=2, micro_batches=1, schedule="gpipe", recompute="selective"),
]
CONFIG = 'rounds = 1\n[models.tiny]\nhidden_size = 8\nsequence_length = 4\nattention_heads = 2\nlayers = 4\n' \
         'vocabulary_size = 100\n[defaults]\nmodel = "tiny"\npp = 1\ntp = 1\ndp = 1\nmicro_batch = 1\n' \
         'micro_batches = 2\n[[runs]]\n'  # fmt: skip
STEP = "--model tiny.toml --micro-batch 1 --micro-batches 3"


def reporting(made: Any) -> Callable[..., Any]:
    """Instead of long work: tells its progress, and returns what is made up."""

    def work(*_values: Any, **named: Any) -> Any:
        for name in ("on_progress", "on_import", "on_train", "on_imply"):
            for done in (0, 7) if name in named else ():
                named[name](done, 7, name)
        return made() if callable(made) else made

    return work


def within(make: Maker) -> Callable[..., Any]:
    """Instead of `collect_within`, which says more while it works."""

    def work(
        *_values: Any, budget_s: float, target: float, on_progress: Any, on_short: Any, on_too_large: Any
    ) -> Any:
        print(f"budget {budget_s}, target {target}")
        for _ in range(2):
            on_progress(make(BudgetProgress))
        on_short(61.2)
        on_too_large(("gemm", "gelu"), 3 << 29)
        return make(Reached)

    return work


def cases(make: Maker) -> Iterator[tuple[str, dict[tuple[Any, str], Any]]]:
    """Commands, and what stands in the place of what they call."""
    of = lambda kind: partial(make, kind)  # noqa: E731
    memory = {(validate_memory, "validate_memory"): reporting(of(MemoryValidation)),
              (validate_memory, "spreads_toml"): lambda _: "made up"}  # fmt: skip
    for options in ("", "--each", "--quiet", "--json", "-o spread.toml"):
        yield f"validate memory data {options}", memory
    published = {(validate_data, "published_runs"): lambda *_: None,
                 (validate_data, "validate_published"): reporting(of(Published))}  # fmt: skip
    for options in ("", "--quiet", "--from test.kcast"):
        yield f"validate published Site {options}", published
    for options in ("", "--json"):
        yield (
            f"validate fabrics data {options}",
            {(validate_data, "validate_fabrics"): reporting(of(FabricValidation))},
        )
    prior = {(validate_data, "validate_prior"): reporting(of(PriorValidation))}
    for options in ("", "--quiet", "--points 3 --draws 2 --json"):
        yield f"validate prior test.kcast some.db {options}", prior
    effects = lambda *_: tuple(make.of(Option, field=one) for one in (None, "zero", "overlap_gradients"))  # noqa: E731
    for options in ("", "--json"):
        yield f"validate steps --effects {options}", {(validate_steps, "option_effects"): effects}
        yield f"validate errors {options}", {(validate_steps, "step_errors"): lambda: make(StepErrors)}
    run = {
        (validate_run, "validate_run"): reporting(of(RunReport)),
        (validate_run, "available_cores"): lambda: 4,
    }
    for options in ("", "--by-operator", "--quiet", "--by-operator --quiet", "--threads 9", "--threads 5"):
        yield f"validate run --bundle test.kcast --db r.db --config run.toml {options}", run
    trained = {(train, "train_bundle"): lambda *_, **named: named["on_progress"](1, 1, "gemm"),
                (train, "figures"): lambda *_: make(TrainingFigures)}  # fmt: skip
    report = {**trained, (train, "write_report"): reporting(Path("report/index.html"))}
    for options in ("", "--quiet", "--prior test.kcast", "--report report"):
        yield f"train --db some.db -o x.kcast {options}", report
    compute = {(collect, "what_to_measure"): lambda *_: None, (collect, "collect_compute"): reporting(of(Collected)),
               (sys.modules["kernelcast.sampling.collect"], "collect_within"): within(make)}  # fmt: skip
    for options in ("", "--quiet", "--budget 10s", "--target 5%", "--budget 10s --again flagged", "--quiet --budget 9s",
                    "--prior test.kcast --points 3 --budget 9s", "--target 5% --procs-per-node 1,2"):  # fmt: skip
        yield f"collect compute --device cpu --db n.db {options}", compute
    by_prior = lambda *_: (make(Collected), stub(apart=("rope", "gelu")))  # noqa: E731
    yield "collect compute --device cpu --db n.db --prior test.kcast --points 3", {
        **compute, (collect_plan, "what_to_measure"): lambda *_: None,
        (sys.modules["kernelcast.sampling.by_prior"], "collect_by_prior"): by_prior}  # fmt: skip
    preview = {(sys.modules["kernelcast.sampling.preview"], "preview"): reporting(of(Preview))}
    for options in (
        "",
        "--json",
        "--for llama-2-7b --layouts tp2 -o own.toml",
        "--prior test.kcast --points 3",
    ):
        yield f"collect plan {options}", preview
    for status in (0, 3):
        workers = {
            (collect, "show_workers"): partial(workers_of, status),
            (collect, "what_to_exchange"): lambda *_: None,
        }
        yield "collect comm --db n.db --procs 2 --timeout 9s --layouts 1x2", workers
    stopped = (FirstFailedError("one"), FailedAloneError("two"), LostPeersError("three"), KeyboardInterrupt(),
               DataError("four"), UsageError("five"), OSError(28, "No space left on device"))  # fmt: skip
    for rank in (0, 1):
        for launched in ("", "1"):
            here = {(collect.World, "from_launcher"): lambda rank=rank: stub(rank=rank, local_rank=rank),
                    (collect, "ONE_VOICE"): "PATH" if launched else "NOTHING"}  # fmt: skip
            for options in ("", "--quiet"):
                yield (
                    f"collect comm --db n.db {options}",
                    {**here, (collect, "collect_comm"): reporting(of(Collected))},
                )
            for error in stopped:
                yield "collect comm --db n.db", {**here, (collect, "collect_comm"): partial(fail, error)}
    found = {
        (probe, "probe_machine"): reporting(of(Fingerprints)),
        (probe, "measure_peaks"): reporting(of(PeakRates)),
    }
    for options in ("", "--json"):
        yield f"probe --device cpu {options}", found
    agreed = {
        (commons_sites, "agreement"): lambda *_: [make(Agreement) for _ in range(make.drawn.choice([2, 23]))]
    }
    yield "commons report some.db", agreed
    whole = {(demo, "validate_run"): reporting(of(RunReport)), (demo, "measure_compute"): lambda *_: make(Collected),
             (demo, "train_bundle"): reporting(None), (train, "figures"): lambda *_: make(TrainingFigures),
             (demo, "probe"): lambda *_, **__: make(Fingerprints), (demo, "show_workers"): partial(workers_of, 0),
             (Estimator, "load"): lambda *_: None}  # fmt: skip
    for options in ("", "--quiet", "--again flagged"):
        yield f"demo --db n.db -o x.kcast {options}", whole
    yield "demo --db n.db -o x.kcast", {**whole, (demo, "show_workers"): partial(workers_of, 3)}
    answered = {(predict_._Request, "answer"): lambda *_: make.of(IntentAnswer, faster=None, best=None)}
    for options in ("", "--warnings", "--quiet", "--json"):
        yield f"predict --bundle test.kcast {STEP} {options}", answered


def workers_of(status: int, program: str, words: list[str], **more: Any) -> int:
    print("worker:", program, *words, more)
    return status


def fail(error: BaseException, *_values: Any, **_named: Any) -> None:
    raise error


def outcome(command: str, places: Mapping[tuple[Any, str], Any]) -> str:
    """What is printed, and the exit status."""
    out = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        for (owner, name), value in places.items():
            patch.setattr(owner, name, value)
        status = ended(*command.split())
    lines = _DEEP.sub(" ", out.getvalue()).splitlines()
    printed = "".join(f"{one if len(one) < 2000 else f'{one[:2000]} … {len(one)}'}\n" for one in lines)
    return f"$ kernelcast {command}\n{printed}{f'[{status}]' if status else ''}"


def everything(given: Mapping[Any, Sequence[Any]]) -> Iterator[str]:
    """Two of each command; those that made-up values make impossible are drawn again."""
    numbers = range(len(list(cases(Maker(0, given)))))
    for number in numbers:
        done = 0
        for seed in range(40):
            command, places = list(cases(Maker(1000 * number + seed, given)))[number]
            try:
                found = outcome(command, places)
            except (
                ArithmeticError,
                LookupError,
                ValueError,
                TypeError,
                AttributeError,
                AssertionError,
                NameError,
            ):
                last = traceback.format_exc()[-700:]
                continue
            yield found
            done += 1
            if done == 2:
                break
        if not done:
            raise AssertionError(f"{command}: no values make it possible\n{last}")


def test_what_is_printed(
    make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    bundle = make_bundle()
    assert bundle.parent == tmp_path
    monkeypatch.chdir(tmp_path)  # paths of another length would wrap lines elsewhere
    estimator = Estimator.load(Path(bundle.name))
    model = ModelConfig(**TINY)
    estimates = [estimator.predict(model=model, parallelism=one) for one in LAYOUTS]
    of_step = dict.fromkeys(COMPONENTS_OF_STEP, 0.25)
    components = (of_step, {**of_step, "PP_P2P": 0.5}, {"Encoder_Fwd": 0.125}, None)
    given = {"ComparedRun.implied_s": components, "MeasuredRun.measured_components": components,
             "MeasuredRun.published_components": components,
             ModelConfig: [model, find_model("llama-2-7b").model], Parallelism: LAYOUTS, Estimate: estimates,
             "HeldOut.kind": KINDS, "HeldOut.doublings": (1.0, 2.0, math.inf),
             "RegressorEntry.features": (("m", "n"),), "RegressorEntry.training_range": (((1.0, 2.0), (3.0, 400.0)),),
             "Trained.doubts": ({"impossible": 2, "outlier": 1}, {"impossible": 0, "outlier": 0}),
             "framework": ("megatron-lm", None), "Largest.field": ("global_batch", "sequence_length")}  # fmt: skip
    (tmp_path / "tiny.toml").write_text("".join(f"{key} = {value!r}\n" for key, value in TINY.items()))
    (tmp_path / "run.toml").write_text(CONFIG)
    with chdir(tmp_path):
        Database.open(tmp_path / "some.db", create=True).close()
        found = "\n".join(everything(given)) + "\n"
    found = found.replace(str(tmp_path), "HERE")
    if "WRITE_MADE_UP_ANSWERS" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
