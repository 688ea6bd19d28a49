# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/gpu_check that need no GPU."""
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench/gpu"))
sys.dont_write_bytecode = True

from check import device, formulas, numbers, places, report, runner, speed, trace  # noqa: E402


def load_program(name="gpu_check"):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def quiet(function, *arguments):
    """(result, stdout, stderr)"""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        result = function(*arguments)
    return result, out.getvalue(), err.getvalue()


class Formulas(unittest.TestCase):
    def test_parameters_of_the_parity_model(self):
        model = {"layers": 2, "dim": 64, "vocab": 256, "seq_len": 64}
        self.assertEqual(formulas.gpt_parameters(model), 120576)

    def test_sizes_are_what_their_names_say(self):
        count = {name: formulas.gpt_parameters(model) for name, model in speed.SIZES.items()}
        self.assertAlmostEqual(count["gpt_124m"] / 1e6, 124, delta=1)
        self.assertAlmostEqual(count["gpt_1.3b"] / 1e9, 1.3, delta=0.03)

    def test_work_of_a_token(self):
        model = {"layers": 2, "dim": 4, "vocab": 10, "seq_len": 3}
        self.assertEqual(formulas.flops_per_token(model), 6 * (2 * 12 * 16 + 40) + 12 * 2 * 3 * 4)
        self.assertAlmostEqual(formulas.mfu(model, 1e9, 1e-3 * formulas.flops_per_token(model)),
                               1.0)

    def test_peaks_by_name(self):
        for name, tflops in (("NVIDIA H200", 989.4), ("NVIDIA H100 80GB HBM3", 989.4),
                             ("NVIDIA H100 PCIe", 756.0), ("NVIDIA A100-SXM4-80GB", 312.0),
                             ("NVIDIA L40S", 362.0), ("NVIDIA L4", 121.0), ("NVIDIA H20", None),
                             ("NVIDIA GeForce RTX 3060", None), ("", None)):
            self.assertEqual(formulas.peak_tflops(name), tflops, name)

    def test_memory_of_a_rank(self):
        for strategy, ranks, expected in (
                ("stage0", 4, 1600), ("stage1", 4, 400 + 300), ("stage2", 4, 200 + 350),
                ("stage3", 4, 400 + 2 * 10 * 2 + 20), ("full_shard", 4, 400 + 2 * 10 * 2 + 20),
                ("shard_grad_op", 4, 400 + 200), ("full_shard", 1, 1600 + 40 + 20)):
            self.assertEqual(formulas.state_bytes(strategy, 100, ranks, 10, 2), expected)
        self.assertEqual(formulas.state_bytes("one_rank", 100, 1, gradients=30), 1800 + 60)

    def test_peak_over_the_formulas(self):
        model = {"layers": 2, "dim": 64, "vocab": 256, "seq_len": 64}
        root = (256 + 64) * 64 + 2 * 64  # embeddings and the last layer norm
        unit = (120576 - root) // 2
        states = 18 * 120576 + 2 * (root + 2 * unit)
        line = {"ranks": [{"device_peak_bytes": states + 1000, "activation_bytes": 1000}]}
        over = speed.memory_over_formulas(model, line)
        self.assertAlmostEqual(over["memory_over_formula"], 0.0)
        full_shard = 16 * 120576 + 4 * unit + 2 * unit
        self.assertAlmostEqual(over["memory_over_full_shard"],
                               (states + 1000) / (full_shard + 1000) - 1)
        self.assertEqual(speed.memory_over_formulas(model, {"ranks": [{}]}), {})

    def test_micro_batch_fits_and_grows_with_the_memory(self):
        model = speed.SIZES["gpt_1.3b"]
        sizes = [formulas.micro_batch(gib, model) for gib in (16, 40, 80, 141)]
        self.assertEqual(sizes, sorted(sizes))
        self.assertEqual(sizes[0], 1)
        self.assertGreaterEqual(sizes[3], 8)


def event(rank, category, begin, end):
    return {"name": "x", "ph": "X", "pid": rank, "tid": 0, "cat": category, "ts": begin,
            "dur": end - begin}


class Trace(unittest.TestCase):
    def overlap(self, *events):
        return {rank: row["share"] for rank, row in trace.overlap(list(events)).items()}

    def test_share_that_is_hidden(self):
        compute = event(0, "compute", 10, 20)
        for begin, end, share in ((12, 18, 1.0), (0, 10, 0.0), (15, 25, 0.5), (5, 25, 0.5)):
            self.assertEqual(self.overlap(compute, event(0, "communication", begin, end)),
                             {0: share})

    def test_events_that_overlap_count_once(self):
        self.assertEqual(self.overlap(event(0, "compute", 0, 6), event(0, "compute", 4, 10),
                                      event(0, "communication", 5, 15),
                                      event(0, "communication", 5, 10)), {0: 0.5})

    def test_waiting_is_neither(self):
        row = trace.overlap([event(0, "compute", 0, 4), event(0, "wait", 4, 10),
                             event(0, "communication", 0, 10)])[0]
        self.assertEqual((row["hidden_us"], row["wait_us"], row["share"]), (4, 6, 0.4))

    def test_ranks_are_apart(self):
        self.assertEqual(self.overlap(event(0, "compute", 0, 10), event(1, "communication", 0, 10)),
                         {0: None, 1: 0.0})

    def test_reads_an_array_that_was_not_closed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            lines = [json.dumps(event(0, "compute", 0, 1)),
                     json.dumps({"name": "process_name", "ph": "M", "pid": 0}),
                     json.dumps(event(1, "compute", 0, 1))]
            pathlib.Path(path).write_text("[\n" + ",\n".join(lines) + ",\n{\"name\": \"cut")
            self.assertEqual([e["pid"] for e in trace.read_events(path)], [0, 1])
            pathlib.Path(path).write_text("[\n" + ",\n".join(lines) + "\n]\n")
            self.assertEqual(len(trace.read_events(path)), 2)


class Steps(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_step(self, function, keeps_figures=True, limit=30):
        results = runner.Results(self.folder.name, "x", keeps_figures)
        step, _, _ = quiet(runner.run_step, results, "name", "Title", limit, function)
        self.assertEqual(json.loads(results.path.read_text())["steps"], [step])
        return step

    def test_states(self):
        def check(good):
            return lambda record, clock: record.check("it", good, "why")

        def fails(_, __):
            raise runner.StepFailed("reason")

        def skips(_, __):
            raise runner.Skipped("reason")

        def breaks(_, __):
            return {}["key"]
        for function, status in ((check(True), "passed"), (check(False), "failed"),
                                 (fails, "failed"), (skips, "skipped"), (breaks, "failed")):
            self.assertEqual(self.run_step(function)["status"], status)
        self.assertIn("KeyError", self.run_step(breaks)["error"])
        late = self.run_step(check(True), limit=0)
        self.assertEqual((late["status"], late["error"]), ("failed", "no time was left for it"))

    def test_figures_only_where_they_mean_something(self):
        def measures(record, _):
            record.figure("speed", 3.0)
            record.check("it", True, "3.0 fast")
        self.assertEqual(self.run_step(measures)["figures"], {"speed": 3.0})
        step = self.run_step(measures, keeps_figures=False)
        self.assertEqual(step["figures"], {})
        self.assertNotIn("3.0", json.dumps(step))

    def test_a_program_that_takes_too_long_is_ended_with_its_children(self):
        pid_file = os.path.join(self.folder.name, "pid")
        script = f"sleep 1000 & echo $! > {pid_file}; echo begun; wait"

        def waits(_, clock):
            runner.succeed(["/bin/sh", "-c", script], clock)
        step = self.run_step(waits, limit=0.5)
        self.assertIn("did not end within", step["error"])
        self.assertIn("begun", step["error"])
        child = int(pathlib.Path(pid_file).read_text())
        deadline = time.monotonic() + 20
        while self.is_alive(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(self.is_alive(child))

    @staticmethod
    def is_alive(pid):
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def test_what_outlives_a_program_that_is_ended_is_killed(self):
        pid_file = os.path.join(self.folder.name, "pid")
        script = f"(trap '' TERM; sleep 1000 & echo $! > {pid_file}; wait) & wait"

        def waits(_, clock):
            runner.succeed(["/bin/sh", "-c", script], clock)
        self.run_step(waits, limit=0.5)
        child = int(pathlib.Path(pid_file).read_text())
        deadline = time.monotonic() + 20
        while self.is_alive(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(self.is_alive(child))

    def test_status_and_output_of_a_failed_program_are_told(self):
        def fails(_, clock):
            runner.succeed(["/bin/sh", "-c", "echo last words >&2; exit 3"], clock)
        error = self.run_step(fails)["error"]
        self.assertIn("status 3", error)
        self.assertIn("last words", error)

    def test_last_json(self):
        self.assertEqual(runner.last_json('{"a": 1}\nnoise\n{"a": 2}\n{broken\n'), {"a": 2})
        with self.assertRaises(runner.StepFailed):
            runner.last_json("nothing")


class ThinLibraries(unittest.TestCase):
    """GPU code of some architectures alone, and the NCCL that a bundle has."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.thin = load_program("thin_cuda_library")

    def library(self, *codes):
        """Some bytes around a container with one entry for each (kind, architecture, code)."""
        entries = b"".join(
            struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(code), architecture) + code
            for kind, architecture, code in codes)
        by_chance = struct.pack("<I", 0xBA55ED50) + b"not a container"
        data = (b"host code" + by_chance + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) +
                entries + b"more host code")
        path = self.folder / "whole.so"
        path.write_bytes(data)
        return str(path), data

    def test_other_architectures_and_ptx_become_zeros(self):
        path, whole = self.library((2, 80, b"old " * 16), (2, 90, b"keep" * 16),
                                   (1, 90, b"ptx!" * 16), (2, 100, b"new " * 16))
        target = str(self.folder / "below" / "thin.so")
        self.assertEqual(self.thin.thin(path, target, {90}), (256, 64))
        thin = pathlib.Path(target).read_bytes()
        for code in (b"old ", b"ptx!", b"new "):
            whole = whole.replace(code * 16, bytes(64))
        self.assertEqual(thin, whole)

    def test_an_architecture_that_is_not_there_is_an_error(self):
        path, _ = self.library((2, 80, b"old " * 16))
        with self.assertRaisesRegex(ValueError, r"no code for \[90\], only for \[80\]"):
            self.thin.thin(path, str(self.folder / "thin.so"), {90})

    def test_a_packed_library_is_found_before_those_of_the_machine(self):
        programs, libraries = self.folder / "bin", self.folder / "lib"
        for each in (programs, libraries):
            each.mkdir()
        (programs / "acclaunch").touch()
        (libraries / "libnccl.so.2").touch()
        with mock.patch.dict(os.environ):
            os.environ.pop("ACC_NCCL_LIBRARY", None)
            self.assertEqual(places.Places(programs).library("nccl"),
                             str(libraries / "libnccl.so.2"))


class Numbers(unittest.TestCase):
    def test_most_apart(self):
        self.assertEqual(numbers.most_apart([1.0, 2.0], [1.5, 2.0]), 0.5)
        self.assertEqual(numbers.most_apart([1.0], [1.0, 2.0]), float("inf"))
        self.assertEqual(numbers.most_apart([], []), float("inf"))

    def test_every_configuration_and_offload_is_run(self):
        names = [case[0] for case in numbers.cases(places.Places(), 4, True)]
        for path in (ROOT / "configs").glob("*.yaml"):
            for workers in (2, 4):
                self.assertIn(f"{path.stem}, {workers} ranks", names)
        for name in numbers.OFFLOADS:
            self.assertIn(f"{name}, 2 ranks", names)
        few = numbers.cases(places.Places(), 2, False)
        self.assertEqual({case[2] for case in few}, {2})

    def test_nccl_without_sharing_is_skipped_with_a_reason(self):
        for nccl, part in ((None, "no libnccl"), (22809, "NCCL 2.28")):
            with self.assertRaisesRegex(runner.Skipped, part):
                numbers.strategies_nccl(places.Places(), None, runner.Clock(1), nccl, 1, False)


class Report(unittest.TestCase):
    def data(self, has_figures=True):
        runs = {"train_gpt": {"tokens_per_s": 5e5, "mfu": 0.55, "memory_over_formula": 0.02},
                "torch plain": {"tokens_per_s": 4e5, "mfu": 0.44},
                "torch compile": {"tokens_per_s": 4.8e5, "mfu": 0.52}, "micro_batch": 32}
        return {"device": {"name": "NVIDIA H200", "gpus": 1}, "capability": (9, 0),
                "has_figures": has_figures, "standin": not has_figures, "steps": [
                    {"name": "tests", "title": "Tests", "status": "failed", "seconds": 3,
                     "checks": [{"what": "a", "good": True, "detail": ""},
                                {"what": "b", "good": False, "detail": "broke"},
                                {"what": "c", "good": False, "detail": "one\n# two"}],
                     "figures": {}},
                    {"name": "gpt_124m", "title": "GPT", "status": "passed", "seconds": 9,
                     "checks": [], "figures": runs if has_figures else {}},
                    {"name": "adamw", "title": "AdamW", "status": "passed", "seconds": 1,
                     "checks": [], "figures": {"over_torch": 0.9, "of_copy_rate": 0.85}},
                    {"name": "overlap", "title": "Overlap", "status": "passed", "seconds": 1,
                     "checks": [], "figures": {"hidden_share_least": 0.4}}]}

    def test_verdicts(self):
        met = {row["aim"]: row["met"] for row in report.verdicts(self.data())}
        self.assertIs(met["the tests labelled gpu pass"], False)
        self.assertIs(met["gpt_124m: MFU above PyTorch's"], True)
        self.assertIs(met["gpt_124m: MFU of 0.5 or more"], True)
        self.assertIs(met["gpt_124m: peak memory within 5 % of formula and activations"], True)
        self.assertIs(met["gpt_1.3b: MFU above PyTorch's"], None)
        self.assertIs(met["fused AdamW as fast as torch's fused"], False)
        self.assertIs(met["95 % of communication behind compute, on two GPUs or more"], None)

    def test_without_figures_no_aim_of_speed_is_judged(self):
        aims = [row["aim"] for row in report.verdicts(self.data(False))]
        self.assertFalse([aim for aim in aims if "MFU" in aim or "AdamW" in aim])

    def test_page(self):
        data = self.data()
        data["verdicts"] = report.verdicts(data)
        page = report.page(data)
        for part in ("# NVIDIA H200\n", "| gpt_124m: MFU above PyTorch's | 0.550 against 0.520 "
                     "(torch compile) | yes |", "1 of 3 checks passed.", "- failed: b: broke\n",
                     "- failed: c\n\n```\none\n# two\n```\n",
                     "| train_gpt | 500000 | 0.55 | 0.02 |", "| torch plain | 400000 | 0.44 |  |"):
            self.assertIn(part, page)
        self.assertNotIn("stand-in", page)
        data = self.data(False)
        data["verdicts"] = []
        self.assertIn("Made on stand-in libraries", report.page(data))

    def test_file_names(self):
        for name, slug in (("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
                           ("", "gpu")):
            self.assertEqual(report.device_slug(name), slug)


class Program(unittest.TestCase):
    def setUp(self):
        self.program = load_program()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        pathlib.Path(self.folder.name, "acclaunch").write_text("")

    def main(self, *arguments, name="NVIDIA H200", count=1, problem=""):
        gpu = device.Device()
        gpu.name, gpu.count, gpu.problem = name, count, problem
        with mock.patch.object(device, "detect", return_value=gpu):
            return quiet(self.program.main, ["--bin", self.folder.name, *arguments])

    def test_lists_its_steps_anywhere(self):
        status, out, _ = self.main("--list", count=0)
        self.assertEqual(status, 0)
        self.assertIn("strategies_staged", out)

    def test_refusals(self):
        for arguments, more, part in (
                ((), {"count": 0, "problem": "there is no NVIDIA driver"}, "no NVIDIA driver"),
                (("--steps", "facts,nonsense"), {}, "no such step: nonsense"),
                ((), {"name": "Stand-in GPU"}, "no figures for docs/gpu"),
                (("--quick",), {}, "no figures for docs/gpu"),
                (("--quick", "--out", str(ROOT / "docs/gpu/x")), {}, "no figures for docs/gpu"),
                (("--bin", "/nonexistent"), {}, "no acclaunch in /nonexistent"),
                (("--nccl", self.folder.name), {}, "there is no libnccl.so.2 in it"),
                (("--out", "/proc/x"), {}, "--out /proc/x: ")):
            status, _, err = self.main(*arguments, **more)
            self.assertEqual(status, 2, arguments)
            self.assertIn(part, err)

    def test_a_failed_step_is_recorded_and_the_next_one_runs(self):
        out = os.path.join(self.folder.name, "out")
        status, _, _ = self.main("--out", out, "--steps", "facts,tests,peak")
        self.assertEqual(status, 1)
        data = json.loads(pathlib.Path(out, "h200.json").read_text())
        self.assertEqual([step["status"] for step in data["steps"]][:2], ["passed", "failed"])
        self.assertEqual(len(data["steps"]), 3)
        self.assertIn("# NVIDIA H200", pathlib.Path(out, "h200.md").read_text())

    def test_ended_from_outside_it_ends_what_runs_and_keeps_what_it_has(self):
        out, begun = os.path.join(self.folder.name, "out"), os.path.join(self.folder.name, "begun")
        script = f"""
import importlib.machinery, importlib.util, sys
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", {str(ROOT / "scripts/gpu_check")!r})
program = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(program)
gpu = program.device.Device()
gpu.name, gpu.count = "NVIDIA H200", 1
program.device.detect = lambda: gpu
def waits(*_):
    program.runner.succeed(["/bin/sh", "-c", "echo $$ > {begun}.new; mv {begun}.new {begun}; "
                            "sleep 1000"], _[-1])
program.numbers.tests = waits
sys.exit(program.main(["--bin", {self.folder.name!r}, "--out", {out!r}]))
"""
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
        while not os.path.exists(begun) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 1)
        self.assertFalse(Steps.is_alive(int(pathlib.Path(begun).read_text())))
        steps = json.loads(pathlib.Path(out, "h200.json").read_text())["steps"]
        self.assertEqual([step["status"] for step in steps], ["passed", "failed"])
        self.assertIn("ended from outside", steps[1]["error"])
        self.assertIn("ended from outside", pathlib.Path(out, "h200.md").read_text())


if __name__ == "__main__":
    unittest.main()
