# SPDX-License-Identifier: Apache-2.0
"""Answers the launcher's requests for the flight records of torch.distributed, and for the places where the threads of
this program are (docs/watching.md)."""

import json
import os
import pickle
import sys
import threading


def _groups():
    """The process groups of this program as torch lists them in its records. Its own list lacks the groups of gloo
    (torch 2.13), and torchfrtrace refuses such records."""
    from torch.distributed.distributed_c10d import _world

    return {group.group_name: {"name": group.group_name, "desc": group.group_desc, "ranks": str(sorted(ranks))}
            for group, ranks in list(_world.pg_group_ranks.items()) if hasattr(group, "group_name")}


def _dumped(dump, module):
    content = module.loads(dump())
    content["pg_config"] = _groups()
    data = module.dumps(content)
    return data.encode() if isinstance(data, str) else data


def _stacks():
    """The stacks of all threads but this one, the innermost call first. Reads no source: a file system may hang."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        lines.append(f"Python thread {names.get(ident, ident)}:")
        while frame is not None:
            code = frame.f_code
            lines.append(f"    {code.co_name} ({code.co_filename}:{frame.f_lineno})")
            frame = frame.f_back
    return ("\n".join(lines) + "\n").encode(errors="backslashreplace")


def _answer(path, data):
    new = path + ".new"
    try:
        os.unlink(new)
    except FileNotFoundError:
        pass
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)
    os.rename(path + ".new", path)


def _serve(record, calls):
    while True:
        try:
            with open(record + ".request", "rb") as fifo:  # waits until the launcher opens it
                wanted = fifo.read()
            if b"s" in wanted:
                _answer(record + ".stacks", _stacks())
            if b"j" in wanted:
                _answer(record + ".torch.json", _dumped(calls._dump_fr_trace_json, json))
            if b"p" in wanted:  # with Python's stacks, whose lines torch looks up for seconds
                _answer(record + ".torch", _dumped(calls._dump_fr_trace, pickle))
        except OSError:
            return  # the launcher has removed the files
        except Exception:  # noqa: BLE001: a program must not notice that it is watched
            continue


def serve():
    """Starts the thread that waits for requests, in the worker itself but not in its children."""
    from torch._C import _distributed_c10d as calls

    record = os.environ.get("ACC_FLIGHT_RECORD", "")
    if not record or "RANK" not in os.environ:
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
