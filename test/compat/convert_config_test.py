# SPDX-License-Identifier: Apache-2.0
"""The real Accelerate reads files that acclaunch convert-config and to-fsdp2 write.

convert_config_test.py ACCLAUNCH CONFIGS. Exits with 77 if accelerate is not installed.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
except ImportError as missing:
    print(missing)
    sys.exit(77)

ACCLAUNCH = os.path.abspath(sys.argv.pop(1))
CONFIGS = pathlib.Path(sys.argv.pop(1)).resolve()
FORMS = ["fsdp", "fsdp2", "deepspeed", "deepspeed-json"]
COMMON = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "num_processes": 4}

# Texts that YAML 1.1, or a writer, could take for another type.
TEXTS = [
    "no", "NO", "Yes", "on", "off", "true", "null", "~", "12", "-3", "+4", "010", "0o7", "0x1f", "0b11", "1_000",
    "1:30", "1:30.5", "5.0e+8", ".5", "1.", ".inf", ".nan", "2024-01-02", "2024-01-02 03:04:05", "=", "<<",
    "nO", "y", "none", "10.0.0.1", "host:29500", "a: b", "a #b", "#a", "- a", "-", "?", "? a", "*a", "&a", "!a",
    "%a", "@a", "`a`", "[a", "{a}", "'a'", '"a"', " a", "a ", "a\tb", "a\\b", "0,1", ",a", "caf\u00e9", "---", "...",
    "a\nb", "a\x07b",
]  # fmt: skip

STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
EVERY_KEY = {
    "fsdp_activation_checkpointing": True,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_forward_prefetch": False,
    "fsdp_min_num_params": 2000,
    "fsdp_offload_params": False,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_transformer_layer_cls_to_wrap": "BertLayer,GPT2Block",
    "fsdp_use_orig_params": True,
    "fsdp_version": 1,
}
OLD_FILES = {
    "every key": EVERY_KEY,
    "version 2": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_use_orig_params": True},
    "no key": {},
    "unknown keys": {"sharding_strategy": "FULL_SHARD", "mine": ["a", 1]},
    **{f"strategy {name}": {"fsdp_sharding_strategy": name} for name in STRATEGIES},
    **{f"questionnaire's {name}": {"fsdp_reshard_after_forward": name} for name in STRATEGIES},
}


def acclaunch(*arguments):
    done = subprocess.run([ACCLAUNCH, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def launch_arguments(path):
    """What accelerate launch makes of a file, as far as it needs no package that is not installed."""
    args = launch_command_parser().parse_args(["--config_file", str(path), "program.py"])
    return _validate_launch_command(args)[0]


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, config):
        path = self.folder / name
        path.write_text(yaml.safe_dump(config))
        return path


class Writer(InFolder):
    def test_texts_stay_texts(self):
        for text in TEXTS:
            with self.subTest(text):
                path = self.write("in.yaml", {**COMMON, "main_process_ip": text, "fsdp_config": {"fsdp_version": 1}})
                done = acclaunch("convert-config", path, "--to", "fsdp2")
                self.assertEqual(yaml.safe_load(done.stdout)["main_process_ip"], text)

    def test_numbers_stay_numbers(self):
        for text, value in {"1.0": 1.0, "5e-1": 0.5, "2": 2, "1e2": 100.0}.items():
            with self.subTest(text):
                path = self.folder / "d.json"
                path.write_text(
                    '{"train_batch_size": 4, "gradient_clipping": %s, "zero_optimization": {"stage": 3}}' % text
                )
                read = yaml.safe_load(acclaunch("convert-config", path).stdout)
                self.assertEqual(read["deepspeed_config"], {"gradient_clipping": value})


class Convert(InFolder):
    def convert(self, source, form):
        output = self.folder / f"{source.stem}_{form}.{'json' if form == 'deepspeed-json' else 'yaml'}"
        acclaunch("convert-config", source, "--to", form, "-o", output)
        return output

    def test_every_config_in_every_form(self):
        sources = sorted(CONFIGS.glob("*.yaml"))
        self.assertTrue(sources)
        for source in sources:
            for form in FORMS:
                with self.subTest(config=source.name, form=form):
                    output = self.convert(source, form)
                    if form == "deepspeed-json":
                        self.check_deepspeed_file(output)
                    else:
                        self.check_accelerate_file(source, output, form)

    def check_accelerate_file(self, source, output, form):
        config = load_config_from_file(str(output))
        self.assertEqual(config.distributed_type, "DEEPSPEED" if form == "deepspeed" else "FSDP")
        self.assertEqual(config.num_processes, yaml.safe_load(source.read_text())["num_processes"])
        args = launch_arguments(output)
        if form == "deepspeed":
            self.check_deepspeed_block(config.deepspeed_config, output)
        else:
            self.check_fsdp_words(args, form)

    def check_deepspeed_block(self, block, output):
        named = block.get("deepspeed_config_file")
        if named is None:
            self.assertIn(block["zero_stage"], range(4))
            return
        os.environ["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(block)
        self.addCleanup(os.environ.pop, "ACCELERATE_CONFIG_DS_FIELDS", None)
        # The path of the JSON file is relative to configs/.
        self.check_deepspeed_file(named if os.path.exists(named) else CONFIGS / named)

    def check_deepspeed_file(self, path):
        plugin = DeepSpeedPlugin(hf_ds_config=str(path))
        self.assertIn(plugin.zero_stage, range(4))

    def check_fsdp_words(self, args, form):
        version = 2 if form == "fsdp2" else 1
        words = {
            "fsdp_version": version,
            "auto_wrap_policy": args.fsdp_auto_wrap_policy,
            "state_dict_type": args.fsdp_state_dict_type,
            "cpu_offload": args.fsdp_offload_params,
        }
        if version == 2:
            self.assertIsInstance(args.fsdp_reshard_after_forward, bool)
            plugin = FullyShardedDataParallelPlugin(reshard_after_forward=args.fsdp_reshard_after_forward, **words)
        else:
            plugin = FullyShardedDataParallelPlugin(
                sharding_strategy=args.fsdp_sharding_strategy, backward_prefetch=args.fsdp_backward_prefetch, **words
            )
        self.assertEqual(plugin.fsdp_version, version)


class ToFsdp2(InFolder):
    def test_values_are_those_of_accelerate(self):
        for name, block in OLD_FILES.items():
            with self.subTest(name):
                config = {**COMMON, "mixed_precision": "no", "fsdp_config": block}
                path, output = self.write("in.yaml", config), self.folder / "out.yaml"
                acclaunch("to-fsdp2", "--config_file", path, "--output_file", output, "--overwrite")
                self.assertEqual(yaml.safe_load(output.read_text()), convert_config_to_fsdp2(config))

    def test_a_file_is_replaced_only_when_that_is_asked_for(self):
        path, output = self.write("in.yaml", {**COMMON, "fsdp_config": EVERY_KEY}), self.folder / "out.yaml"
        before = path.read_text()
        for arguments in [[], ["--output_file", path]]:
            done = subprocess.run([ACCLAUNCH, "to-fsdp2", "--config_file", path, *arguments], capture_output=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(path.read_text(), before)
        acclaunch("to-fsdp2", "--config-file", path, "--output-file", output)
        self.assertEqual(path.read_text(), before)
        acclaunch("to-fsdp2", "--config_file", path, "--overwrite")
        self.assertEqual(path.read_text(), output.read_text())
        self.assertEqual(load_config_from_file(str(path)).fsdp_config["fsdp_version"], 2)


if __name__ == "__main__":
    unittest.main()
