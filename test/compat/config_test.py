# SPDX-License-Identifier: Apache-2.0
"""acclaunch config and the real accelerate config: the same answers give the same file.

config_test.py ACCLAUNCH. Exits with 77 if accelerate is not installed.
"""

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import unittest

try:
    import yaml
    from accelerate.commands import menu
    from accelerate.commands.config import cluster, config as questionnaire
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.config.default import write_basic_config
    from accelerate.commands.config.update import update_config
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
except ImportError as missing:
    print(missing)
    sys.exit(77)

ACCLAUNCH = os.path.abspath(sys.argv.pop(1))
# Cases that accelerate refuses to write if the packages are not installed.
for package in ("deepspeed", "transformers", "fp8", "transformer_engine", "msamp", "torchao"):
    setattr(cluster, f"is_{package}_available", lambda: True)

NONE, CPU, GPU = "0", "1", "4"
MACHINES = ["3", "2", "10.0.0.1", "29501"]

# Name: answers in order; "" selects the default, a number selects a menu entry.
QUESTIONNAIRES = {
    "nothing distributed": ["", NONE, "", "", "", "", "", ""],
    "CPU alone": ["", NONE, "yes", "", "", ""],
    "one GPU of several, bound, bf16": ["", NONE, "no", "no", "no", "3", "yes", "2"],
    "several CPUs": ["", CPU, "", "", "", "", "4", ""],
    "several CPUs, mpirun": ["", CPU, "2", "1", "10.0.0.1", "29501", "", "yes", "yes", "hosts", "", "8", ""],
    "two GPUs": ["", GPU, "", "", "", "", "", "2", "0,1", "", "1"],
    "two GPUs of unlike machines, c10d": ["", GPU, *MACHINES, "no", "c10d", "", "", "", "", "6", "", "", ""],
    "dynamo": ["", GPU, "", "", "yes", "0", "", "", "", "2", "", "", "2"],
    "dynamo to the letter": ["", GPU, "", "", "yes", "", "yes", "2", "yes", "yes", "yes", "", "", "2", "", "", ""],
    "DeepSpeed as it comes": ["", GPU, "", "", "", "yes", *[""] * 9, ""],
    "ZeRO 3, all in host memory": ["", GPU, "", "", "", "yes", "", "3", "1", "1", "4", "yes", "0.5", "yes", "yes", "no", "8", "2"],
    "ZeRO 2 on NVMe": ["", GPU, "", "", "", "yes", "", "2", "2", "2", "/a", "/b", "", "", "", "", "2", ""],
    "ZeRO 0 of experts": ["", NONE, "", "", "yes", "", "0", "", "", "", "yes", "MixtralSparseMoeBlock", "1", ""],
    "ZeRO 1 with hosts": ["", GPU, *MACHINES, "", "", "", "yes", "", "1", "", "", "", "", "2", "/hosts", "yes", "a:0", "yes", "b", "6", ""],
    "ZeRO, started everywhere": ["", GPU, *MACHINES, "", "", "", "yes", "", "1", "", "", "", "", "1", "6", ""],
    "DeepSpeed file": ["", GPU, "", "", "", "yes", "yes", "/tmp/ds.json", "", "", "2"],
    "FSDP 2": ["", GPU, "", "", "", "", "yes", "", "", "", "", "", "LlamaDecoderLayer", "", "", "", "", "2", "2"],
    "FSDP 2, kept weights, offload, full": ["", GPU, "", "", "", "", "yes", "2", "no", "yes", "2", "1", "no", "yes", "no", "4", ""],
    "FSDP 2 by size": ["", GPU, "", "", "", "", "yes", "2", "", "", "1", "2000000", "0", "", "", "", "4", "1"],
    "FSDP 2 with groups": ["", GPU, "", "", "", "", "yes", "2", "", "", "", "yes", "", "", "", "yes", "2", "4", "", "", "8", "2"],
    "FSDP 2 with all kinds of groups": ["", GPU, "", "", "", "", "yes", "2", "", "", "", "yes", "", "", "", "yes", "", "2", "2", "2", "1", "8", ""],
    "FSDP 1": ["", GPU, "", "", "", "", "yes", "1", "", "", "", "", "GPT2Block,Other", "", "", "", "", "", "", "4", ""],
    "FSDP 1, grad op, own order": ["", GPU, "", "", "", "", "yes", "1", "1", "", "1", "", "2", "2", "yes", "no", "no", "no", "yes", "4", "2"],
    "FSDP 1, hybrid over machines": ["", GPU, *MACHINES, "", "", "", "", "yes", "1", "3", "", "", "yes", "1", "1", "", "", "", "", "6", ""],
}  # fmt: skip

# Accelerate writes some of them under names that its launcher does not read.
FP8 = {
    "torchao": ["", NONE, "", "", "", "", "", "3", "", "", "no"],
    "Transformer Engine": ["", GPU, "", "", "", "", "", "2", "", "", "3", "1", "yes", "1", "2", "1", "16", "1", "yes", "", "yes", ""],
    "Transformer Engine as it comes": ["", NONE, "", "", "", "", "", "3", "1", *[""] * 7],
    "MS-AMP": ["", NONE, "", "", "", "", "", "3", "2", "0"],
}  # fmt: skip


def real_file(answers, path):
    """Answers the real questionnaire. Its question about Megatron-LM gets the default."""
    left = list(answers)

    def field(prompt):
        return "" if "Megatron" in prompt else left.pop(0)

    def entry(self, default_choice=0):
        answer = left.pop(0)
        if not answer:
            return default_choice
        return int(answer) - ("FSDP version" in self.prompt)

    menu.BulletMenu.run, cluster_input = entry, __builtins__.input
    __builtins__.input = field
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            questionnaire.get_user_input().to_yaml_file(path)
    finally:
        __builtins__.input = cluster_input
    if left:
        raise AssertionError(f"accelerate did not ask for {left}")


def acclaunch(*arguments, answers=None, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "HF_HOME")}
    return subprocess.run(
        [ACCLAUNCH, *arguments], capture_output=True, text=True, timeout=240, env=environment | variables,
        input="".join(answer + "\n" for answer in answers or []),
    )  # fmt: skip


def executable(path, flags):
    return os.open(path, flags, 0o755)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class ConfigTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.ours = os.path.join(self.folder, "ours.yaml")
        self.real = os.path.join(self.folder, "real.yaml")

    def check_success(self, run):
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_the_same_answers_give_the_same_file(self):
        for name, answers in QUESTIONNAIRES.items():
            with self.subTest(name):
                real_file(answers, self.real)
                self.check_success(acclaunch("config", "--config_file", self.ours, answers=answers))
                # With FSDP 1 we write the strategy twice: accelerate writes only the key that it does not read.
                self.assertEqual(re.sub("  fsdp_sharding_strategy: .*\n", "", read(self.ours)), read(self.real))

    def test_accelerate_launches_the_written_file(self):
        for name, answers in (QUESTIONNAIRES | FP8).items():
            with self.subTest(name):
                self.check_success(acclaunch("config", "--config_file", self.ours, answers=answers))
                self.check_parsed_by_accelerate()

    def check_parsed_by_accelerate(self):
        said = yaml.safe_load(read(self.ours))
        load_config_from_file(self.ours)
        args = launch_command_parser().parse_args(["--config_file", self.ours, "program.py"])
        args, _, _ = _validate_launch_command(args)
        for key in ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port",
                    "mixed_precision", "gpu_ids"):  # fmt: skip
            if key in said:
                self.assertEqual(getattr(args, key), said[key], key)
        self.assertEqual(args.use_fsdp, said["distributed_type"] == "FSDP")
        self.assertEqual(args.use_deepspeed, said["distributed_type"] == "DEEPSPEED")
        for block in ("fsdp_config", "deepspeed_config", "parallelism_config", "dynamo_config", "fp8_config"):
            for key, value in said.get(block, {}).items():
                self.assertEqual(getattr(args, key), value, key)

    def explain(self, path):
        """Returns the plan of a file. Programs that a plan with several machines needs exist."""
        for name in ("mpirun", "deepspeed"):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8", opener=executable) as file:
                file.write("#!/bin/sh\necho 'mpirun (Open MPI) 5.0'\n")
        run = acclaunch("explain", "--json", "--config_file", path, "/bin/true",
                        ACC_SIMULATE_GPUS="8", PATH=f"{self.folder}:{os.environ['PATH']}")  # fmt: skip
        self.check_success(run)
        return json.loads(run.stdout)

    def with_deepspeed_file(self, answers):
        path = os.path.join(self.folder, "ds.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}, file)
        return [path if answer == "/tmp/ds.json" else answer for answer in answers]

    def test_acclaunch_launches_the_written_file(self):
        for name, answers in (QUESTIONNAIRES | FP8).items():
            with self.subTest(name):
                answers = self.with_deepspeed_file(answers)
                self.check_success(acclaunch("config", "--config_file", self.ours, answers=answers))
                plan = self.explain(self.ours)
                self.check_explained(plan, yaml.safe_load(read(self.ours)))
                self.assertNotIn("fsdp_reshard_after_forward", " ".join(plan["notices"]))

    def test_accelerates_files_mean_the_same_to_acclaunch(self):
        for name, answers in (QUESTIONNAIRES | FP8).items():
            with self.subTest(name):
                answers = self.with_deepspeed_file(answers)
                real_file(answers, self.real)
                self.check_success(acclaunch("config", "--config_file", self.ours, answers=answers))
                values = [{setting["name"]: setting["value"] for setting in self.explain(path)["settings"]
                           if setting["name"] != "config_file"} for path in (self.real, self.ours)]  # fmt: skip
                self.assertEqual(*values)

    def check_explained(self, plan, said):
        found = {setting["name"]: setting["value"] for setting in plan["settings"]}
        flat = {key: value for key, value in said.items() if not isinstance(value, dict)}
        for block in said.values():
            flat |= block if isinstance(block, dict) else {}
        for key, value in flat.items():
            if key in found and value != []:
                text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                self.assertEqual(found[key].lower(), text.lower(), key)
        modes = {"NO": "plain", "MULTI_CPU": "plain"}
        kind = said["distributed_type"]
        self.assertEqual(plan["mode"], modes.get(kind, kind.lower()))

    def test_default_is_what_accelerate_writes_as_json(self):
        write_basic_config("bf16", self.real)
        run = acclaunch("config", "default", "--mixed-precision=bf16", "--config_file", self.ours)
        self.check_success(run)
        self.assertEqual(run.stdout, f"wrote {self.ours}\n")
        self.assertEqual(read(self.ours), yaml.safe_dump(json.loads(read(self.real))))
        written = read(self.ours)
        run = acclaunch("config", "--default", "--config_file", self.ours)
        self.assertEqual(run.returncode, 2)
        self.assertIn("--overwrite", run.stderr)
        self.assertEqual(read(self.ours), written)
        self.check_success(acclaunch("config", "--default", "--overwrite", "--config_file", self.ours))
        self.assertIn("mixed_precision: 'no'", read(self.ours))

    def test_default_counts_gpus(self):
        self.check_success(acclaunch("config", "default", "--config_file", self.ours, ACC_SIMULATE_GPUS="4"))
        said = yaml.safe_load(read(self.ours))
        self.assertEqual((said["distributed_type"], said["num_processes"], said["use_cpu"]), ("MULTI_GPU", 4, False))

    def test_default_location(self):
        place = os.path.join(self.folder, "accelerate", "default_config.yaml")
        self.check_success(acclaunch("config", "default", HF_HOME=self.folder))
        self.assertEqual(load_config_from_file(place).num_processes, 1)
        self.assertIn(place, acclaunch("explain", "/bin/true", HF_HOME=self.folder).stdout)

    def test_update_writes_the_file_of_accelerate(self):
        files = {
            "little": "distributed_type: 'NO'\n",
            "FSDP": "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n"
                    "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n",
            "old": "distributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\ndynamo_backend: INDUCTOR\n",
            "none": "distributed_type: MULTI_CPU\nmain_process_ip: null\nfsdp_config: {}\ntpu_env: []\n",
        }  # fmt: skip
        for name, text in files.items():
            with self.subTest(name):
                for path in (self.real, self.ours):
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(text)
                update_config(type("Args", (), {"config_file": self.real}))
                self.check_success(acclaunch("config", "update", "--config_file", self.ours))
                self.assertEqual(read(self.ours), read(self.real))

    def test_json_is_read_by_accelerate(self):
        path = os.path.join(self.folder, "config.json")
        self.check_success(acclaunch("config", "--config_file", path, answers=QUESTIONNAIRES["FSDP 2"]))
        self.assertEqual(load_config_from_file(path).fsdp_config["fsdp_transformer_layer_cls_to_wrap"], "LlamaDecoderLayer")

    def test_wrong_answers_are_errors_and_write_nothing(self):
        cases = {
            "menu": (["", "2"], "multi-XPU"),
            "SageMaker": (["1"], "SageMaker"),
            "beyond the menu": (["", "11"], '"11"'),
            "yes or no": (["", NONE, "perhaps"], "yes or no"),
            "integer": (["", CPU, "two"], "an integer from 1 to"),
            "port": (["", CPU, "2", "0", "host", "65536"], "65535"),
            "one GPU": (["", GPU, "", "", "", "", "", "1"], "an integer from 2 to"),
            "no address": (["", CPU, "2", "0", ""], "no default"),
            "end": (["", CPU], "ended"),
            "machine": (["", CPU, "2", "2"], "expected 0, 1"),
        }  # fmt: skip
        for name, (answers, reason) in cases.items():
            with self.subTest(name):
                run = acclaunch("config", "--config_file", self.ours, answers=answers)
                self.assertEqual(run.returncode, 2)
                self.assertIn(reason, run.stderr)
                self.assertEqual(os.listdir(self.folder), [])

    def test_bad_command_lines(self):
        cases = (["--what"], ["other"], ["default", "--update"], ["update", "--config_file", "/nowhere.yaml"],
                 ["default", "--mixed_precision", "fp4"], ["default", "--config_file", "/proc/no/file.yaml"], ["--config_file", "/proc/no/file.yaml"])  # fmt: skip
        for arguments in cases:
            with self.subTest(arguments):
                run = acclaunch("config", *arguments)
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertRegex(run.stderr, r"\Aacclaunch: .+\n\Z")

    def test_update_refuses_what_accelerate_does_not_know(self):
        with open(self.ours, "w", encoding="utf-8") as file:
            file.write("distributed_type: FSDP\nnum_proceses: 4\n")
        run = acclaunch("config", "update", "--config_file", self.ours)
        self.assertEqual(run.returncode, 2)
        self.assertIn("num_processes", run.stderr)
        self.assertIn("num_proceses", read(self.ours))


class Conversation:
    """Runs acclaunch config on its own pseudo-terminal."""

    def __init__(self, path):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(ACCLAUNCH, [ACCLAUNCH, "config", "--config_file", path])
        self.text = ""

    def wait_for(self, text):
        while text not in self.text:
            ready, _, _ = select.select([self.terminal], [], [], 30)
            if not ready:
                raise AssertionError(f"no {text!r} in {self.text!r}")
            self.text += os.read(self.terminal, 4096).decode()
        self.text = self.text.split(text, 1)[1]

    def answer(self, prompt, keys):
        self.wait_for(prompt)
        os.write(self.terminal, keys.encode())

    def modes(self):
        return termios.tcgetattr(self.terminal)

    def end(self):
        with contextlib.suppress(OSError):  # EIO: the program has closed the terminal
            while os.read(self.terminal, 4096):
                pass
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


class TerminalTest(unittest.TestCase):
    DOWN, UP, ENTER = "\033[B", "\033[A", "\n"
    KIND_MENU = "  4  multi-GPU\033[0m\r\n"

    def setUp(self):
        self.path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "config.yaml")
        self.talk = Conversation(self.path)

    def test_arrow_keys_and_digits(self):
        talk = self.talk
        talk.answer(self.KIND_MENU, self.DOWN + "\033OB" + self.UP + self.DOWN * 2 + self.ENTER)
        talk.answer("machines take part? [1]: ", "many\n")
        talk.wait_for('expected an integer from 1 to 1000000, got "many"')
        talk.answer("machines take part? [1]: ", "\n")
        for prompt in ("slower)? [yes/NO]: ", "dynamo? [yes/NO]: ", "(ZeRO)? [yes/NO]: "):
            talk.answer(prompt, "\n")
        talk.answer("parallel)? [yes/NO]: ", "\n")
        talk.answer("all machines? [2]: ", "1\n")
        talk.wait_for("an integer from 2 to")
        talk.answer("all machines? [2]: ", "\n")
        talk.answer("0,2? [all]: ", "\n")
        talk.answer("(NUMA)? [yes/NO]: ", "\n")
        talk.answer("  2  bf16\033[0m\r\n", "9" + "2" + self.ENTER)  # the menu has no entry 9
        talk.wait_for(f"wrote {self.path}")
        self.assertEqual(talk.end(), 0)
        said = yaml.safe_load(read(self.path))
        self.assertEqual((said["distributed_type"], said["num_processes"], said["mixed_precision"]), ("MULTI_GPU", 2, "bf16"))

    def test_every_end_restores_the_terminal(self):
        before = self.talk.modes()
        self.talk.wait_for(self.KIND_MENU)
        self.assertNotEqual(self.talk.modes(), before)
        os.write(self.talk.terminal, b"\003")  # Ctrl-C
        self.talk.wait_for("\033[?25h")
        self.assertEqual(self.talk.modes(), before)
        self.assertEqual(self.talk.end(), -signal.SIGINT)
        self.assertFalse(os.path.exists(self.path))

    def test_end_of_input_restores_the_terminal(self):
        before = self.talk.modes()
        self.talk.answer(self.KIND_MENU, "\004")
        self.talk.wait_for("the input ended")
        self.assertEqual(self.talk.modes(), before)
        self.assertEqual(self.talk.end(), 2)


if __name__ == "__main__":
    unittest.main()
