"""Single files of DeepSpeed and transformers, without what they would import: sources unpacked from

    pip download deepspeed==0.19.8 --no-deps --no-binary :all:
    pip download transformers==5.23.0 --no-deps
"""
import ast
import logging
import math
import pathlib
import sys
import types


def _stub(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def _stub_deepspeed():
    quiet = logging.getLogger("deepspeed")
    quiet.setLevel(logging.CRITICAL)
    comm = types.SimpleNamespace(get_rank=lambda: 0)
    _stub("deepspeed", comm=comm)
    _stub("deepspeed.utils", logger=quiet, log_dist=lambda *_, **__: None)
    _stub("deepspeed.runtime")
    _stub("deepspeed.runtime.config_utils", DeepSpeedConfigObject=object)
    _stub("deepspeed.runtime.utils", has_inf_or_nan=None)


def deepspeed_file(root, path):
    """The namespace of one file of the unpacked DeepSpeed."""
    _stub_deepspeed()
    source = pathlib.Path(root, "deepspeed", path)
    module = types.ModuleType(source.stem)
    sys.modules[source.stem] = module
    exec(compile(source.read_text(), str(source), "exec"), vars(module))
    return module


def transformers_lambdas(root):
    """The pure functions behind transformers' get_..._schedule."""
    source = pathlib.Path(root, "transformers", "optimization.py")
    namespace = {"math": math}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.FunctionDef) and "_lambda" in node.name:
            exec(compile(ast.Module([node], []), str(source), "exec"), namespace)
    return namespace
