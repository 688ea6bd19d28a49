"""Writes the files beside it: python make.py (Python 3.11, torch 2.13, numpy 2)."""
import collections
import pathlib
import pickle
import random

import numpy
import torch

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
HERE = pathlib.Path(__file__).parent

shared = [1, 2]
value = {
    "integers": [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, -(2**40), 2**62,
                 2**63 - 1, -(2**63)],
    "others": (True, False, None, 1.5, -1e300, "", "é\n漢😀\\u0041'", b"\x00\xff'"),
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "sets": [{7}, frozenset([8])],
    "ordered": collections.OrderedDict(x=1, y=[]),
    "path": pathlib.PurePosixPath("a/b"),
    "shared": [shared, shared],
    "long": list(range(2500)),
    "nested": {"a": {"b": {"c": [{}]}}},
}
for protocol in range(6):
    with open(HERE / f"protocol{protocol}.pkl", "wb") as file:
        pickle.dump(value, file, protocol)

base = torch.arange(24.0).reshape(4, 6)
torch.save({"matrix": base, "rows": base[1:3], "brain": torch.ones(3).bfloat16(),
            "small": torch.ones(2).to(torch.float8_e4m3fn), "turned": base.t(),
            "parameter": torch.nn.Parameter(torch.tensor(2.5))}, HERE / "tensors.pt")
# As Accelerate's random_states_0.pkl.
torch.save({"step": 3, "random_state": random.getstate(),
            "numpy_random_seed": numpy.random.get_state(),
            "torch_manual_seed": torch.get_rng_state()}, HERE / "random_states.pkl")
