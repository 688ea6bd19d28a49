# SPDX-License-Identifier: Apache-2.0
"""A validator for the subset of JSON Schema (2020-12) that the schemas in docs/ use."""
import json

TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "null": lambda v: v is None,
}
# All supported keywords. A schema with any other keyword fails the test.
KEYWORDS = {"$schema", "$defs", "title", "$ref", "oneOf", "type", "enum", "const", "minimum",
            "maximum", "minItems", "maxItems", "items", "properties", "required",
            "additionalProperties"}


class Schema:
    def __init__(self, path, knows_all=False):
        """`knows_all`: a field that the schema does not name is a fault, even if the schema permits it."""
        self.whole = json.loads(path.read_text())
        self.other_fields = False if knows_all else {}

    def faults(self, value, schema=None, at="$"):
        """Returns the places where `value` does not match `schema`, as a list of texts."""
        schema = self.whole if schema is None else schema
        assert schema.keys() <= KEYWORDS, schema.keys() - KEYWORDS
        if "$ref" in schema:
            return self.faults(value, self.whole["$defs"][schema["$ref"].rsplit("/", 1)[1]], at)
        if "oneOf" in schema:
            tried = [self.faults(value, one, at) for one in schema["oneOf"]]
            return [] if tried.count([]) == 1 else [f for one in tried for f in one]
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if types and not any(TYPES[t](value) for t in types):
            return [f"{at} is not of type {types}: {value!r}"]
        found = []
        if "enum" in schema and value not in schema["enum"]:
            found.append(f"{at} is not one of {schema['enum']}: {value!r}")
        if "const" in schema and value != schema["const"]:
            found.append(f"{at} is not {schema['const']!r}: {value!r}")
        if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            found.append(f"{at} is out of range: {value!r}")
        if isinstance(value, list):
            if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
                found.append(f"{at} has {len(value)} items")
            for i, item in enumerate(value):
                found += self.faults(item, schema.get("items", {}), f"{at}[{i}]")
        if isinstance(value, dict):
            found += [f"{at} lacks {name}" for name in schema.get("required", []) if name not in value]
            for name, item in value.items():
                rest = schema.get("additionalProperties", self.other_fields)
                if name in schema.get("properties", {}):
                    found += self.faults(item, schema["properties"][name], f"{at}.{name}")
                elif rest is False:
                    found.append(f"{at} has the unknown field {name}")
                else:
                    found += self.faults(item, rest, f"{at}.{name}")
        return found
