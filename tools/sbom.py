"""Write the bill of materials of the agent as CycloneDX 1.6 JSON: ``python tools/sbom.py OUT``, or ``make sbom``.

It lists the packages pinned in constraints/runtime.txt with their hashes, and the metadata of the installed packages.
The same input gives the same bytes: the time is SOURCE_DATE_EPOCH, or absent.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[1]
RUNTIME: Final = ROOT / "constraints/runtime.txt"
NAME: Final = "otel-gpu"

_PIN: Final = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[\w.+!-]+)(?: *; *(?P<marker>[^\\]+?))? *\\?$")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
# Packages from before License-Expression (PEP 639) use free text.
_SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
}
_EXPRESSION: Final = re.compile(r"[A-Za-z0-9.+-]+-[0-9][A-Za-z0-9.]*|MIT|[A-Z0-9-]+-[0-9]-Clause")


class Pinned(NamedTuple):
    """A pinned package with the hashes of all its files."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def pinned(text: str) -> Iterator[Pinned]:
    """The packages that a constraints file pins for this platform."""
    for entry in re.split(r"\n(?=\S)", text.strip()):
        first, _, rest = entry.partition("\n")
        found = _PIN.match(first)
        if found is None:
            raise SystemExit(f"{RUNTIME.name}: this is no pinned package: {first}")
        marker = found["marker"]
        if marker is None or Requirement(f"x ; {marker}").marker.evaluate():  # type: ignore[union-attr]  # it has one
            yield Pinned(canonicalize_name(found["name"]), found["version"], tuple(sorted(_HASH.findall(rest))))


def licences(about: metadata.PackageMetadata) -> list[dict[str, Any]]:
    """The licence of a package, as an SPDX expression if possible."""
    expression, words_of_old = ((about.get_all(key) or [""])[0] for key in ("License-Expression", "License"))
    texts = [expression, words_of_old, *(about.get_all("Classifier") or ())]
    for said in filter(None, texts):
        word = _SPDX.get(said, said)
        if said == expression or word != said or _EXPRESSION.fullmatch(word):
            return [{"expression": word}]
    words = [said.rpartition(" :: ")[2] for said in filter(None, texts) if "\n" not in said and "License" in said]
    name = words[0] if words else words_of_old
    return [{"license": {"name": name}}] if name else []


def component(package: Pinned) -> dict[str, Any]:
    """A package that the agent needs."""
    try:
        about = metadata.metadata(package.name)
    except metadata.PackageNotFoundError:
        raise SystemExit(f"{package.name} is pinned and not installed; run: make .venv/.runtime") from None
    if about["Version"] != package.version:
        raise SystemExit(f"{package.name} is pinned to {package.version}, and {about['Version']} is installed")
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "scope": "required",
        "licenses": licences(about),
        "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
    }


def needs(name: str, among: Mapping[str, str]) -> list[str]:
    """References of the packages that a package requires."""
    required = (Requirement(line) for line in metadata.requires(name) or ())
    wanted = {
        canonicalize_name(one.name) for one in required if one.marker is None or one.marker.evaluate({"extra": ""})
    }
    return sorted(among[each] for each in wanted if each in among)


def document(packages: list[Pinned], epoch: str | None) -> dict[str, Any]:
    """The bill of materials."""
    about = metadata.metadata(NAME)
    version = about["Version"]
    own = f"pkg:pypi/{NAME}@{version}"
    references = {package.name: package.purl for package in packages}
    components = [component(package) for package in packages]
    contents = json.dumps([own, components], sort_keys=True)
    stated = {} if not epoch else {"timestamp": datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, contents)}",
        "version": 1,
        "metadata": {
            **stated,
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": NAME,
                "version": version,
                "purl": own,
                "licenses": licences(about),
            },
        },
        "components": components,
        "dependencies": [
            {"ref": own, "dependsOn": needs(NAME, references)},
            *({"ref": package.purl, "dependsOn": needs(package.name, references)} for package in packages),
        ],
    }


def main(arguments: list[str]) -> int:
    """Write the file; the exit code."""
    [out] = arguments or ["dist/sbom.cdx.json"]
    packages = sorted(pinned(RUNTIME.read_text(encoding="utf-8")))
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document(packages, os.environ.get("SOURCE_DATE_EPOCH")), indent=2)
    path.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{path}: {len(packages)} packages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
