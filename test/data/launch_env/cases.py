#!/usr/bin/env python3
"""Reads and writes the cases of this folder (see README.md for the fields of a case).

    cases.py FOLDER [NAME...]     writes each case, or those named, to FOLDER/NAME.json, in full

bases.json has one complete case per front end and kind. cases.json has every case as the difference from one of
them: `base`, and a merge patch (RFC 7396). A rank is the difference from the rank before it, the first one from the
rank of the base.
"""
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def patched(value, patch):
    """Returns the value after the merge patch: null removes a key."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), change)
    return result


def difference(before, after):
    """Returns the merge patch that makes `after` of `before`."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    patch = {key: None for key in before if key not in after}
    for key, value in after.items():
        assert value is not None, f"{key}: a merge patch cannot set null"
        if key not in before or before[key] != value:
            patch[key] = difference(before.get(key), value)
    return patch


def expanded(name, change, bases):
    base = bases[change["base"]]
    case = {"name": name, "yaml": None, **patched(base, {key: value for key, value in change.items() if key != "base"})}
    if "ranks" in case:
        before = base["ranks"][0]
        case["ranks"] = [before := patched(before, rank) for rank in change["ranks"]]
    return case


def shortened(case, bases):
    """Returns the shortest difference of a case from a base."""
    case = {key: value for key, value in case.items() if key != "name" and (key, value) != ("yaml", None)}
    found = []
    for name, base in bases.items():
        change = {"base": name, **difference(base, case)}
        if "ranks" in case:
            if "ranks" not in base:
                continue
            ranks = [base["ranks"][0], *case["ranks"]]
            change["ranks"] = [difference(*pair) for pair in zip(ranks, ranks[1:])]
        found.append(change)
    return min(found, key=lambda change: len(json.dumps(change)))


def read():
    """Returns all cases by name."""
    bases, changes = (json.loads((HERE / name).read_text()) for name in ("bases.json", "cases.json"))
    return {name: expanded(name, change, bases) for name, change in changes.items()}


def line(value):
    return json.dumps(value, ensure_ascii=False)


def write(cases):
    bases = json.loads((HERE / "bases.json").read_text())
    texts = []
    for name, case in sorted(cases.items()):
        change = shortened(case, bases)
        assert expanded(name, change, bases) == case, name
        fields = []
        for key, value in change.items():
            if key == "ranks" and value is not None and len(value) > 1:
                ranks = ",\n".join("   " + line(rank) for rank in value)
                fields.append(f'  "ranks": [\n{ranks}\n  ]')
            else:
                fields.append(f"  {line(key)}: {line(value)}")
        texts.append(f" {line(name)}: {{\n" + ",\n".join(fields) + "\n }")
    (HERE / "cases.json").write_text("{\n" + ",\n".join(texts) + "\n}\n")


def main():
    folder = Path(sys.argv[1])
    found = read()
    for name in sys.argv[2:] or found:
        (folder / f"{name}.json").write_text(json.dumps(found[name], indent=1) + "\n")


if __name__ == "__main__":
    main()
