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
RUNTIME = ROOT / "constraints-runtime.txt"
_PINNED = re.compile(r"^([a-z0-9._-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)


def runtime_packages() -> dict[str, tuple[str, list[str]]]:
    """Version and SHA-256 of every file of the runtime's dependencies, from constraints-runtime.txt."""
    text = RUNTIME.read_text(encoding="utf-8")
    return {
        name: (version, re.findall("sha256:([0-9a-f]{64})", hashes))
        for name, version, hashes in _PINNED.findall(text)
    }


def write_statements(archive: Path, wheel: Path, project: Mapping[str, Any], epoch_s: int) -> list[Path]:
    """Write all three next to archive and wheel; answers their paths."""
    name, version = project["project"]["name"], project["project"]["version"]
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in (archive, wheel)}
    moment = datetime.fromtimestamp(epoch_s, UTC).isoformat()
    texts = {
        f"{name}-{version}.cdx.json": _json(_materials(project["project"], digests[wheel.name], moment)),
        f"{name}-{version}.provenance.json": _json(_provenance(digests, project, epoch_s)),
        "requirements.txt": f"{name}=={version} \\\n    --hash=sha256:{digests[wheel.name]}\n"
        + RUNTIME.read_text(encoding="utf-8"),
    }
    for file, text in texts.items():
        (wheel.parent / file).write_text(text, encoding="utf-8")
    return [wheel.parent / file for file in texts]


def _materials(project: Mapping[str, Any], digest: str, moment: str) -> dict[str, Any]:
    packages = runtime_packages()
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    purls = {name: f"pkg:pypi/{name}@{version}" for name, (version, _) in packages.items()}
    needs = {own: project["dependencies"]} | {
        purls[name]: importlib.metadata.requires(name) or [] for name in packages
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": moment,
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": purls[name],
                "name": name,
                "version": version,
                "purl": purls[name],
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": purls[name],
                        "hashes": [{"alg": "SHA-256", "content": one} for one in hashes],
                    }
                ],
            }
            for name, (version, hashes) in packages.items()
        ],
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(purls[one] for one in _names(lines) if one in purls)}
            for ref, lines in needs.items()
        ],
    }


def _names(requirements: list[str]) -> set[str]:
    """Names of requirements that hold without an extra."""
    return {
        re.split(r"[^A-Za-z0-9._-]", one)[0].lower().replace("_", "-")
        for one in requirements
        if "extra ==" not in one
    }


def _provenance(digests: Mapping[str, str], project: Mapping[str, Any], epoch_s: int) -> dict[str, Any]:
    materials = {
        file: ROOT / file for file in ("constraints.txt", "constraints-runtime.txt", "pyproject.toml")
    }
    commit = [{"name": "source", "digest": {"gitCommit": _commit()}}] if (ROOT / ".git").exists() else []
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://packaging.python.org/en/latest/specifications/pyproject-toml/",
                "externalParameters": {"command": "make dist", "SOURCE_DATE_EPOCH": epoch_s},
                "internalParameters": {"requires": project["build-system"]["requires"]},
                "resolvedDependencies": commit
                + [
                    {"name": file, "digest": {"sha256": sha256(path.read_bytes()).hexdigest()}}
                    for file, path in materials.items()
                ],
            },
            "runDetails": {"builder": {"id": "release/dist.py"}},
        },
    }


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
