# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/gpu_check that need no GPU."""
import copy
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

from check import correctness, device, formulas, places, ranks  # noqa: E402
from check import report, runner, speed, trace  # noqa: E402


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
        for ranks, expected in ((4, 400 + 2 * 10 * 2 + 20), (1, 1600 + 40 + 20)):
            self.assertEqual(formulas.state_bytes("full_shard", 100, ranks, 10, 2), expected)
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
        return {rank: row["share"] for rank, row in trace.overlap(list(events), 0).items()}

    def test_share_that_is_hidden(self):
        compute = event(0, "compute", 10, 20)
        for begin, end, share in ((12, 18, 1.0), (0, 10, 0.0), (15, 25, 0.5), (5, 25, 0.5)):
            self.assertEqual(self.overlap(compute, event(0, "communication", begin, end)),
                             {0: share})

    def test_events_that_overlap_count_once(self):
        self.assertEqual(self.overlap(event(0, "compute", 0, 6), event(0, "optimizer", 4, 10),
                                      event(0, "communication", 5, 15),
                                      event(0, "communication", 5, 10)), {0: 0.5})

    def test_waiting_is_neither(self):
        row = trace.overlap([event(0, "compute", 0, 4), event(0, "wait", 4, 10),
                             event(0, "communication", 0, 10)], 0)[0]
        self.assertEqual((row["hidden_us"], row["wait_us"], row["share"]), (4, 6, 0.4))

    def test_steps_of_the_warm_up_do_not_count(self):
        events = [event(0, "communication", 0, 10), event(0, "step", 0, 10), event(0, "compute", 12, 20),
                  event(0, "communication", 12, 18), event(0, "step", 10, 20)]
        for warmup, share in ((0, 6 / 16), (1, 1.0)):
            self.assertEqual(trace.overlap(events, warmup)[0]["share"], share)

    def test_mps_is_used_if_it_starts_and_is_told_to_end(self):
        gpu = mock.Mock(count=1)
        for status, starts in ((0, True), (1, False)):
            with tempfile.TemporaryDirectory() as folder:
                control = pathlib.Path(folder, ranks.MPS)
                control.write_text(f"#!/bin/sh\necho \"$1 $(cat)\" >>{folder}/asked\nexit {status}\n")
                control.chmod(0o755)
                path = folder + os.pathsep + os.environ["PATH"]
                with mock.patch.dict(os.environ, PATH=path):
                    with ranks.mps(mock.Mock(gpu=gpu, standin=False)) as variables:
                        self.assertEqual("CUDA_MPS_PIPE_DIRECTORY" in variables, starts)
                asked = pathlib.Path(folder, "asked").read_text().split()
                self.assertEqual(asked, ["-d", "quit"] if starts else ["-d"])
        with ranks.mps(mock.Mock(gpu=mock.Mock(count=2), standin=False)) as variables:
            self.assertEqual(variables, {})

    def test_ranks_are_apart(self):
        self.assertEqual(self.overlap(event(0, "compute", 0, 10), event(1, "communication", 0, 10)),
                         {0: None, 1: 0.0})

    def test_reads_an_array_that_was_not_closed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            lines = [json.dumps(event(0, "compute", 0, 1)),
                     json.dumps({"name": "process_name", "ph": "M", "pid": 0}),
                     json.dumps(event(0, "step", 0, 1)),
                     json.dumps(event(1, "compute", 0, 1))]
            pathlib.Path(path).write_text("[\n" + ",\n".join(lines) + ",\n{\"name\": \"cut")
            self.assertEqual([e["pid"] for e in trace.read_events(path)], [0, 0, 1])
            self.assertEqual([trace.ends_of_steps(trace.read_events(path), rank)
                              for rank in (0, 1)], [[1], []])
            pathlib.Path(path).write_text("[\n" + ",\n".join(lines) + "\n]\n")
            self.assertEqual(len(trace.read_events(path)), 3)


class LeapingTime:
    """A clock that a program's line of output can set forward, so that its time is over then."""

    def __init__(self, seconds=10_000):
        self.seconds, self.offset = seconds, 0.0

    def monotonic(self):
        return time.monotonic() + self.offset

    def leap(self, _line=""):
        self.offset = self.seconds


class Steps(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.time = LeapingTime()
        patch = mock.patch.object(runner, "time", self.time)
        patch.start()
        self.addCleanup(patch.stop)

    def run_step(self, function, keeps_figures=True, limit=30):
        results = runner.Results(self.folder.name, "x", keeps_figures, lambda data: "page")
        data = results.add("name", "Title")
        quiet(runner.run_step, results, data, limit, function)
        self.assertEqual(json.loads(results.path.read_text())["steps"], [data])
        self.log = pathlib.Path(self.folder.name, "x", "name.log")
        return data

    def test_states(self):
        def checks(*goods):
            return lambda step: [step.check("it", good, "why") for good in goods]

        def then(error, *goods):
            def function(step):
                checks(*goods)(step)
                raise error
            return function
        cases = ((checks(True), "passed"), (checks(False), "failed"),
                 (checks(True, False), "failed"),
                 (checks(None), "skipped"), (checks(True, None), "passed"),
                 (checks(None, False), "failed"), (lambda _: None, "passed"),
                 (then(runner.StepFailed("reason")), "failed"),
                 (then(runner.Skipped("reason")), "skipped"),
                 (then(runner.TimedOut("reason")), "skipped"),
                 (then(runner.TimedOut("reason"), True), "skipped"),
                 (then(runner.TimedOut("reason"), True, False), "failed"),
                 (then(KeyError("key")), "failed"))
        for number, (function, status) in enumerate(cases):
            step = self.run_step(function)
            self.assertEqual(step["status"], status, number)
        self.assertIn("KeyError", step["error"])
        late = self.run_step(checks(True), limit=0)
        self.assertEqual((late["status"], late["error"]),
                         ("skipped", "time-out: no time was left for it"))

    def test_parts_that_fail_or_time_out_leave_the_others(self):
        def parts(step):
            for script in ("exit 3", "echo begun; exec sleep 1000", "exit 0"):
                if step.attempt(script, step.succeed, ["/bin/sh", "-c", script], None, None,
                                self.time.leap):
                    step.check(script, True)
                self.time.offset = 0.0
        step = self.run_step(parts)
        self.assertEqual([check["good"] for check in step["checks"]], [False, None, True])
        self.assertIn("status 3", step["checks"][0]["detail"])
        self.assertIn("did not end within", step["checks"][1]["detail"])
        self.assertEqual(step["status"], "failed")

    def test_figures_only_where_they_mean_something(self):
        def measures(step):
            step.figure("speed", 3.0)
            step.check("it", True, "3.0 fast")
        self.assertEqual(self.run_step(measures)["figures"], {"speed": 3.0})
        step = self.run_step(measures, keeps_figures=False)
        self.assertEqual(step["figures"], {})
        self.assertNotIn("3.0", json.dumps(step))

    def test_findings_are_written_as_they_are_made(self):
        path = pathlib.Path(self.folder.name, "x.json")
        seen = []

        def written():
            seen.append(json.loads(path.read_text())["steps"][0])

        def finds(step):
            def found(line):
                step.figure("of line", runner.json_of(line)["a"])
                written()
            step.figure("a", 1)
            written()
            step.check("it", True)
            written()
            # The program ends only when the figure of its first line is in the record.
            script = ('echo "[0] {\\"a\\": 7}"; until grep -q "of line" ' + str(path) +
                      "; do sleep 0.01; done; echo done")
            step.succeed(["/bin/sh", "-c", script], None, None,
                         lambda line: "{" in line and found(line))
        step = self.run_step(finds)
        self.assertEqual(step["status"], "passed", step)
        self.assertEqual(seen[0]["figures"], {"a": 1})
        self.assertEqual(seen[0]["status"], "running")
        self.assertEqual(seen[1]["checks"][0]["what"], "it")
        self.assertEqual(seen[2]["figures"], {"a": 1, "of line": 7})

    def test_figures_of_a_program_that_is_cut_are_kept(self):
        def measures(step):
            def found(line):
                step.figure("a", runner.json_of(line)["a"])
                self.time.leap()
            step.succeed(["/bin/sh", "-c", "echo '{\"a\": 1}'; exec sleep 1000"], on_line=found)
        step = self.run_step(measures)
        self.assertEqual((step["status"], step["figures"]), ("skipped", {"a": 1}))

    def test_the_log_has_commands_output_and_outcomes(self):
        def runs(step):
            step.run(["/bin/sh", "-c", "echo out; echo err >&2; exit 4"],
                     {"ACC_X": "1", "HOME": "/"})
            step.run(["/bin/sh", "-c", "echo 'last'; exec sleep 1000"], on_line=self.time.leap)
        for at_once in (False, True):
            def function(step):
                step.at_once = at_once
                runs(step)
            self.time.offset = 0.0
            self.run_step(function)
            log = self.log.read_text()
            for part in ("$ ACC_X=1 /bin/sh -c 'echo out", "\nout\nerr\n", "sh: status 4\n",
                         "\nlast\n", "sh: ended by gpu_check\n"):
                self.assertIn(part, log)
            self.assertNotIn("HOME", log)

    def test_a_program_that_takes_too_long_is_ended_with_its_children(self):
        pid_file = os.path.join(self.folder.name, "pid")
        script = f"sleep 1000 & echo $! > {pid_file}; echo begun; wait"
        step = self.run_step(lambda step: step.succeed(["/bin/sh", "-c", script],
                                                       on_line=self.time.leap))
        self.assertEqual(step["status"], "skipped")
        self.assertIn("did not end within", step["error"])
        self.assertIn("begun", step["error"])
        self.await_end(pid_file)

    def await_end(self, pid_file):
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
        script = f"(trap '' TERM; sleep 1000 & echo $! > {pid_file}; echo begun; wait) & wait"
        self.run_step(lambda step: step.succeed(["/bin/sh", "-c", script], on_line=self.time.leap))
        self.await_end(pid_file)

    def test_a_program_ends_if_its_output_cannot_be_used(self):
        step = self.run_step(lambda step: step.succeed(
            ["/bin/sh", "-c", "echo $$; exec sleep 1000"], None, None,
            lambda line: step.figure("pid", int(line)) or {}["key"]))
        self.assertEqual(step["status"], "failed")
        self.assertIn("KeyError", step["error"])
        self.assertFalse(self.is_alive(step["figures"]["pid"]))

    def test_a_program_ends_even_if_a_child_keeps_its_output_open(self):
        step = self.run_step(lambda step: step.figure("out", step.succeed(
            ["/bin/sh", "-c", "sleep 1000 & echo $!"]).out))
        self.assertEqual(step["status"], "passed")
        os.kill(int(step["figures"]["out"]), signal.SIGKILL)

    def test_status_and_output_of_a_failed_program_are_told(self):
        error = self.run_step(lambda step: step.succeed(
            ["/bin/sh", "-c", "echo last words >&2; exit 3"]))["error"]
        self.assertIn("status 3", error)
        self.assertIn("last words", error)

    def test_last_json(self):
        self.assertEqual(runner.last_json('{"a": 1}\nnoise\n[0] {"a": 2}\n{broken\n'), {"a": 2})
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


class Recorded:
    """A step that records its calls; programs are functions of their arguments."""

    def __init__(self, program=None):
        self.figures, self.checks, self.notes, self.program = {}, [], [], program
        self.figure = self.figures.__setitem__
        self.note = self.notes.append

    def check(self, what, good, detail=""):
        self.checks.append((what, good))

    def attempt(self, what, function, *arguments):
        return function(*arguments)

    def run(self, argv, environment=None, limit=None, on_line=None):
        ran = self.program([str(word) for word in argv])
        for line in ran.out.splitlines() if on_line else ():
            on_line(line)
        return ran

    succeed = run


PLACES = places.Places()


def setup(**changes):
    gpu = device.Device()
    gpu.name, gpu.count, gpu.capability = "NVIDIA H200", 1, (9, 0)
    values = {"places": PLACES, "gpu": gpu, "tools": {}, "nccl": 23007, "standin": False,
              "tiny": False, "peak_tflops": 989.4, **changes}
    return places.Setup(**values)


class Sets(unittest.TestCase):
    def test_most_apart(self):
        self.assertEqual(correctness.most_apart([1.0, 2.0], [1.5, 2.0]), 0.5)
        self.assertEqual(correctness.most_apart([1.0], [1.0, 2.0]), float("inf"))
        self.assertEqual(correctness.most_apart([], []), float("inf"))

    def test_every_configuration_and_offload_is_run(self):
        names = [case[0] for case in ranks.cases(setup(), 4, True)]
        for path in (ROOT / "configs").glob("*.yaml"):
            for workers in (2, 4):
                self.assertIn(f"{path.stem}, {workers} ranks", names)
        for name in ranks.OFFLOADS:
            self.assertIn(f"{name}, 2 ranks", names)
        few = ranks.cases(setup(tiny=True), 2, False)
        self.assertEqual([case[2] for case in few], [2, 2])

    def test_nccl_without_sharing_is_skipped_with_a_reason(self):
        for nccl, part in ((None, "no libnccl"), (22809, "NCCL 2.28")):
            with self.assertRaisesRegex(runner.Skipped, part):
                ranks.strategies_nccl(setup(nccl=nccl), None)
            self.assertEqual([name for name, _ in ranks.backends(setup(nccl=nccl))], ["staged"])
        self.assertEqual(ranks.nccl_variables(setup())["NCCL_MULTI_RANK_GPU_ENABLE"], "1")

    def test_every_sanitizer_runs_on_every_target(self):
        def program(argv):
            race = argv[2] == "racecheck"
            return runner.Ran(9 if race else 0, "========= ERROR SUMMARY: 0 errors", 1.0)
        step = Recorded(program)
        correctness.sanitizers(setup(tools={"compute-sanitizer": {"path": "sanitizer"}}), step)
        self.assertEqual(len(step.checks), len(correctness.TOOLS) * len(correctness.SANITIZED))
        self.assertEqual({what.split()[0] for what, good in step.checks if not good}, {"racecheck"})
        step.program = lambda argv: runner.Ran(1, "Device not supported", 1.0)
        with self.assertRaisesRegex(runner.Skipped, "Device not supported"):
            correctness.sanitizers(setup(tools={"compute-sanitizer": {"path": "x"}}), step)
        with self.assertRaisesRegex(runner.Skipped, "not found"):
            correctness.sanitizers(setup(), step)

    def test_attention_must_be_about_as_exact_as_torchs(self):
        def lines(ours, flash):
            rows = {"acc kernels": 0.001, "acc cudnn": ours, "flash": flash}
            return "\n".join(json.dumps({"impl": impl, "out_error": value, "grad_error": 0.001})
                             for impl, value in rows.items() if value != "missing")
        where = copy.copy(PLACES)
        where.torch = "2.11"
        for ours, flash, good in ((0.004, 0.003, True), (0.03, 0.02, True), (0.05, 0.02, False),
                                  (None, 0.002, False), ("missing", 0.002, False)):
            step = Recorded(lambda _: runner.Ran(0, lines(ours, flash), 1.0))
            with mock.patch.dict(os.environ, ACC_CUDNN_LIBRARY="/x/libcudnn.so.9"):
                correctness.attention(setup(places=where, tiny=True), step)
            self.assertEqual(all(value for what, value in step.checks if "cudnn" in what), good)
            self.assertTrue(all(value for what, value in step.checks if "kernels" in what))
            self.assertIn("1x70x2x128, flash", step.figures)
        where.torch = None
        with self.assertRaisesRegex(runner.Skipped, "no Python with torch"):
            correctness.attention(setup(places=where), step)

    def test_products_that_differ_from_fp32_fail(self):
        for error, good in ((0.002, True), (0.2, False), (None, False)):
            line = json.dumps({"what": "qkv, bias", "error": error, "tflops": 500.0})
            step = Recorded(lambda _: runner.Ran(0, line, 1.0))
            correctness.products(setup(), step)
            self.assertEqual(set(step.checks), {(f"{size}, qkv, bias{how}", good)
                                                for size in correctness.PRODUCT_SIZES
                                                for how in ("", ", not fused", ", tuned")})
            self.assertEqual(step.figures["124M, qkv, bias"]["tflops"], 500.0)

    def test_a_gpu_without_fp8_is_noted_and_a_wrong_layer_fails(self):
        def line(error):
            return json.dumps({"what": "fp8 qkv, forward", "error": error, "tflops": 900.0})
        name = "1.3B, fp8 qkv, forward"
        for ran, checks, notes in ((runner.Ran(0, line(0.3), 1.0), [(name, False)], 0),
                                   (runner.Ran(0, line(0.0), 1.0), [(name, False)], 0),  # in bf16
                                   (runner.Ran(0, line(0.03), 1.0), [(name, True)], 0),
                                   (runner.Ran(2, "needs 8.9", 1.0), [], 1)):
            step = Recorded(lambda _, ran=ran: ran)
            correctness.fp8_layers(setup(), step, "1.3B", 64, 32)
            self.assertEqual((step.checks, len(step.notes)), (checks, notes))
        with self.assertRaisesRegex(runner.StepFailed, "no kernel"):
            correctness.fp8_layers(setup(), Recorded(lambda _: runner.Ran(1, "no kernel", 1.0)),
                                   "1.3B", 64, 32)

    def test_kernels_of_ncu(self):
        table = "\n".join((
            "==PROF== Connected", "step 1/2 loss 5.5",
            '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
            '"0","9","void gelu<float>(int, float*)","dram__bytes_read.sum","Mbyte","1.5"',
            '"0","9","void gelu<float>(int, float*)","gpu__time_duration.sum","usecond","1,250.5"',
            '"1","9","adamw(int)","gpu__time_duration.sum","nsecond","900"',
            '"2","9","void gelu<half>(int, half*)","gpu__time_duration.sum","usecond","10"',
            '"3","9","void a::<unnamed>::cast<(int)4>(T*)","gpu__time_duration.sum","ns","1"'))
        kernels = speed.kernels_of(table)
        self.assertEqual(list(kernels), ["gelu", "adamw", "a::cast"])
        self.assertAlmostEqual(kernels["gelu"]["seconds"], 1.2605e-3)
        self.assertEqual((kernels["gelu"]["bytes_read"], kernels["gelu"]["launches"]), (1.5e6, 2))
        with self.assertRaises(runner.StepFailed):
            speed.kernels_of("no table")

    def test_tools_are_found_with_their_versions(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "ncu")
            tool.write_text("#!/bin/sh\necho 'Copyright 2018'\n"
                            "echo 'Version 2025.3.1.0 (build 1)'\n")
            tool.chmod(0o755)
            with mock.patch.dict(os.environ, PATH=folder, CUDA_HOME=folder):
                found = places.find_tools()
            self.assertEqual(found["ncu"], {"path": str(tool), "version": "2025.3.1.0"})
            self.assertNotIn("nvcc", found)

    def test_a_set_leaves_few_files_and_takes_less_than_8_minutes(self):
        """A machine on loan may return eight files at most."""
        program = load_program()
        self.assertLess(program.SECONDS, 480 - 15)
        for name, steps in program.SETS.items():
            self.assertLessEqual(len(steps) + 2, 8, name)
            self.assertEqual(sum(share for _, _, share, _ in steps), program.SECONDS, name)


class Report(unittest.TestCase):
    def data(self, has_figures=True):
        runs = {"train_gpt": {"tokens_per_s": 5e5, "mfu": 0.55, "memory_over_formula": 0.02},
                "torch plain": {"tokens_per_s": 4e5, "mfu": 0.44},
                "torch plain, micro-batch 1": {"tokens_per_s": 4e5, "mfu": 0.9},
                "torch compile": {"tokens_per_s": 4.8e5, "mfu": 0.52}, "micro_batch": 32}
        return {"device": {"name": "NVIDIA H200", "gpus": 1}, "capability": (9, 0),
                "software": {"driver": "580", "ncu": None},
                "has_figures": has_figures, "standin": not has_figures, "steps": [
                    {"name": "tests", "title": "Tests", "status": "failed", "seconds": 3,
                     "checks": [{"what": "a", "good": True, "detail": ""},
                                {"what": "b", "good": False, "detail": "broke"},
                                {"what": "c", "good": False, "detail": "one\n# two"},
                                {"what": "d", "good": None, "detail": "too slow"}],
                     "figures": {}},
                    {"name": "gpt_124m", "title": "GPT", "status": "passed", "seconds": 9,
                     "checks": [], "figures": runs if has_figures else {}},
                    {"name": "gpt_1.3b", "title": "GPT", "status": "not run", "checks": [],
                     "figures": {}},
                    {"name": "peak", "title": "AdamW", "status": "passed", "seconds": 1,
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

    def test_an_aim_of_which_a_part_ran_out_of_time_is_open(self):
        data = self.data()
        for goods, met in (((True,), True), ((True, None), None), ((False, None), False)):
            checks = [{"what": "a", "good": good, "detail": ""} for good in goods]
            data["steps"][0].update(status=runner.outcome(checks), checks=checks)
            self.assertIs(report.verdicts(data)[0]["met"], met)

    def test_without_figures_no_aim_of_speed_is_judged(self):
        aims = [row["aim"] for row in report.verdicts(self.data(False))]
        self.assertFalse([aim for aim in aims if "MFU" in aim or "AdamW" in aim])

    def test_page(self):
        data = self.data()
        data["verdicts"] = report.verdicts(data)
        page = report.page(data)
        for part in ("# NVIDIA H200\n", "| gpt_124m: MFU above PyTorch's | 0.550 against 0.520 "
                     "(torch compile) | yes |", "1 of 4 checks passed, 1 ran out of time.",
                     "- failed: b: broke\n",
                     "- skipped: d: too slow\n", "`gpt_1.3b`: not run.", "| driver | 580 |",
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
        for part in ("--set correctness", "--set speed", "--set ranks", "strategies_staged"):
            self.assertIn(part, out)

    def test_refusals(self):
        ranks_of = ("--set", "ranks")
        for arguments, more, part in (
                ((), {}, "name a set with --set: correctness, speed, ranks"),
                (ranks_of, {"count": 0, "problem": "there is no NVIDIA driver"},
                 "no NVIDIA driver"),
                ((*ranks_of, "--steps", "overlap,parity"), {}, "in the set ranks: parity"),
                (ranks_of, {"name": "Stand-in GPU"}, "no figures for docs/gpu"),
                ((*ranks_of, "--quick"), {}, "no figures for docs/gpu"),
                ((*ranks_of, "--quick", "--out", str(ROOT / "docs/gpu/x")), {},
                 "no figures for docs/gpu"),
                ((*ranks_of, "--bin", "/nonexistent"), {}, "no acclaunch in /nonexistent"),
                ((*ranks_of, "--nccl", self.folder.name), {}, "there is no libnccl.so.2 in it"),
                ((*ranks_of, "--out", "/proc/x"), {}, "--out /proc/x: ")):
            status, _, err = self.main(*arguments, **more)
            self.assertEqual(status, 2, arguments)
            self.assertIn(part, err)

    def run_set(self, seconds, *functions):
        """Runs a set of these steps. Returns (status, record)."""
        out = os.path.join(self.folder.name, "out")
        self.program.SETS = {"ranks": [(function.__name__, "Title", 1, function)
                                       for function in functions]}
        status, *_ = self.main("--set", "ranks", "--out", out, "--seconds", str(seconds))
        self.assertIn("# NVIDIA H200", pathlib.Path(out, "h200-ranks.md").read_text())
        return status, json.loads(pathlib.Path(out, "h200-ranks.json").read_text())

    def test_a_failed_step_is_recorded_and_the_next_one_runs(self):
        def fails(_, step):
            raise runner.StepFailed("reason")

        def passes(_, step):
            step.check("it", True)
        status, data = self.run_set(60, fails, passes)
        self.assertEqual(status, 1)
        self.assertEqual([step["status"] for step in data["steps"]], ["failed", "passed"])

    def test_a_step_that_hangs_is_skipped_and_leaves_the_others_their_time(self):
        left, clock = [], LeapingTime(seconds=31)

        def hangs(_, step):
            step.succeed(["/bin/sh", "-c", "echo begun; exec sleep 1000"], on_line=clock.leap)

        def passes(_, step):
            left.append(step.left())
            step.check("it", True)
        with mock.patch.object(runner, "time", clock), \
                mock.patch.object(self.program, "time", clock):
            status, data = self.run_set(60, hangs, passes)
        self.assertEqual(status, 0)
        self.assertEqual([step["status"] for step in data["steps"]], ["skipped", "passed"])
        self.assertIn("sh did not end within", data["steps"][0]["error"])
        self.assertGreater(left[0], 0)

    def test_time_that_a_step_does_not_use_is_left_to_the_next(self):
        left = []

        def short(_, step):
            left.append(step.left())

        def late(_, step):
            left.append(step.left())
        self.run_set(1000, short, late)
        self.assertLessEqual(left[0], 500)
        self.assertGreater(left[1], 900)

    # A set in another process, whose second step says that it has begun, then hangs.
    SCRIPT = """
import importlib.machinery, importlib.util, sys
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", {program!r})
program = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(program)
gpu = program.device.Device()
gpu.name, gpu.count = "NVIDIA H200", 1
program.device.detect = lambda: gpu
def passes(_, step):
    step.figure("speed", 3)
def hangs(_, step):
    def found(line):
        step.figure("pid", int(line))
        open({begun!r}, "w").close()
    step.succeed(["/bin/sh", "-c", "echo $$; exec sleep 1000"], on_line=found)
program.SETS = {{"speed": [("first", "First", 1, passes), ("second", "Second", 1, hangs),
                         ("third", "Third", 1, passes)]}}
sys.exit(program.main(["--bin", {folder!r}, "--out", {out!r}, "--set", "speed"]))
"""

    def cut(self, number):
        """Sends a signal in the second step. Returns (status, steps, page, pid, log)."""
        out, begun = (os.path.join(self.folder.name, name) for name in ("out", "begun"))
        script = self.SCRIPT.format(program=str(ROOT / "scripts/gpu_check"), begun=begun, out=out,
                                    folder=self.folder.name)
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
        while not os.path.exists(begun) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        status = process.wait(100)
        steps = json.loads(pathlib.Path(out, "h200-speed.json").read_text())["steps"]
        self.assertEqual(steps[0]["figures"], {"speed": 3})
        self.assertEqual(steps[2]["status"], "not run")
        page = pathlib.Path(out, "h200-speed.md").read_text()
        self.assertIn("`third`: not run", page)
        log = pathlib.Path(out, "h200-speed", "second.log").read_text()
        return status, steps, page, steps[1]["figures"]["pid"], log

    def test_ended_from_outside_it_ends_what_runs_and_keeps_what_it_has(self):
        status, steps, page, pid, log = self.cut(signal.SIGTERM)
        self.assertEqual(status, 1)
        self.assertFalse(Steps.is_alive(pid))
        self.assertEqual([step["status"] for step in steps], ["passed", "skipped", "not run"])
        self.assertIn("ended from outside", steps[1]["error"])
        self.assertIn("ended from outside", page)
        self.assertIn("ended by gpu_check", log)

    def test_killed_it_leaves_a_complete_record(self):
        status, steps, page, pid, log = self.cut(signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)  # what ran is left, as a machine that is given back ends it
        self.assertEqual(status, -signal.SIGKILL)
        self.assertEqual([step["status"] for step in steps], ["passed", "running", "not run"])
        self.assertIn("`second`: unfinished", page)
        self.assertIn(f"{pid}\n", log)


if __name__ == "__main__":
    unittest.main()
