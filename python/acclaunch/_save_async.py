# SPDX-License-Identifier: Apache-2.0
"""The setting save_async with --engine acc (docs/checkpoints.md, "Saves beside the training"): of what Accelerate's
save_state and DeepSpeed's save_checkpoint write, the tensors are copied (_staging), and a thread of each rank makes the
files while the training goes on."""

import contextlib
import functools
import glob
import hashlib
import os
import pathlib
import pickle
import re
import shutil
import sys
import threading
import time

import torch
import torch.distributed as dist

from acclaunch import _staging
from acclaunch._library import CollectiveError, ConfigError, lacks, say

_NICENESS = 15  # as that of the runtime's own thread
_saving = None  # the Save whose files are made now
_in_flight = None  # the Save that a thread writes
_memory = _staging.Staging()  # for the copies of one Save
_group = None, None  # that of Save.group, and the default process group of its time before it
_PIECE = 4 << 20  # of a value in the store, where torch's takes 8 MiB
_made = 0  # number of Saves, equal on all ranks
_MARK = ".acc-unfinished"  # a file in a checkpoint of which not all ranks have written their files
_MOMENTS = "marked", "made", "hidden", "written", "named", "shown", "rotated"  # of a Save, at which its ranks meet
was_used = False


def is_on():
    return os.environ.get("ACC_SAVE_ASYNC", "false") == "true"


def is_marked(folder):
    return os.path.exists(os.path.join(folder, _MARK))


def check_complete(folder):
    """Raises ConfigError for a checkpoint that lacks files."""
    if isinstance(folder, (str, os.PathLike)) and is_marked(folder):
        raise ConfigError(f"{folder} is not a complete checkpoint: not all ranks have written their files, as {_MARK} "
                          "in it says; take the one before")


def _numbered(folder, prefix):
    """The folders in a folder that have names of this prefix and a number, by the number."""
    found = {int(match[1]): match[0] for match in map(re.compile(re.escape(prefix) + r"(\d+)").fullmatch,
                                                      os.listdir(folder)) if match}
    return [path for number in sorted(found) if os.path.isdir(path := os.path.join(folder, found[number]))]


def _leads():
    """True for one rank of each machine: those of others may not see its folders."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


class Save:
    """What is written to a folder, and what happens when it has been. name: of the checkpoint, for messages."""

    def __init__(self, name, folder, number, is_beside):
        self.working = os.getcwd()  # another one when the thread writes
        self.name, self.folder, self.number = name, self._absolute(folder), number
        self.is_beside = is_beside  # the training, so that a thread makes the files
        self.writes = []  # functions that make them
        self.commits = {}  # of at_end, by folder
        self.rotate = None  # removes older checkpoints, when this one is complete on all ranks
        self.hides, self.hidden = False, None  # another name that the folder has until then
        self.is_marked = False  # by this rank
        self.done, self.mistake, self.error = threading.Event(), "", None
        self.meetings, self.parted, self.uses_group, self.raised, self.told = 0, False, False, False, set()
        # Kept, since the program may destroy its process group before the end.
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.store = dist.distributed_c10d._get_default_store() if self.ranks > 1 else None

    # ---- files

    def takes(self, path):
        """True for a file of the folder, which is made now; others are the program's own."""
        return _saving is self and isinstance(path, (str, os.PathLike)) and _is_in(self._absolute(path), self.folder)

    @contextlib.contextmanager
    def noting(self):
        """A context in which a file is made. If that fails, this rank goes on to the end of the save, since the others
        wait for it in collectives, and all learn of it there."""
        try:
            yield
        except Exception as error:  # noqa: BLE001: whatever it is
            self.error = self.error or error

    def write_later(self, path, write):
        """write: called by the thread with the path at which the file is to be made."""
        def run():
            write(self.place(path))
            with open(self.place(path), "rb") as file:
                os.fsync(file.fileno())

        self.writes.append(run)

    def group(self):
        """A process group for the thread: only one thread may issue the collectives of a group. Collective, the first
        time."""
        global _group
        world = dist.group.WORLD if self.ranks > 1 else None
        if _group[0] is not world:
            _group = world, world and dist.new_group(backend="gloo")
        return _group[1]

    def empty(self, numel, dtype):
        """A tensor that need not be copied, as those of `copy`."""
        return _memory.empty((numel,), (1,), dtype)

    def copy(self, tensor):
        return _memory.tensor_copy(tensor)

    def exchange(self, sends, receives):
        """Lets the thread send tensors, which are copies, and receive others. Each is a list of (rank, tensor), of
        which those of two ranks are in the same order on both."""
        group = self.group()

        def run():
            for each in [*(dist.irecv(tensor, rank, group) for rank, tensor in receives),
                         *(dist.isend(tensor, rank, group) for rank, tensor in sends)]:
                each.wait()

        if self.ranks > 1:
            self.uses_group = True
            self.writes.append(run)

    def mark(self, makes_folder):
        """Puts a file into the folder that says that it is not complete, before a rank writes to it."""
        with self.noting():
            if makes_folder:
                os.makedirs(self.folder, exist_ok=True)
                pathlib.Path(self.folder, _MARK).touch()
                self.is_marked = True
        self.meet("marked")

    def unmark(self):
        pathlib.Path(self.place(self.folder), _MARK).unlink(missing_ok=True)

    def drop(self):
        self.writes.clear()
        _memory.reset()

    # ---- names of folders

    def _absolute(self, path):
        return os.path.normpath(os.path.join(self.working, path))

    def place(self, path):
        """The present place of a path."""
        path = self._absolute(path)
        if self.hidden is not None and _is_in(path, self.folder):
            return os.path.normpath(os.path.join(self.hidden, os.path.relpath(path, self.folder)))
        return path

    def _hide(self):
        """Gives the folder, which was made in this save, another name until all ranks have written."""
        hidden = _hidden_name(self.folder)
        if _leads():
            with contextlib.suppress(FileNotFoundError):  # that of another machine has, in a folder that both see
                os.rename(self.folder, hidden)
        self.hidden = hidden

    # ---- writing

    def at_end(self, commit, folder):
        """commit: called when all ranks have written. folder: removed if one cannot."""
        self.commits[folder] = commit

    def commit(self):
        for commit in self.commits.values():
            commit()

    def end(self):
        """At the end of the program's part. Without files in memory raises, as `meet`, if the save has failed."""
        if not self.is_beside:
            self.meet("made")
            with self.noting():
                self.commit()
            self.meet("named")
            self._rotate()
            self.meet("rotated")
            return
        self.agree("made", self._named(self.error))
        if not self.mistake and self.hides:
            self.agree("hidden", self._called(self._hide)[1])

    def meet(self, moment):
        """If a rank has failed to make its files, raises its error there, and CollectiveError on the others."""
        self.agree(moment, self._named(self.error))
        if self.mistake:
            raise self.error or CollectiveError(f"{self.name} was not saved: {self.mistake}")

    def give_up(self, error):
        """The program's part has raised this error, perhaps without collectives in which others wait: tells them, and
        does not wait. It may be the end of the program, by a handler of signals, at any moment."""
        self.drop()
        self.mistake, self.raised, self.uses_group = self._named(error), True, False
        self.leave(_MOMENTS)

    def leave(self, moments=("removed",)):
        """The others wait for this rank at none of these moments."""
        with contextlib.suppress(Exception):
            for each in moments:
                self._tell(each, self.mistake)

    def _show(self):
        """After the commits of all ranks, which are in the hidden folder."""
        if self.hidden is not None and _leads():
            _show(self.folder, self.hidden)

    def _rotate(self):
        if self.rotate is not None:
            error = self._called(self.rotate)[1]
            if error:
                say(f"checkpoints older than {self.name} were not removed: {error}")

    def _remove(self):
        for folder in [*self.commits, *[self.folder] * self.hides] if self.is_beside else ():
            shutil.rmtree(self.place(folder), ignore_errors=True)

    def run(self):
        """In the thread."""
        os.nice(_NICENESS)  # of this thread, and so its I/O priority
        try:
            for moment, function in (("written", self._write), ("named", self.commit), ("shown", self._show)):
                if not self.mistake:
                    self.agree(moment, self._called(function)[1])
            if self.mistake:
                self._await_all(self._part_of_store("made"))  # ranks may still make files in the folder
                self._remove()
                self.agree("removed", self.mistake)
            else:
                self._rotate()
                self.agree("rotated", "")
        except Exception as error:  # noqa: BLE001: of the store, whose host may have ended
            self.mistake = self.mistake or f"the ranks could not agree that it is complete: {error}"
        self.drop()
        self.done.set()

    def _named(self, error):
        if isinstance(error, _OfAnotherRank):
            return str(error)
        return "" if error is None else f"rank {self.rank}: {error or type(error).__name__}"

    def _write(self):
        for write in self.writes:
            with self.noting():
                if not self.parted:
                    write()
        with self.noting():
            if self.is_marked and not is_marked(self.place(self.folder)):
                raise FileNotFoundError(f"{self.folder} was removed meanwhile")  # and perhaps made again by a file
        if self.error is not None:
            raise self.error

    def _part_of_store(self, moment):
        """The part of the job's store for a moment; None if there is one rank."""
        return self.store and dist.PrefixStore(f"acc/save_async/{self.number}/{moment}", self.store)

    def _tell(self, moment, mistake):
        """Tells the other ranks that this one has come to the moment. Returns the part of the store for it."""
        store = self._part_of_store(moment)
        if store and moment not in self.told:
            self.told.add(moment)
            if mistake:
                store.set("mistake", mistake)
            store.add("ranks", 1)
        return store

    def _await_all(self, store, or_mistake=False):
        if store:
            _await(lambda: store.add("ranks", 0) >= self.ranks or or_mistake and store.check(["mistake"]))

    def agree(self, moment, mistake):
        """Waits until all ranks have called it, or one has failed to make its files; `self.mistake` is one of theirs
        then. The ranks meet in the job's store, since only one thread may issue collectives, and a rank that fails may
        have left some out."""
        self.mistake = mistake
        store = self._tell(moment, mistake)
        self._await_all(store, or_mistake=moment == "made")
        if store and store.check(["mistake"]):
            self.mistake = store.get("mistake").decode()

    def combine(self, function, combine):
        """Calls a function on each rank, and another one on rank 0 with what all have returned. Returns this rank's
        part of what that returns. If one raises, all ranks do."""
        own, self.meetings = self._called(function), self.meetings + 1
        self.parted = True  # if the store fails, the rank meets the others no more before it tells them
        part, mistake = self._exchanged(own, lambda values: self._called(lambda: combine(values)))
        self.parted = False
        if mistake:
            raise _OfAnotherRank(mistake)
        return part

    def _exchanged(self, own, combine):
        """(part, mistake) of this rank of what rank 0 combines."""
        store = self._part_of_store(f"meeting{self.meetings}")
        if self.rank:
            _give(store, f"of{self.rank}", own)
            return self._take(store, f"for{self.rank}")
        others = range(1, self.ranks)
        values, mistakes = zip(own, *(self._take(store, f"of{rank}") for rank in others))
        mistake = next(filter(None, mistakes), "")
        parts, mistake = (None, mistake) if mistake else combine([*values])
        parts = parts or [None] * self.ranks
        for rank in others:
            _give(store, f"for{rank}", (parts[rank], mistake))
        return parts[0], mistake

    def _take(self, store, key):
        """The value that another rank gives. Raises if a rank has come to the end without."""
        end = self._part_of_store("written")
        _await(lambda: store.check([key]) or end.check(["mistake"]))
        if not store.check([key]):
            raise _OfAnotherRank(end.get("mistake").decode())
        pieces = [f"{key}/{number}" for number in range(int(store.get(key)))]
        value = b"".join(store.get(each) for each in pieces)
        for each in (key, *pieces):
            store.delete_key(each)
        return pickle.loads(value)

    def _called(self, function):
        """(what it returns, "") or (None, the mistake)."""
        try:
            return function(), ""
        except Exception as error:  # noqa: BLE001: told to all ranks
            return None, self._named(error)


class _OfAnotherRank(Exception):
    """A mistake that begins with its rank."""


def _await(condition):
    """A wait in the store itself would keep the program's other calls of it waiting."""
    pause = 0.0005
    while not condition():
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _give(store, key, value):
    value = pickle.dumps(value)
    pieces = [value[begin:begin + _PIECE] for begin in range(0, len(value), _PIECE)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}/{number}", piece)
    store.set(key, str(len(pieces)))


def _is_in(path, folder):
    return os.path.commonpath([path, folder]) == folder


def unfinished_name(name):
    """The name of a file or folder until it is complete: of two jobs that save to one folder not the same."""
    job = hashlib.sha256(os.environ.get("ACC_JOB_SECRET", "").encode()).hexdigest()[:8]
    return f"{name}.acc-tmp.{job}"


def unfinished(pattern):
    """The paths that `unfinished_name` has given the names of a pattern, in any job."""
    return glob.glob(f"{pattern}.acc-tmp*")


def _stat(path):
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def stamp(folder):
    """What changes when a program writes to a folder, or replaces it. None: there is none."""
    with contextlib.suppress(OSError):
        return _stat(folder), sorted((each, _stat(os.path.join(folder, each))) for each in os.listdir(folder))


def changed(folder):
    """The error for a folder whose stamp is another one after it was read."""
    return ConfigError(f"{folder} was replaced or removed while the checkpoint was read: a program saves there, and "
                       "what was read may be of two checkpoints")


def _hidden_name(folder):
    folder = os.path.abspath(folder)
    return os.path.join(os.path.dirname(folder), unfinished_name(f".{os.path.basename(folder)}"))


def _show(folder, hidden):
    with contextlib.suppress(FileNotFoundError):  # that of another machine has
        if not os.path.isdir(folder):
            os.rename(hidden, folder)
            return
        # The program has made the folder again meanwhile, for files of its own.
        names, mark = os.listdir(hidden), pathlib.Path(folder, _MARK)
        both = sorted(set(names).intersection(os.listdir(folder)))
        if both:
            raise FileExistsError(f"{folder} has '{both[0]}' meanwhile, of another job or of the program")
        mark.touch()
        with contextlib.suppress(FileNotFoundError):
            for name in names:
                os.rename(os.path.join(hidden, name), os.path.join(folder, name))
            os.rmdir(hidden)
        mark.unlink(missing_ok=True)


@contextlib.contextmanager
def saving(name, folder, at_once=False):
    """A context in which a checkpoint is made, after the save in flight. With save_async, and not `at_once`, what
    torch.save, safetensors and torch DCP are to write to the folder in it is copied, and a thread begins to write it at
    its end. Yields the Save; in a context within another one that of the other. A file that cannot be made, and an
    error of the program, fail the save on all ranks. Collective."""
    global _saving, _made, was_used
    if _saving is not None:
        yield _saving
        return
    wait()
    _made, was_used = _made + 1, was_used or is_on()
    save = _saving = Save(name, folder, _made, is_on() and not at_once)
    try:
        with _writing(save):
            yield save
        with save.noting():
            _memory.synchronize()
    except BaseException as error:
        save.give_up(error)
        _go_on(save)
        raise
    finally:
        _saving = None
    try:
        save.end()
    except (SystemExit, KeyboardInterrupt) as error:  # of a handler of signals
        save.give_up(error)
        raise
    finally:
        _go_on(save)


def _go_on(save):
    """The part of a Save that a thread does."""
    global _in_flight
    if save.is_beside:
        _in_flight = save
        threading.Thread(target=save.run, name="acc save_async", daemon=True).start()


def beside():
    """The Save that is made now, if a thread is to write it; else None."""
    return _saving if _saving is not None and _saving.is_beside else None


def serve_groups():
    """A thread that uses a process group needs it until its end."""
    original = dist.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(*arguments, **keywords):
        if _in_flight is not None and _in_flight.uses_group:
            wait()
        original(*arguments, **keywords)

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy_process_group


def serve_exit():
    """A program that ends without functions at exit waits for its save too."""
    original = os._exit

    @functools.wraps(original)
    def _exit(status):
        wait(at_exit=True)
        original(status)

    os._exit = _exit


def serve_files(module):
    """module: torch.distributed.checkpoint. What is written over a checkpoint is none until its end: by the metadata of
    the one before, files of two states would be read as one. So what is read between is noticed by its metadata."""
    original, reader = module.FileSystemWriter.prepare_global_plan, module.FileSystemReader
    read_metadata, read_data = reader.read_metadata, reader.read_data

    @functools.wraps(original)
    def prepare_global_plan(self, plans):  # by one rank, before any writes
        metadata = self._get_metadata_path()
        if self.fs.exists(metadata):
            self.fs.rm_file(metadata)
        return original(self, plans)

    @functools.wraps(read_metadata)
    def read_metadata_first(self, *arguments, **keywords):  # by all ranks, before any reads
        path = self._get_metadata_path(keywords.get("rank"))
        self._acc_read = (path, _stat(path)) if os.path.isfile(path) else None
        return read_metadata(self, *arguments, **keywords)

    @functools.wraps(read_data)
    def read_data_of_one(self, *arguments, **keywords):
        read = read_data(self, *arguments, **keywords)
        path, found = getattr(self, "_acc_read", None) or (None, None)
        if path is not None and not (os.path.isfile(path) and _stat(path) == found):
            raise changed(self.path)
        return read

    module.FileSystemWriter.prepare_global_plan = prepare_global_plan
    reader.read_metadata, reader.read_data = read_metadata_first, read_data_of_one


def _placed(save):
    """The file system of a writer of torch DCP, for which the folder has its final name from the beginning."""
    from torch.distributed.checkpoint.filesystem import FileSystem

    class Placed(FileSystem):
        def create_stream(self, path, mode):
            return super().create_stream(save.place(path), mode)

        def rename(self, path, new_path):
            super().rename(save.place(path), save.place(new_path))

        def mkdir(self, path):
            super().mkdir(save.place(path))

        def exists(self, path):
            return super().exists(save.place(path))

        def rm_file(self, path):
            super().rm_file(save.place(path))

    return Placed()


def _write_sharded(save, state, writer, planner):
    """dcp.save in the thread, where the ranks meet in the job's store."""
    metadata, leads = None, save.rank == 0

    def plan():
        planner.set_up_planner(state, storage_meta=writer.storage_meta(), is_coordinator=leads)
        writer.set_up_storage_writer(leads)
        return writer.prepare_local_plan(planner.create_local_plan())

    def plan_all(plans):
        nonlocal metadata
        plans, metadata = planner.create_global_plan(plans)
        return writer.prepare_global_plan(plans)

    def write():
        written = writer.write_data(planner.finish_plan(own_plan), planner)
        written.wait()
        return written.value()

    def finish(results):
        writer.finish(metadata, results)

    own_plan = save.combine(plan, plan_all)
    save.combine(write, finish)


@contextlib.contextmanager
def _writing(save):
    """A context in which files of the Save are made by its functions."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.filesystem import FileSystem
    from torch.distributed.checkpoint.stateful import Stateful
    torch_save, open_writer = torch.save, torch.serialization._open_zipfile_writer

    def save_object(obj, f, *arguments, **keywords):
        if not save.takes(f):
            return torch_save(obj, f, *arguments, **keywords)
        with save.noting():
            if not save.is_beside or not keywords.get("_use_new_zipfile_serialization", True):
                return torch_save(obj, f, *arguments, **keywords)
            records = _staging.Records(_memory)
            torch_save(obj, records, *arguments, **keywords)
            save.write_later(f, lambda path: records.write_to(path, open_writer))

    def save_tensors(tensors, filename, metadata=None):
        original = originals[accelerate, "safe_save_file"]
        if not save.takes(filename):
            return original(tensors, filename, metadata)
        with save.noting():
            if not save.is_beside:
                return original(tensors, filename, metadata)
            copies = _memory.copies(tensors)
            save.write_later(filename, lambda path: original(copies, path, metadata))

    def save_sharded(state_dict, *, storage_writer=None, planner=None, **keywords):
        original = originals[checkpoint, "save"]
        planner = planner or checkpoint.DefaultSavePlanner()
        is_known = (type(storage_writer), type(getattr(storage_writer, "fs", None)), type(planner)) == (
            checkpoint.FileSystemWriter, FileSystem, checkpoint.DefaultSavePlanner)
        if keywords or not is_known or not save.takes(storage_writer.path):
            return original(state_dict, storage_writer=storage_writer, planner=planner, **keywords)
        with save.noting():
            storage_writer.fs = _placed(save)
            copies = _memory.state_copy({key: value.state_dict() if isinstance(value, Stateful) else value
                                         for key, value in state_dict.items()})
            save.writes.append(lambda: _write_sharded(save, copies, storage_writer, planner))

    replaced = {(torch, "save"): save_object}
    accelerate = sys.modules.get("accelerate.utils.other")
    if accelerate is not None:
        replaced[accelerate, "safe_save_file"] = save_tensors
    if save.is_beside:  # else torch DCP itself tells all ranks of a mistake
        replaced |= {(torch.serialization, "_open_zipfile_writer"): lambda target: target if isinstance(
            target, _staging.Records) else open_writer(target), (checkpoint, "save"): save_sharded}
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
    save = _in_flight
    if save is None:
        return
    if at_exit and save.raised:  # others may wait for this rank
        save.leave()
        return
    if at_exit and save.rank == 0 and not save.done.wait(2):
        say(f"waiting for the save of {save.name}")
    save.done.wait()
    _in_flight = None  # not before: a handler of signals may end the program while it waits
    if save.mistake and save.rank == 0 and not save.raised:
        say(f"save_async: {save.name} was not saved: {save.mistake}")


def forget():
    """Before this process begins its program again, with processes that have made no Save."""
    global _made, _group
    wait()  # it ends, as the connection to the store does
    _made, _group = 0, (None, None)


def _in_child():
    global _in_flight, _memory
    _in_flight, _memory = None, _staging.Staging()  # neither the thread nor the memory is in a process that was forked


os.register_at_fork(after_in_child=_in_child)


def at_exit():
    global _group
    wait(at_exit=True)
    _group = None, None
    if is_on() and not was_used and not getattr(sys, "last_value", None) and os.environ.get("RANK", "0") == "0":
        say("save_async had no effect: the program has made no checkpoint by Accelerate's save_state with a section "
            "for FSDP or DeepSpeed, DeepSpeed's save_checkpoint or Trainer")


def serve_accelerate(module):
    """module: accelerate.accelerator. A folder that has files already is written before save_state returns: until the
    end, it would have files of two states. Of automatic names, those that are not complete are never loaded, and older
    ones are removed when the new one is complete. Without a section for FSDP or DeepSpeed the functions are
    Accelerate's own: there one rank may call them alone."""
    from acclaunch._rows import of_all_ranks
    sharded = module.DistributedType.FSDP, module.DistributedType.DEEPSPEED
    make, save, load = (getattr(module.Accelerator, name) for name in ("__init__", "save_state", "load_state"))

    @functools.wraps(make)
    def __init__(self, *arguments, **keywords):
        make(self, *arguments, **keywords)
        named = self.project_configuration.automatic_checkpoint_naming and self.project_dir is not None
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)  # else the save of another job may be there
        if named and restarts and self.distributed_type in sharded:
            wait()
            if _leads():
                _remove_unfinished(_checkpoint_of(self, 0), True)
            of_all_ranks(None)  # before the program looks into the folder

    @functools.wraps(save)
    def save_state(self, output_dir=None, *arguments, **keywords):
        if self.distributed_type not in sharded:
            return save(self, output_dir, *arguments, **keywords)
        named = self.project_configuration
        automatic = named.automatic_checkpoint_naming
        folder = _checkpoint_of(self, self.save_iteration) if automatic else output_dir
        wait()
        if _leads():
            _remove_unfinished(folder, automatic)
        is_full = any(of_all_ranks(_leads() and os.path.isdir(folder) and bool(os.listdir(folder))))
        if automatic and is_full:
            raise ValueError(f"{folder} exists already: set the iteration of the ProjectConfiguration to the number of "
                             "the next checkpoint")
        with saving(str(folder), folder, not is_on() or is_full) as begun:
            begun.hides = begun.is_beside
            begun.mark(_leads())
            named.automatic_checkpoint_naming = False  # else it would remove older ones now
            try:
                result = save(self, folder, *arguments, **keywords)
            finally:
                named.automatic_checkpoint_naming = automatic
            begun.at_end(lambda: _leads() and begun.unmark(), begun.folder)
            if automatic and self.is_main_process and named.total_limit is not None:
                begun.rotate = lambda: _remove_oldest(begun.folder, named.total_limit)
            return result

    @functools.wraps(load)
    def load_state(self, input_dir=None, *arguments, **keywords):
        wait()
        automatic = self.project_configuration.automatic_checkpoint_naming
        if input_dir is None and automatic and self.distributed_type in sharded:
            folder = os.path.dirname(_checkpoint_of(self, 0))
            found = [os.path.basename(each) for each in _numbered(folder, "checkpoint_") if not is_marked(each)]
            common = set.intersection(*map(set, of_all_ranks(found)))
            if not common:
                raise ConfigError(f"{folder} has no complete checkpoint: a job was killed in its first save")
            input_dir = os.path.join(folder, next(each for each in reversed(found) if each in common))
        check_complete(input_dir)
        return load(self, input_dir, *arguments, **keywords)

    for each in (__init__, save_state, load_state):
        setattr(module.Accelerator, each.__name__, each)


def _checkpoint_of(accelerator, number):
    return os.path.join(accelerator.project_dir, "checkpoints", f"checkpoint_{number}")


def _remove_unfinished(folder, automatic):
    """What a job that was killed has left."""
    beside, name = map(glob.escape, os.path.split(os.path.abspath(folder)))
    name = "checkpoint_*" if automatic else name
    marked = filter(is_marked, glob.glob(os.path.join(beside, name))) if automatic else ()  # else also the program's
    for each in [*unfinished(os.path.join(beside, f".{name}")), *marked]:
        shutil.rmtree(each, ignore_errors=True)


def _remove_oldest(newest, limit):
    others = [each for each in _numbered(os.path.dirname(newest), "checkpoint_") if each != newest]
    for each in others[:max(0, len(others) + 1 - limit)]:
        os.rename(each, _hidden_name(each))  # a part of it is none
        shutil.rmtree(_hidden_name(each))


# ---- transformers

def serve_trainer_utils(module):
    """module: transformers.trainer_utils."""
    def get_last_checkpoint(folder):
        return next((each for each in reversed(_numbered(folder, "checkpoint-")) if not is_marked(each)), None)

    module.get_last_checkpoint = get_last_checkpoint


def serve_trainer(module):
    """module: transformers.trainer. Trainer's checkpoints are marked until all ranks have written, since one without
    the files of a rank would be resumed without its random numbers. Older ones are removed afterwards."""
    from acclaunch._rows import of_all_ranks
    trainer = module.Trainer
    rotating = (module, "rotate_checkpoints") if hasattr(module, "rotate_checkpoints") else (
        trainer, "_rotate_checkpoints")
    effect = "checkpoints of Trainer are not marked until they are complete, and not saved beside the training"
    if lacks(trainer, effect, "_save_checkpoint", "train", "_load_best_model", "_get_output_dir") or lacks(
            rotating[0], effect, rotating[1]):
        return
    save, train, load_best = trainer._save_checkpoint, trainer.train, trainer._load_best_model

    @functools.wraps(save)
    def save_checkpoint(self, model, trial, *arguments, **keywords):
        folder = os.path.join(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        rotate, later = getattr(*rotating), []

        def commit():
            if self.args.should_save:
                begun.unmark()

        def rotate_later():
            for each, named in later:
                rotate(*each, **named)

        setattr(*rotating, lambda *each, **named: later.append((each, named)))
        try:
            with saving(folder, folder) as begun:
                begun.mark(self.args.should_save)
                save(self, model, trial, *arguments, **keywords)
                begun.at_end(commit, folder)
                begun.rotate = rotate_later
        finally:
            setattr(*rotating, rotate)

    @functools.wraps(train)
    def train_from_one(self, resume_from_checkpoint=None, *arguments, **keywords):
        if resume_from_checkpoint is True:
            resume_from_checkpoint = module.get_last_checkpoint(self.args.output_dir) or True
        # A rank may have looked before the mark of the last one was removed.
        given = isinstance(resume_from_checkpoint, (str, os.PathLike))
        names = set(of_all_ranks(os.path.basename(os.path.normpath(resume_from_checkpoint)) if given else ""))
        steps = {int(match[1]): name for name in names if (match := re.fullmatch(r"checkpoint-(\d+)", name))}
        if len(names) > 1 and steps:
            resume_from_checkpoint = os.path.join(
                os.path.dirname(os.path.normpath(resume_from_checkpoint)) if given else self.args.output_dir,
                steps[max(steps)])
        check_complete(resume_from_checkpoint)
        result = train(self, resume_from_checkpoint, *arguments, **keywords)
        wait()
        return result

    @functools.wraps(load_best)
    def load_best_model(self):
        wait()
        load_best(self)

    trainer._save_checkpoint, trainer.train, trainer._load_best_model = save_checkpoint, train_from_one, load_best_model
