# SPDX-License-Identifier: Apache-2.0
"""Computes the share of communication hidden behind compute from a timeline (ACC_TRACE)."""
import json


def read_events(path):
    """Complete events of a Chrome trace, one per line; an incomplete last line is skipped."""
    events = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            text = line.strip().strip("[],").strip()
            if not text:
                continue
            try:
                event = json.loads(text)
            except ValueError:
                continue
            if event.get("ph", "X") == "X" and "dur" in event:
                events.append(event)
    return events


def merged(intervals):
    """Merges intervals [begin, end) to sorted ones without overlap that cover the same time."""
    result = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def common(a, b):
    """Time that both of two merged lists cover."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def ends_of_steps(events, rank):
    return sorted(float(e["ts"]) + float(e["dur"]) for e in events if e["pid"] == rank and e.get("cat") == "step")


def overlap(events, warmup):
    """{rank: {"communication_us", "hidden_us", "wait_us", "share"}}, without the first `warmup` steps.

    hidden: communication while the rank computes; wait: time in which the compute stream waits for
    communication; share: hidden over all communication, None if there is none.
    """
    result = {}
    for rank in sorted({event["pid"] for event in events}):
        ends = ends_of_steps(events, rank)
        begin = ends[warmup - 1] if 0 < warmup <= len(ends) else 0.0

        def intervals(*categories):
            return merged((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events
                          if e["pid"] == rank and e.get("cat") in categories and
                          float(e["ts"]) >= begin)
        communication = intervals("communication")
        computing = intervals("compute", "optimizer", "checkpoint")
        total, hidden = length(communication), common(communication, computing)
        result[rank] = {"communication_us": total, "hidden_us": hidden,
                        "wait_us": length(intervals("wait")),
                        "share": hidden / total if total > 0 else None}
    return result
