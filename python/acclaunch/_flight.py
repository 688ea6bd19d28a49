# SPDX-License-Identifier: Apache-2.0
"""Answers the launcher's requests for the flight records of torch.distributed (docs/watching.md)."""

import json
import os
import pickle
import threading


def _groups():
    """The process groups of this program as torch lists them in its records. Its own list lacks the groups of gloo
    (torch 2.13), and torchfrtrace refuses such records."""
    from torch.distributed.distributed_c10d import _world

    return {group.group_name: {"name": group.group_name, "desc": group.group_desc, "ranks": str(sorted(ranks))}
            for group, ranks in list(_world.pg_group_ranks.items()) if hasattr(group, "group_name")}


def _answer(path, dump, module):
    content = module.loads(dump())
    content["pg_config"] = _groups()
    data = module.dumps(content)
    with open(path + ".new", "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
    os.rename(path + ".new", path)


def _serve(record, calls):
    while True:
        try:
            with open(record + ".request", "rb") as fifo:  # waits until the launcher opens it
                wanted = fifo.read()
            if b"j" in wanted:
                _answer(record + ".torch.json", calls._dump_fr_trace_json, json)
            if b"p" in wanted:  # with Python's stacks, whose lines torch looks up for seconds
                _answer(record + ".torch", calls._dump_fr_trace, pickle)
        except OSError:
            return  # the launcher has removed the files
        except Exception:  # noqa: BLE001: a program must not notice that it is watched
            continue


def serve():
    """Starts the thread that waits for requests, in the worker itself but not in its children."""
    from torch._C import _distributed_c10d as calls

    record = os.environ.get("ACC_FLIGHT_RECORD", "")
    if not record or "RANK" not in os.environ or not hasattr(calls, "_dump_fr_trace_json"):
        return
    try:
        os.mkfifo(record + ".request", 0o600)
    except OSError:
        return  # this is a child of the worker, or the folder is gone
    try:
        threading.Thread(target=_serve, args=(record, calls), name="acc-flight", daemon=True).start()
    except BaseException:  # no more threads: nobody will answer
        os.unlink(record + ".request")
        raise
