# SPDX-License-Identifier: Apache-2.0
"""The setting save_async with --engine acc (docs/checkpoints.md, "Saves beside the training"): what Accelerate's
save_state and DeepSpeed's save_checkpoint write goes to files in memory, and a thread of each rank copies them to their
folder while the training goes on."""

import contextlib
import functools
import glob
import os
import shutil
import sys
import threading

import torch
import torch.distributed as dist

from acclaunch._library import say

_NICENESS = 15  # as that of the runtime's own thread
_saving = None  # the Save whose files are made now
_in_flight = None  # the Save that a thread writes
_made = 0  # number of Saves, equal on all ranks
was_used = False
_at_once = False  # in a save into a folder that has files


def is_on():
    return os.environ.get("ACC_SAVE_ASYNC", "false") == "true"


def _leads():
    """True for one rank of each machine: those of others may not see its folders."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


class Save:
    """Files in memory of a folder, and what happens when they have been written. name: of the checkpoint, for
    messages."""

    def __init__(self, name, folder, number):
        self.name, self.folder, self.number = name, os.path.abspath(folder), number
        self.files = {}  # by path: a descriptor
        self.commits, self.folders = [], []  # of at_end
        self.hidden = None  # the name that the folder has until then
        self.done, self.mistake = threading.Event(), ""
        # Kept, since the program may destroy its process group before the end.
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.store = dist.distributed_c10d._get_default_store() if self.ranks > 1 else None

    # ---- files in memory

    def takes(self, path):
        """True for a file of the folder; others are the program's own."""
        return _is_in(os.path.abspath(path), self.folder)

    @contextlib.contextmanager
    def open(self, path):
        path = os.path.abspath(path)
        self.remove(path)
        self.files[path] = os.memfd_create("acc save_async", os.MFD_CLOEXEC)
        with open(self.files[path], "wb", closefd=False) as file:
            yield file

    def remove(self, path):
        if path in self.files:
            memory = self.files.pop(path)
            os.ftruncate(memory, 0)  # a process that was forked meanwhile, as those of a DataLoader, has it open too
            os.close(memory)

    def drop(self):
        for path in [*self.files]:
            self.remove(path)

    # ---- names of folders

    def place(self, path):
        """The present place of a path."""
        path = os.path.abspath(path)
        if self.hidden is not None and _is_in(path, self.folder):
            return os.path.join(self.hidden, os.path.relpath(path, self.folder))
        return path

    def hide(self):
        """Gives the folder, which was made in this save, another name until all ranks have written. Collective."""
        hidden = _hidden_name(self.folder)
        _barrier()
        if _leads():
            with contextlib.suppress(FileNotFoundError):  # that of another machine has, in a folder that both see
                os.rename(self.folder, hidden)
            self.folders.append(hidden)
        _barrier()
        self.hidden = hidden

    # ---- writing

    def at_end(self, commit, folder):
        """commit: called when all ranks have written. folder: removed if one cannot."""
        self.commits.append(commit)
        self.folders.append(folder)

    def commit(self):
        for commit in self.commits:
            commit()

    def _show(self):
        """After the commits of all ranks, which are in the hidden folder."""
        if self.hidden is not None and _leads():
            _show(self.folder, self.hidden)

    def run(self):
        """In the thread."""
        os.nice(_NICENESS)  # of this thread, and so its I/O priority
        try:
            for moment, function in (("written", self._write), ("named", self.commit), ("shown", self._show)):
                if not self.mistake:
                    self._agree(moment, self._tried(function))
            if self.mistake:
                for folder in self.folders:
                    shutil.rmtree(self.place(folder), ignore_errors=True)
                self._agree("removed", self.mistake)
        except Exception as error:  # noqa: BLE001: of the store, whose host may have ended
            self.mistake = self.mistake or f"the ranks could not agree that it is complete: {error}"
        self.drop()
        self.done.set()

    def _tried(self, function):
        try:
            function()
        except Exception as error:  # noqa: BLE001: never ends the training
            return f"rank {self.rank}: {error}"
        return ""

    def _write(self):
        for path, memory in [*self.files.items()]:
            with open(self.place(path), "wb") as file:
                at, size = 0, os.fstat(memory).st_size
                while at < size:
                    at += os.sendfile(file.fileno(), memory, at, min(size - at, 1 << 24))
                os.fsync(file.fileno())
            self.remove(path)

    def _agree(self, moment, mistake):
        """Waits until all ranks have called it; `self.mistake` is one of theirs then. The ranks meet in the job's
        store, since only one thread may issue collectives."""
        if self.ranks == 1:
            self.mistake = mistake
            return
        store = dist.PrefixStore(f"acc/save_async/{self.number}/{moment}", self.store)
        if mistake:
            store.set("mistake", mistake)
        store.add("ranks", 1)
        pause = threading.Event()
        # A wait in the store would keep the program's other calls of it waiting.
        while store.add("ranks", 0) < self.ranks:
            pause.wait(0.02)
        if store.check(["mistake"]):
            self.mistake = store.get("mistake").decode()


def _is_in(path, folder):
    return os.path.commonpath([path, folder]) == folder


def _hidden_name(folder):
    folder = os.path.abspath(folder)
    return os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.acc-tmp")


def _barrier():
    if dist.is_initialized():
        dist.barrier()


def _show(folder, hidden):
    with contextlib.suppress(FileNotFoundError):  # that of another machine has
        if not os.path.isdir(folder):
            os.rename(hidden, folder)
            return
        for name in os.listdir(hidden):  # the program has made the folder again meanwhile, for files of its own
            os.rename(os.path.join(hidden, name), os.path.join(folder, name))
        os.rmdir(hidden)


@contextlib.contextmanager
def saving(name, folder):
    """A context in which a checkpoint is made. With save_async the files that torch.save, safetensors and torch DCP
    write to the folder in it are made in memory, and a thread begins to write them at its end; one save at a time:
    waits for the one before. Yields the Save; in a context within another one that of the other. Collective."""
    global _saving, _in_flight, _made, was_used
    if _saving is not None:
        yield _saving
        return
    if not is_on() or _at_once:
        save = Save(name, folder, 0)
        yield save
        save.commit()
        _barrier()
        return
    wait()
    _made, was_used = _made + 1, True
    save = _saving = Save(name, folder, _made)
    try:
        with _in_memory(save):
            yield save
    except BaseException:
        save.drop()
        raise
    finally:
        _saving = None
    _in_flight = save
    threading.Thread(target=save.run, name="acc save_async", daemon=True).start()


@contextlib.contextmanager
def _in_memory(save):
    from torch.distributed.checkpoint.filesystem import FileSystem as system
    torch_save = torch.save
    accelerate = sys.modules.get("accelerate.utils.other")

    def save_object(obj, f, *arguments, **keywords):
        if not isinstance(f, (str, os.PathLike)) or not save.takes(f):
            return torch_save(obj, f, *arguments, **keywords)
        with save.open(f) as file:
            return torch_save(obj, file, *arguments, **keywords)

    def save_tensors(tensors, filename, metadata=None):
        if not save.takes(filename):
            return originals[accelerate, "safe_save_file"](tensors, filename, metadata)
        from safetensors.torch import save as to_bytes
        with save.open(filename) as file:
            file.write(to_bytes(tensors, metadata))

    @contextlib.contextmanager
    def create_stream(self, path, mode):
        with save.open(path) if mode == "wb" and save.takes(path) else originals[system, "create_stream"](
                self, path, mode) as stream:
            yield stream

    def rename(self, path, new_path):
        path, new = os.path.abspath(path), os.path.abspath(new_path)
        if path not in save.files:
            return originals[system, "rename"](self, path, new_path)
        save.remove(new)
        save.files[new] = save.files.pop(path)

    def exists(self, path):
        return os.path.abspath(path) in save.files or originals[system, "exists"](self, path)

    def rm_file(self, path):
        path = os.path.abspath(path)
        return save.remove(path) if path in save.files else originals[system, "rm_file"](self, path)

    replaced = {(torch, "save"): save_object, (system, "create_stream"): create_stream, (system, "rename"): rename,
                (system, "exists"): exists, (system, "rm_file"): rm_file}
    if accelerate is not None:
        replaced[accelerate, "safe_save_file"] = save_tensors
    originals = {(owner, name): getattr(owner, name) for owner, name in replaced}
    for (owner, name), function in replaced.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in originals.items():
            setattr(owner, name, function)


def wait(at_exit=False):
    """Waits for the save in flight. Rank 0 says if there is no checkpoint, which ends no training."""
    global _in_flight
    save, _in_flight = _in_flight, None
    if save is None:
        return
    if at_exit and save.rank == 0 and not save.done.wait(2):
        say(f"waiting for the save of {save.name}")
    save.done.wait()
    if save.mistake and save.rank == 0:
        say(f"save_async: {save.name} was not saved: {save.mistake}")


def forget():
    """Before this process begins its program again, with processes that have made no Save."""
    global _made
    wait()  # it ends, as the connection to the store does
    _made = 0


def _in_child():
    global _in_flight
    _in_flight = None  # the thread is not in a process that was forked


os.register_at_fork(after_in_child=_in_child)


def at_exit():
    wait(at_exit=True)
    if is_on() and not was_used and not getattr(sys, "last_value", None) and os.environ.get("RANK", "0") == "0":
        say("save_async had no effect: the program has called neither Accelerate's save_state nor DeepSpeed's "
            "save_checkpoint")


def serve_accelerate(module):
    """module: accelerate.accelerator. A folder that has files already is written before save_state returns: until the
    end, it would have files of two states."""
    from acclaunch._rows import of_all_ranks
    save, load = module.Accelerator.save_state, module.Accelerator.load_state

    @functools.wraps(save)
    def save_state(self, output_dir=None, *arguments, **keywords):
        if not is_on():
            return save(self, output_dir, *arguments, **keywords)
        folder, automatic = output_dir, self.project_configuration.automatic_checkpoint_naming
        if automatic:
            folder = os.path.join(self.project_dir, "checkpoints", f"checkpoint_{self.save_iteration}")
        wait()
        if any(of_all_ranks(os.path.isdir(folder) and bool(os.listdir(folder)))):
            global _at_once, was_used
            _at_once = was_used = True
            try:
                return save(self, output_dir, *arguments, **keywords)
            finally:
                _at_once = False
        if _leads():
            beside, name = os.path.split(os.path.abspath(folder))
            name = "checkpoint_*" if automatic else glob.escape(name)
            for each in glob.glob(_hidden_name(os.path.join(glob.escape(beside), name))):
                shutil.rmtree(each, ignore_errors=True)  # of a job that was killed
        with saving(str(folder), folder) as begun:
            result = save(self, output_dir, *arguments, **keywords)
            begun.hide()
        return result

    @functools.wraps(load)
    def load_state(*arguments, **keywords):
        wait()
        return load(*arguments, **keywords)

    module.Accelerator.save_state, module.Accelerator.load_state = save_state, load_state
