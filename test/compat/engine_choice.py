# SPDX-License-Identifier: Apache-2.0
"""engine_choice.py ACCLAUNCH: which programs have the engine of the package acclaunch after `import torch`. No program
of --engine acc goes on with torch's engine."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import types

DEADLINE = 900  # seconds; far more than a busy machine needs


def work(how):
    """Imports torch as a program does, and says whether the engine is there."""
    if how == "fails":
        def install():
            raise RuntimeError("of the test")
        sys.modules["acclaunch._engine"] = types.SimpleNamespace(install=install)
    if how == "within" and importlib.util.find_spec("deepspeed") is not None:
        import deepspeed  # which imports torch
        assert deepspeed.DeepSpeedEngine.__module__ == "acclaunch._deepspeed", deepspeed.DeepSpeedEngine
    import torch  # noqa: F401

    print(f"ENGINE {'acclaunch._engine' in sys.modules} {os.environ.get('ACC_ENGINE')}")


def main():
    if importlib.util.find_spec("torch") is None:
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "acc.yaml").write_text("distributed_type: 'NO'\nuse_cpu: true\nengine: acc\n")
        (folder / "breaks.py").write_text("import sys\nsys.modules['acclaunch._engine'] = None\nimport torch\n")
        accelerate, torchrun, deepspeed = ["--cpu"], ["torchrun", "--standalone"], ["deepspeed", "--num_gpus=1"]
        chosen = ["--engine", "acc"]
        cannot = "the engine acc cannot be used in this process, which therefore ends: "
        for flags, variable, how, status, words in (
                (accelerate, None, "works", 0, "ENGINE False None"),
                (torchrun + ["--engine", "torch"], "acc", "works", 0, "ENGINE False None"),
                (accelerate + chosen, None, "works", 0, "ENGINE True acc"),
                (torchrun + chosen, None, "works", 0, "ENGINE True acc"),
                (deepspeed + chosen, None, "within", 0, "ENGINE True acc"),
                (["--config_file", "acc.yaml"], None, "works", 0, "ENGINE True acc"),
                (torchrun + chosen + ["--preload", "torch"], None, "works", 0, "ENGINE True acc"),
                (torchrun + chosen, None, "fails", 1, cannot + "RuntimeError: of the test"),
                (torchrun + chosen + ["--preload", "breaks"], None, "works", 2, cannot + "ModuleNotFoundError: "),
                (torchrun + ["--engine", "jax"], None, "works", 2, "--engine must be torch or acc, got \"jax\"")):
            environment = {**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": name}
            environment.pop("ACC_ENGINE", None)
            if variable is not None:
                environment["ACC_ENGINE"] = variable
            ended = subprocess.run([sys.argv[1], *flags, __file__, "work", how], env=environment, cwd=folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE)
            assert ended.returncode == status and words in ended.stdout, \
                f"{flags} {variable} {how}: {ended.returncode}\n{ended.stdout}"
            assert status == 0 or "ENGINE" not in ended.stdout, ended.stdout
    # Without a launcher.
    package = pathlib.Path(sys.argv[1]).resolve().parent.parent / "python"
    ended = subprocess.run([sys.executable, "-c", "import torch; print('went on')"], text=True, timeout=DEADLINE,
                           env={**os.environ, "ACC_ENGINE": "jax", "PYTHONPATH": str(package)},
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert ended.returncode == 1 and ended.stdout.endswith("ACC_ENGINE is 'jax', expected torch or acc\n"), ended.stdout


if __name__ == "__main__":
    if "work" in sys.argv:
        work(sys.argv[-1])
    else:
        main()
