# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/api.md have the form that docs/api.schema.json says, and the schema rejects others.

    api_schema_test.py SOURCE_FOLDER
"""
import json
import re
import sys
from pathlib import Path

SOURCE = Path(sys.argv[1]).absolute()
sys.path.insert(0, str(SOURCE / "test/support"))
from json_schema import Schema  # noqa: E402

SCHEMA = Schema(SOURCE / "docs/api.schema.json")


def faults(value, kind):
    return SCHEMA.faults(value, {"$ref": f"#/$defs/{kind}"})


page = (SOURCE / "docs/api.md").read_text()
examples = re.findall(r"^```json (\w+)\n(.*?)^```$", page, re.M | re.S)
assert {kind for kind, _ in examples} == {"jobs", "ranks", "rounds", "events", "history", "error"}, examples
for kind, text in examples:
    value = json.loads(text)
    assert faults(value, kind) == [], (kind, faults(value, kind))
    for name in value:
        assert faults({k: v for k, v in value.items() if k != name}, kind), (kind, name)
    assert faults({**value, "more": 1}, kind), kind
