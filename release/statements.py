"""What is written next to a wheel: a bill of materials, where it was built from, and requirements with hashes.

`NAME.cdx.json` is CycloneDX 1.6, `NAME.provenance.json` an in-toto statement with SLSA's provenance (version 1),
unsigned, and `requirements.txt` what `pip install --require-hashes` needs. All follow from the files at hand.
"""

import importlib.metadata
import json
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PINNED = re.compile(r"^([a-z0-9._-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)
_BUILD_TYPE = "https://packaging.python.org/en/latest/specifications/pyproject-toml/"


def write_statements(archive: Path, wheel: Path, project: Mapping[str, Any], epoch_s: int) -> list[Path]:
    """Write all three next to archive and wheel; answers their paths."""
    name, version = project["project"]["name"], project["project"]["version"]
    digests = {path.name: _sha256(path) for path in (archive, wheel)}
    runtime = (ROOT / "constraints-runtime.txt").read_text(encoding="utf-8")
    bill = _bill(project["project"], digests[wheel.name], runtime, epoch_s)
    texts = {
        f"{name}-{version}.cdx.json": json.dumps(bill, indent=2, sort_keys=True) + "\n",
        f"{name}-{version}.provenance.json": json.dumps(_provenance(digests, epoch_s), indent=2) + "\n",
        "requirements.txt": f"{name}=={version} \\\n    --hash=sha256:{digests[wheel.name]}\n{runtime}",
    }
    for file, text in texts.items():
        (wheel.parent / file).write_text(text, encoding="utf-8")
    return [wheel.parent / file for file in texts]


def _bill(project: Mapping[str, Any], digest: str, runtime: str, epoch_s: int) -> dict[str, Any]:
    own, *others = (
        {"type": kind, "bom-ref": purl, "purl": purl, "name": name, "version": version}
        for kind, name, version in (
            ("application", project["name"], project["version"]),
            *(("library", name, version) for name, version, _ in _PINNED.findall(runtime)),
        )
        for purl in [f"pkg:pypi/{name}@{version}"]
    )
    own |= {"licenses": [{"license": {"id": project["license"]}}], "hashes": _hashes([digest])}
    needs = {own["purl"]: project["dependencies"]}
    for one, (name, _, lines) in zip(others, _PINNED.findall(runtime), strict=True):
        files = re.findall("sha256:([0-9a-f]{64})", lines)
        one["externalReferences"] = [{"type": "distribution", "url": one["purl"], "hashes": _hashes(files)}]
        needs[one["purl"]] = importlib.metadata.requires(name) or []
    purls = {one["name"]: one["purl"] for one in others}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(epoch_s, UTC).isoformat(), "component": own},
        "components": others,
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(purls[one] for one in _names(lines) & purls.keys())}
            for ref, lines in needs.items()
        ],
    }


def _names(requirements: list[str]) -> set[str]:
    """Names of requirements that hold without an extra."""
    needed = (one for one in requirements if "extra ==" not in one)
    return {re.split(r"[^A-Za-z0-9._-]", one)[0].lower().replace("_", "-") for one in needed}


def _provenance(digests: Mapping[str, str], epoch_s: int) -> dict[str, Any]:
    files = ("constraints.txt", "constraints-runtime.txt", "pyproject.toml")
    sources = [{"name": name, "digest": {"sha256": _sha256(ROOT / name)}} for name in files]
    if (ROOT / ".git").exists():
        command = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        sources.append({"name": "source", "digest": {"gitCommit": commit}})
    definition = {
        "buildType": _BUILD_TYPE,
        "externalParameters": {"command": "make dist", "SOURCE_DATE_EPOCH": epoch_s},
        "resolvedDependencies": sources,
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": {"builder": {"id": "release/dist.py"}}},
    }


def _hashes(digests: list[str]) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": one} for one in digests]


def _sha256(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
