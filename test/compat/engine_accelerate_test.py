# SPDX-License-Identifier: Apache-2.0
"""engine_accelerate_test.py ACCLAUNCH: one program of Accelerate, on two ranks, without sharding (DDP on a CPU) and
with `--engine acc` and sections for FSDP and DeepSpeed. Losses, norms, metrics and loaded states must be equal. Exits
with 77 without Accelerate."""

import contextlib
import importlib.util
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from unittest import mock

if not all(map(importlib.util.find_spec, ("torch", "accelerate", "safetensors"))):
    print("skipped: no Accelerate")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
SAVED_BESIDE = ("version 2", "version 1, loaded by rank 0", "ZeRO 2", "ZeRO 3")  # with --save_async
DEADLINE = 900  # seconds; far more than a busy machine needs
SECTION = """distributed_type: FSDP
use_cpu: true
num_processes: 2
engine: acc
fsdp_config:
  fsdp_version: {}
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_state_dict_type: {}
{}"""
DEEPSPEED = """distributed_type: DEEPSPEED
use_cpu: true
num_processes: 2
engine: acc
deepspeed_config:
  gradient_accumulation_steps: 2
  gradient_clipping: 0.5
  zero3_init_flag: {}
  zero3_save_16bit_model: true
  zero_stage: {}
"""
FILES = {"version 2": SECTION.format(2, "SHARDED_STATE_DICT", "  fsdp_reshard_after_forward: true\n"),
         "version 2, loaded by rank 0": SECTION.format(
             2, "FULL_STATE_DICT", "  fsdp_reshard_after_forward: false\n  fsdp_cpu_ram_efficient_loading: true\n"),
         "version 1": SECTION.format(1, "SHARDED_STATE_DICT", "  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
                                     "  fsdp_activation_checkpointing: true\n  fsdp_use_orig_params: true\n"),
         "version 1, loaded by rank 0": SECTION.format(
             1, "FULL_STATE_DICT", "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_use_orig_params: false\n"
             "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_sync_module_states: true\n  fsdp_offload_params: true\n"),
         "version 1, no shards": SECTION.format(1, "FULL_STATE_DICT", "  fsdp_sharding_strategy: NO_SHARD\n"),
         "version 1, hybrid": SECTION.format(1, "SHARDED_STATE_DICT", "  fsdp_sharding_strategy: HYBRID_SHARD_ZERO2\n")}
if all(map(importlib.util.find_spec, ("deepspeed", "transformers"))):  # Accelerate needs both for its section
    FILES |= {"ZeRO 2": DEEPSPEED.format("false", 2), "ZeRO 3": DEEPSPEED.format("true", 3),
              "ZeRO 2, NVMe": DEEPSPEED.format("false", 2) + "  offload_optimizer_device: nvme\n"
              "  offload_optimizer_nvme_path: FOLDER\n"}


def train(folder):
    import torch
    from accelerate import Accelerator, PartialState
    from accelerate.utils import ProjectConfiguration, set_seed
    from expect_error import expect
    from leave import leave
    from torch.utils.data import DataLoader, TensorDataset

    from acclaunch import _save_async, _staging
    from acclaunch._library import CollectiveError, ConfigError

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(7), torch.nn.Linear(7, 7)

        def forward(self, x):
            return x + torch.tanh(self.linear(self.norm(x)))

    class Net(torch.nn.Module):
        _no_split_modules = ["Block"]

        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(11, 7)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
            self.head = torch.nn.Linear(7, 11)

        def forward(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    set_seed(7)
    torch.set_num_threads(1)
    if os.environ.get("FSDP_VERSION", "2") == "2":
        assert PartialState().num_processes == 2  # a program may make it first
    accelerator = Accelerator(gradient_accumulation_steps=2)
    if os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3":
        import deepspeed
        with deepspeed.zero.Init():  # transformers asks it for the rank when it makes a model
            assert deepspeed.comm.get_rank() == accelerator.process_index
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    rows = torch.randint(11, (22, 5))  # 3 batches of each rank, the last one incomplete
    loader = DataLoader(TensorDataset(rows), batch_size=4)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)

    def number(value):
        return (value.full_tensor() if hasattr(value, "full_tensor") else torch.as_tensor(value)).item()

    def epoch():
        net.train()
        for ids, in loader:
            with accelerator.accumulate(net):
                loss = torch.nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    found.append(number(accelerator.clip_grad_norm_(net.parameters(), 0.5)))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            found.append(number(accelerator.gather(loss.detach().reshape(1)).mean()))
        net.eval()
        with torch.no_grad():
            for ids, in loader:
                found.append(number(accelerator.gather_for_metrics(net(ids).argmax(-1)).sum()))

    def check_equal_files(one, other):
        for path in (each for each in pathlib.Path(one).rglob("*") if each.is_file()):
            files = [path.read_bytes(), pathlib.Path(other, path.relative_to(one)).read_bytes()]
            if path.name == ".metadata":
                files = [pickle.loads(each) for each in files]
                for each in files:
                    each.storage_meta.checkpoint_id, each.storage_meta.save_id = None, None
            assert files[0] == files[1], path
        assert len([*pathlib.Path(one).rglob("*")]) == len([*pathlib.Path(other).rglob("*")])

    def saved_beside():
        """A save, of which nothing is seen until the end, in a folder that is named from another one; one that a rank
        cannot write; one in a folder with files."""
        write, may_write, write_to = _save_async.Save._write, threading.Event(), _staging.Records.write_to

        def fail(*_):
            raise OSError("no room")

        _save_async.Save._write = lambda self: may_write.wait() and write(self)
        os.environ["ACC_SAVE_ASYNC"] = "false"
        accelerator.save_state(f"{folder}/at_once")
        os.environ["ACC_SAVE_ASYNC"] = "true"
        os.chdir(folder)
        accelerator.save_state("state")
        os.chdir("/")
        yield
        assert not os.path.exists(f"{folder}/state")
        may_write.set()
        _save_async.wait()
        _save_async.Save._write = write
        _staging.Records.write_to = fail if accelerator.process_index == 1 else write_to
        accelerator.save_state(f"{folder}/other")
        _save_async.wait()
        _staging.Records.write_to = write_to

        def write_in_another(save):
            if accelerator.is_local_main_process:
                shutil.rmtree(save.hidden)
                os.makedirs(save.hidden)
            write(save)

        with mock.patch.object(_save_async.Save, "_write", write_in_another):
            accelerator.save_state(f"{folder}/another")
            _save_async.wait()

        def write_late(save):  # another job has saved to the same folder first
            write(save)
            if accelerator.is_local_main_process:
                shutil.copytree(f"{folder}/at_once", f"{folder}/both")

        with mock.patch.object(_save_async.Save, "_write", write_late):
            accelerator.save_state(f"{folder}/both")
            _save_async.wait()
        accelerator.wait_for_everyone()
        for each in ("state", "both"):
            check_equal_files(f"{folder}/at_once", f"{folder}/{each}")
        left = sorted(os.listdir(folder))
        accelerator.wait_for_everyone()
        assert "state" in left and not any("other" in each or "acc-tmp" in each for each in left), left
        if accelerator.is_main_process:
            os.makedirs(f"{folder}/full/of files")
        accelerator.wait_for_everyone()
        accelerator.save_state(f"{folder}/full")
        assert _save_async._in_flight is None and len(os.listdir(f"{folder}/full")) > 1
        yield

    def saved():
        accelerator.save_state(f"{folder}/state")
        yield
        yield

    def save_by_number():
        """Automatic names: what a job that was killed has left is never loaded, and the older one goes when the new one
        is complete."""
        nonlocal saves
        numbered = pathlib.Path(folder, "checkpoints")

        def leave_unfinished():
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (numbered / ".checkpoint_8.acc-tmp").mkdir(parents=True)
                (numbered / "checkpoint_9").mkdir()
                (numbered / "checkpoint_9" / ".acc-unfinished").touch()
            accelerator.wait_for_everyone()

        def left():
            _save_async.wait()
            accelerator.wait_for_everyone()
            return sorted(each.name for each in numbered.iterdir())

        named_by_program, accelerator.project_configuration = accelerator.project_configuration, ProjectConfiguration(
            folder, automatic_checkpoint_naming=True, total_limit=1, iteration=1)
        leave_unfinished()
        accelerator.save_state()
        assert left() == ["checkpoint_1"], left()
        saves, seen, write = 2, [], _save_async.Save._write

        def write_beside(save):  # also the program, a file of its own
            seen.append(os.listdir(numbered))
            (numbered / "checkpoint_2").mkdir(exist_ok=True)
            (numbered / "checkpoint_2" / "own").touch()
            write(save)

        def end_in_removal(path, **_):
            if ".checkpoint_1.acc-tmp." in path:
                os.unlink(pathlib.Path(path, "random_states_0.pkl"))
                raise OSError("ended")

        with mock.patch.object(_save_async.Save, "_write", write_beside), mock.patch("shutil.rmtree", end_in_removal):
            accelerator.save_state()
            names = left()
        assert names[1:] == ["checkpoint_2"] and ".checkpoint_1.acc-tmp." in names[0], names
        accelerator.wait_for_everyone()  # both have looked
        assert all("checkpoint_1" in each for each in seen)
        files = os.listdir(numbered / "checkpoint_2")
        assert ".acc-unfinished" not in files and len(files) > 2 and ("own" in files) == bool(seen), files
        saves = 3
        failed("file", of=None)
        names = left()
        assert "checkpoint_2" in names and not any("checkpoint_1" in each for each in names), names
        leave_unfinished()
        loaded.clear()
        accelerator.load_state()
        assert loaded == [2], loaded
        expect(ConfigError, "not a complete checkpoint", lambda: accelerator.load_state(numbered / "checkpoint_9"))
        accelerator.project_configuration = named_by_program

    class Failing:
        def state_dict(self):
            if accelerator.process_index == 1 and failing == "object":
                raise OSError("no object")
            if accelerator.process_index == 1 and failing == "exit":
                raise SystemExit("no exit")
            if accelerator.process_index == 0 and failing and failing != "end":
                _save_async._saving._part_of_store("made").wait(["mistake"])
            return {"number": saves}

        def load_state_dict(self, state):
            loaded.append(state["number"])

    def failed(place, of):
        """A save that rank 1 fails to make. Returns what is raised."""
        nonlocal failing
        failing, rank, save = place, accelerator.process_index, torch.save

        def fail(value, file, *arguments, **keywords):
            if failing == "file" and rank == 1 and isinstance(value, dict) and "torch_manual_seed" in value:
                raise OSError("no file")
            save(value, file, *arguments, **keywords)

        with mock.patch("torch.save", fail):
            try:
                accelerator.save_state(of)
            except (OSError, CollectiveError, SystemExit) as error:
                return f"{type(error).__name__}: {error}"
            finally:
                failing = ""

    def fail_to_save():
        """The other rank learns of it: by an error, or where it is beside the training by a line. Nothing is removed
        while it makes files."""
        is_beside, rank = os.environ.get("ACC_SAVE_ASYNC") == "true", accelerator.process_index
        remove, end = _save_async.Save._remove, _save_async.Save.end

        def remove_checked(save):
            made.append(save._part_of_store("made").add("ranks", 0))
            remove(save)

        def end_program(_):
            raise SystemExit("no end")

        for place in ("object", "file", "exit", "end"):  # by the last two a handler of signals ends the program
            made, ends = [], place in ("exit", "end") and rank == 1
            with mock.patch.object(_save_async.Save, "_remove", remove_checked), mock.patch.object(
                    _save_async.Save, "end", end_program if ends and place == "end" else end), (mock.patch.object(
                        _save_async.Save, "run", lambda save: save.done.set()) if ends else contextlib.nullcontext()):
                raised = failed(place, f"{folder}/{place}")
                _save_async.wait(at_exit=ends)
                _save_async.wait()
            assert made == [2] * (is_beside and not ends), made
            told = f"CollectiveError: {folder}/{place} was not saved: rank 1: no {place}"
            own = None if is_beside and place == "file" else f"{'SystemExit' if ends else 'OSError'}: no {place}"
            assert raised == (own if rank == 1 else None if is_beside else told), (place, raised)
        accelerator.wait_for_everyone()
        names = os.listdir(folder)
        assert not is_beside or not {"object", "file", "exit", "end"}.intersection(names), names

    failing, saves, loaded = "", 1, []
    accelerator.register_for_checkpointing(Failing())
    found = []
    epoch()
    is_sharded = accelerator.distributed_type in ("FSDP", "DEEPSPEED")
    if is_sharded:
        fail_to_save()
    elif accelerator.is_main_process:
        accelerator.save_state(f"{folder}/alone")
    state = saved_beside() if os.environ.get("ACC_SAVE_ASYNC") == "true" else saved()
    next(state)
    kept = found[:]
    epoch()
    last = found[len(kept):]
    next(state)
    if "FSDP_VERSION" in os.environ:
        optimizer.state.clear()  # as in a new process
    accelerator.load_state(f"{folder}/state")
    found = kept[:]
    epoch()
    assert found[len(kept):] == last, (found[len(kept):], last)
    if is_sharded:
        save_by_number()
    accelerator.save_model(net, f"{folder}/model")
    state = accelerator.get_state_dict(net)
    if accelerator.is_main_process:
        from safetensors.torch import load_file
        saved = load_file(f"{folder}/model/model.safetensors")
        assert sorted(saved) == sorted(state) and all(torch.equal(saved[name], state[name]) for name in saved)
        found += [saved[name].double().square().sum().item() for name in sorted(saved)]
        print("FOUND", *found, flush=True)
    accelerator.wait_for_everyone()
    write, may_write = _save_async.Save._write, threading.Event()
    _save_async.Save._write = lambda self: may_write.wait() and write(self)
    threading.Timer(0.2, may_write.set).start()
    accelerator.save_state(f"{folder}/last")
    leave()  # while it is written


def main():
    def run(name, *flags):
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run([sys.argv[1], *flags, __file__, folder], text=True, timeout=DEADLINE,
                                   env=os.environ | {"PYTHON_EXEC": sys.executable,
                                                     "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
            last = pathlib.Path(folder, "last")
            assert ended.returncode != 0 or last.is_dir() and not (last / ".acc-unfinished").exists(), ended.stdout
            return ended

    def numbers(run):
        assert run.returncode == 0, run.stdout
        line = next(line for line in run.stdout.splitlines() if "FOUND" in line)
        return [float(word) for word in line.split("FOUND")[1].split()]

    with tempfile.TemporaryDirectory() as folder:
        def written(name, text):
            path = pathlib.Path(folder) / f"{name.replace(' ', '_')}.yaml"
            path.write_text(text.replace("FOLDER", folder))
            return str(path)

        preload = ["--preload", "accelerate,torch._dynamo,safetensors.torch"]
        plain = run("plain", *preload, "--cpu", "--num_processes", "2", "--engine", "acc")
        # It ends by _exit.
        assert "--engine acc had no effect: the program has run no sharded module" not in plain.stdout
        expected = numbers(plain)
        for name, text in FILES.items():
            # Only one job starts its ranks; those of the others are forked from one process.
            flags = [] if name == "version 2" else preload
            if text.startswith("distributed_type: DEEPSPEED"):
                flags = [flags[0], f"{flags[1]},deepspeed"]
            beside = name in SAVED_BESIDE
            ours = run(name, *flags, *["--save_async"] * beside, "--config_file", written(name, text))
            assert "acclaunch: engine acc, " in ours.stdout, ours.stdout
            for place, why in (("other", "room"), *((each, each) for each in ("object", "file", "exit", "end"))):
                assert (f"/{place} was not saved: rank 1: no {why}" in ours.stdout) == beside, ours.stdout
            for number, (a, b) in enumerate(zip(numbers(ours), expected, strict=True)):
                assert abs(a - b) <= 1e-5 * max(1.0, abs(b)), (name, number, a, b)
        flag = "memory_checkpoint_every"
        refused = run(flag, "--cpu", "--num_processes", "2", "--engine", "acc", f"--{flag}", "1")
        assert refused.returncode != 0 and f"{flag}: the engine acc does not support it" in refused.stdout, \
            refused.stdout


if __name__ == "__main__":
    train(sys.argv[1]) if "RANK" in os.environ else main()
