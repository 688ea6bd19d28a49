# SPDX-License-Identifier: Apache-2.0
"""Imports DeepSpeed's Muon without torch.compile. Each process whose engine asks whether its optimizer is Muon imports
it, and its decorators import torch._inductor, which takes two seconds of CPU time."""
from unittest import mock

from deepspeed.runtime import compiler

with mock.patch.object(compiler, "compile", lambda **_: lambda function: function):
    import deepspeed.runtime.zero.muon.original_muon  # noqa: F401
