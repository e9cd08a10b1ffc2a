"""The pages of schedulers name files that exist, and say of them what is so."""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from kernelcast.runtime.request.models import built_in_names
from kernelcast.walltime import FIELDS

ROOT = Path(__file__).parents[2]
PAGES = ("flux", "openpbs", "lsf", "kubernetes")


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_files_that_are_named_exist(name: str) -> None:
    text = page(name)
    named = set(re.findall(r"integrations/[\w./-]*\w", text))
    assert named
    assert all((ROOT / path).is_file() for path in named)
    for path, anchor in re.findall(r"\]\(([\w./-]+)(#[\w-]+)?\)", text):
        target = (ROOT / "docs" / path).resolve()
        assert target.exists()
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor[1:] in {re.sub(r"[^\w-]", "", line.lower().replace(" ", "-")) for line in headings}


@pytest.mark.parametrize("name", PAGES)
def test_fields_that_are_named_exist(name: str) -> None:
    text = page(name)
    examples = re.findall(r"(?:user\.kernelcast\.|kernelcast/)([a-z_]+)[=:]", text)
    examples += [
        word for line in re.findall(r'KERNELCAST="(.*)"', text) for word in re.findall(r"(\w+)=", line)
    ]
    assert set(examples) <= {*FIELDS, "off"}
    assert set(re.findall(r"llama[\w.-]*b\b", text)) <= set(built_in_names())


def test_integrations_that_are_run_may_be_run() -> None:
    for path in ("lsf/esub.kernelcast", "kubernetes/kubectl-kernelcast"):
        assert os.access(ROOT / "integrations" / path, os.X_OK)


def test_every_scheduler_has_a_page_that_deploy_names() -> None:
    assert {*PAGES, "slurm"} <= {path.name for path in (ROOT / "integrations").iterdir()}
    assert all(f"({name}.md)" in page("deploy") for name in PAGES)


def test_the_example_of_kubernetes_is_a_job() -> None:
    job = yaml.safe_load((ROOT / "integrations" / "kubernetes" / "train-job.yaml").read_text())
    shown = re.search(r"```yaml\n(.*?)```", page("kubernetes"), re.DOTALL)
    assert shown is not None
    ours = yaml.safe_load(shown[1])["metadata"]["annotations"]
    assert ours.items() <= job["metadata"]["annotations"].items()


def test_the_seconds_that_pages_tell() -> None:
    flux = (ROOT / "integrations" / "flux" / "kernelcast.py").read_text()
    block = re.search(r"```toml\n(.*?)```", page("flux"), re.DOTALL)
    assert block is not None
    config = tomllib.loads(block[1])["ingest"]["frobnicator"]
    assert f"TIMEOUT_S = {config['kernelcast']['timeout']}" in flux
    assert config["plugins"].index("/etc/flux/kernelcast.py") < config["plugins"].index("defaults")
    hook = re.search(
        r"^TIMEOUT_S = ([\d.]+)", (ROOT / "integrations/openpbs/kernelcast_hook.py").read_text(), re.M
    )
    alarm = re.search(r"alarm=(\d+)", page("openpbs"))
    assert hook is not None
    assert alarm is not None
    assert 2 * float(hook[1]) < float(alarm[1])
    plugin = (ROOT / "integrations" / "kubernetes" / "kubectl-kernelcast").read_text()
    assert "KERNELCAST_TIMEOUT_S:-10" in plugin
    assert "(not set: 10)" in page("kubernetes")


def test_the_configuration_of_flux_has_the_keys_that_are_read() -> None:
    block = re.search(r"```toml\n(.*?)```", page("flux"), re.DOTALL)
    assert block is not None
    ours = tomllib.loads(block[1])["ingest"]["frobnicator"]["kernelcast"]
    assert set(ours) == set(
        re.findall(r'ours\.get\("(\w+)"', (ROOT / "integrations/flux/kernelcast.py").read_text())
    )
