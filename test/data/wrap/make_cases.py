"""Writes cases.json: module trees, and which modules torch's auto-wrap policies wrap.

Run with any Python that has torch:  python3 make_cases.py > cases.json
A module: {"name", "class", "declared", "parameters": [[name, numel, identity]], "children": [...]};
parameters with one identity are one tied parameter. Modules that are not declared have no class of
interest: a program of ours tells of them by dotted parameter names only.
"""

import functools
import json
import random

import torch
from torch import nn
from torch.distributed.fsdp.wrap import (
    _recursive_wrap,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


class Wrapper(nn.Module):
    order = []

    def __init__(self, module):
        super().__init__()
        self.module = module
        Wrapper.order.append(module.full_name)


def bare(self):
    nn.Module.__init__(self)


CLASSES = {
    name: type(name, bases, {"__init__": bare})
    for name, bases in {
        "Net": (nn.Module,),
        "Block": (nn.Module,),
        "Mlp": (nn.Module,),
        "Plain": (nn.Module,),
        "MultiheadAttention": (nn.MultiheadAttention,),
        "ModuleList": (nn.ModuleList,),
        "ModuleDict": (nn.ModuleDict,),
    }.items()
}


def random_module(rng, name, depth, pool):
    kind = rng.choice(["Block", "Block", "Mlp", "MultiheadAttention", "ModuleList", "ModuleDict"])
    module = {"name": name, "class": kind, "declared": True, "parameters": [], "children": []}
    if depth == 0 or rng.random() < 0.2:
        module.update({"class": "Plain", "declared": False})
    for i in range(rng.randint(0 if module["declared"] else 1, 2)):
        if pool and rng.random() < 0.1:
            identity, numel = rng.choice(pool)
        else:
            identity, numel = len(pool), rng.choice([1, 5, 20, 60, 100, 150])
            pool.append((identity, numel))
        module["parameters"].append([f"p{i}", numel, identity])
    if module["declared"]:
        module["children"] = [
            random_module(rng, f"m{i}", depth - 1, pool) for i in range(rng.randint(0, 3))
        ]
    return module


def build(tree, path, tensors):
    module = CLASSES[tree["class"]]()
    module.full_name = path
    for name, numel, identity in tree["parameters"]:
        if identity not in tensors:
            tensors[identity] = nn.Parameter(torch.zeros(numel))
        module.register_parameter(name, tensors[identity])
    for child in tree["children"]:
        module.add_module(
            child["name"], build(child, f"{path}.{child['name']}" if path else child["name"], tensors)
        )
    return module


def wrapped(tree, policy, ignored):
    root = build(tree, "", {})
    left_alone = set()
    for name, module in root.named_modules():
        if any(name == each or name.startswith(each + ".") for each in ignored):
            left_alone.add(module)
    parameters = {p for module in left_alone for p in module.parameters()}
    Wrapper.order = []
    _recursive_wrap(root, policy, Wrapper, left_alone, parameters, only_wrap_children=True)
    return Wrapper.order


def names_of(tree, path=""):
    for child in tree["children"]:
        name = f"{path}.{child['name']}" if path else child["name"]
        yield name, child
        yield from names_of(child, name)


def main():
    rng = random.Random(9)
    cases = []
    while len(cases) < 80:
        tree = {"name": "", "class": "Net", "declared": True, "parameters": [["top", 30, -1]]}
        pool = []
        tree["children"] = [random_module(rng, f"m{i}", 3, pool) for i in range(rng.randint(1, 4))]
        names = [name for name, module in names_of(tree) if module["declared"]]
        ignored = [rng.choice(names)] if names and rng.random() < 0.25 else []
        case = {"tree": tree, "ignored": ignored}
        if len(cases) % 4 == 3:
            present = {m["class"] for _, m in names_of(tree) if m["declared"]}
            classes = sorted(c for c in present if rng.random() < 0.5)
            if not classes:
                continue
            case["classes"] = classes
            policy = functools.partial(
                transformer_auto_wrap_policy,
                transformer_layer_cls={CLASSES[each] for each in classes},
            )
        else:
            case["min_num_params"] = rng.choice([1, 20, 60, 100, 200, 400])
            policy = functools.partial(
                size_based_auto_wrap_policy, min_num_params=case["min_num_params"]
            )
        case["wrapped"] = wrapped(tree, policy, ignored)
        cases.append(case)
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in cases)
    print(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}')


main()
