"""Write every setting of the agent into the chart's values.schema.json, under ``config``.

python tools/manifests/settings.py          write it
python tools/manifests/settings.py --check  exit 1 if it is stale
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from otel_gpu.config import SETTINGS

SCHEMA: Final = Path(__file__).parents[2] / "deploy/helm/otel-gpu/values.schema.json"


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the current settings."""
    config = schema["properties"]["config"] | {
        "properties": {
            setting.key: {
                "description": f"{setting.help}; valid: {setting.type.use}",
                "type": ["string", "number", "boolean"],
            }
            for setting in SETTINGS
        }
    }
    return schema | {"properties": schema["properties"] | {"config": config}}


def main(arguments: list[str]) -> int:
    """Write the schema, or check whether it is stale."""
    text = SCHEMA.read_text(encoding="utf-8")
    made = json.dumps(with_settings(json.loads(text)), indent=2, ensure_ascii=False) + "\n"
    if arguments == ["--check"]:
        return int(made != text)
    SCHEMA.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
