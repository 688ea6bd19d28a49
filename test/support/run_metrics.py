# SPDX-License-Identifier: Apache-2.0
"""Steps in the metrics file of a training, of which some were made twice or by other machines than the last ones."""
import json


def steps_of(path):
    """The steps that a run has written; a killed rank may leave half a line."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def losses(path):
    """The losses by step; the last one of a step that was made twice."""
    return {step["step"]: step["loss"] for step in steps_of(path)}


def kept_steps(path):
    """The steps by number, as the run has made them last: from its end backwards, each the last one before the next. So
    without those after a step that the ranks went back to, and those of a rank 0 that others have given up."""
    lines = list(steps_of(path))
    made = {}
    for place, step in enumerate(lines):
        made.setdefault(step["step"], []).append(place)
    kept = [len(lines) - 1]
    for number in range(lines[-1]["step"] - 1, 0, -1):
        if places := [place for place in made.get(number, []) if place < kept[-1]]:
            kept.append(places[-1])
    return {lines[place]["step"]: lines[place] for place in reversed(kept)}


def stretches(steps, workers):
    """Returns [number of machines, last step] of each stretch of steps that the same number of machines made. If a line
    is missing, because rank 0 was killed, the others have made the step too."""
    found = []
    for number, step in steps.items():
        machines = len(step["ranks"]) // workers
        if found and found[-1][0] == machines:
            found[-1][1] = number
        else:
            if found:
                found[-1][1] = number - 1
            found.append([machines, number])
    return found
