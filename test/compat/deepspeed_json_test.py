# SPDX-License-Identifier: Apache-2.0
"""acclaunch interprets DeepSpeed JSON files in the same way as Accelerate's own plugin.

deepspeed_json_test.py ACCLAUNCH. Exits with 77 if accelerate is not installed.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

try:
    import yaml
    from accelerate.utils import DeepSpeedPlugin
except ImportError as missing:
    print(missing)
    sys.exit(77)

ACCLAUNCH = os.path.abspath(sys.argv.pop(1))
# Setting: its path in the JSON file, and the plugin's field with the same meaning.
PATHS = {
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
# A value for each setting that may appear in the YAML file.
VALUES = {
    "zero_stage": 2,
    "gradient_accumulation_steps": 3,
    "gradient_clipping": 0.5,
    "offload_optimizer_device": "cpu",
    "offload_param_device": "none",
    "offload_optimizer_nvme_path": "/nvme",
    "offload_param_nvme_path": "/nvme",
    "zero3_save_16bit_model": False,
    "zero3_init_flag": True,
    "deepspeed_moe_layer_cls_names": "Moe",
    "mixed_precision": "bf16",
}
MICRO = {"train_micro_batch_size_per_gpu": "auto"}
EVERY_AUTO = {
    **MICRO,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {
        "stage": "auto",
        "offload_optimizer": {"device": "auto"},
        "offload_param": {"device": "auto"},
        "stage3_gather_16bit_weights_on_model_save": "auto",
    },
}
EVERY_VALUE = {
    **MICRO,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 2.0,
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
FLAGS = {
    "zero_stage": "1",
    "gradient_accumulation_steps": "3",
    "gradient_clipping": "0.5",
    "offload_optimizer_device": "cpu",
    "offload_param_device": "cpu",
    "zero3_save_16bit_model": "true",
}


def precision(**blocks):
    return {**MICRO, "zero_optimization": {"stage": 1}, **{k: {"enabled": v} for k, v in blocks.items()}}


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ACC")}

    def write(self, name, content):
        path = self.folder / name
        path.write_text(json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content))
        return str(path)

    def explain(self, *arguments):
        command = [ACCLAUNCH, "explain", "--json", *arguments, "/bin/true"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        settings = {}
        if done.returncode == 0:
            settings = {one["name"]: one["value"] for one in json.loads(done.stdout)["settings"]}
        else:
            self.assertEqual(done.returncode, 2, done.stderr)
        return settings, done.stderr + done.stdout

    def plugin(self, path, variables):
        with unittest.mock.patch.dict(os.environ, {**self.environment, **variables}, clear=True):
            return DeepSpeedPlugin(hf_ds_config=path)


class Values(Files):
    def check(self, config, flags):
        path = self.write("d.json", config)
        arguments = [word for key, value in flags.items() for word in (f"--{key}", value)]
        ours, output = self.explain("--use_deepspeed", "--num_processes", "4", "--deepspeed_config_file", path, *arguments)
        self.assertTrue(ours, output)
        prefix = {key: "ACCELERATE_" + ("" if key.startswith("grad") else "DEEPSPEED_") + key.upper() for key in flags}
        real = self.plugin(path, {prefix[key]: value for key, value in flags.items()})
        # prepare() fills in values that the plugin leaves open.
        filled = {"gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
        for key in PATHS:
            with self.subTest(key):
                value = getattr(real, key)
                value = filled[key] if value == "auto" else value
                self.assertEqual(yaml.safe_load(ours[key]), value)

    def test_auto(self):
        self.check(EVERY_AUTO, {})

    def test_auto_with_flags(self):
        self.check(EVERY_AUTO, FLAGS)

    def test_values(self):
        self.check(EVERY_VALUE, {})


class Refusals(Files):
    def test_keys_together_with_a_file(self):
        path = self.write("d.json", {**MICRO, "zero_optimization": {"stage": 2}})
        for key, value in VALUES.items():
            with self.subTest(key):
                config = {"distributed_type": "DEEPSPEED", "num_processes": 4}
                block = {"deepspeed_config_file": path}
                (config if key == "mixed_precision" else block)[key] = value
                fields = [*block] + ([key] if key not in block else [])
                try:
                    self.plugin(path, {"ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields)})
                    refused = False
                except ValueError:
                    refused = True
                ours, output = self.explain("--config_file", self.write("c.yaml", {**config, "deepspeed_config": block}))
                self.assertEqual(not ours, refused, output)
                self.assertEqual(
                    refused, "must not be given together with deepspeed_config_file" in output)

    def test_precisions(self):
        files = [
            precision(),
            precision(bf16=True),
            precision(fp16=True),
            precision(bf16="auto", fp16="auto"),
            precision(bf16=True, fp16=False),
            precision(bf16=False),
        ]
        for config in files:
            for flag in ["fp16", "bf16"]:
                with self.subTest(config=config, flag=flag):
                    path = self.write("d.json", config)
                    plugin = self.plugin(path, {})
                    try:
                        plugin.set_mixed_precision(flag)
                        # If the file disables it, the real plugin continues without it.
                        refused = not plugin.deepspeed_config[flag]["enabled"]
                    except ValueError:
                        refused = True
                    ours, output = self.explain(
                        "--use_deepspeed", "--num_processes", "4", "--deepspeed_config_file", path, "--mixed_precision", flag
                    )
                    self.assertEqual(not ours, refused, output)
                    if ours:
                        self.assertEqual(ours["mixed_precision"], flag)


if __name__ == "__main__":
    unittest.main()
