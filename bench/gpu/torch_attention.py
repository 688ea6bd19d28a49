# SPDX-License-Identifier: Apache-2.0
"""Compares train_gpt's causal attention in bf16 with PyTorch's, forward and backward.

    python torch_attention.py --shape BATCH,TIME,HEADS,CHANNELS --program kernel_bench
                              [--ours kernels,cudnn] [--device cuda|cpu] [--repetitions N]

Prints one JSON object for each implementation: train_gpt's kernels and its cuDNN (acc kernels, acc
cudnn), and PyTorch's back ends flash, cudnn and efficient, or math on a CPU. *_error: ||result -
expected|| / ||expected||, of the output and of the gradients of q, k and v together, where the
expected values are those of PyTorch's definition in fp32. *_s: median seconds of a call on a GPU.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from names import some_of  # noqa: E402

OURS = ("kernels", "cudnn")
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def parts(qkv):
    """q, k and v (B, H, T, D) of a (B, T, 3, H, D) tensor, as views."""
    return qkv.permute(2, 0, 3, 1, 4)


def attend(qkv, d_out, backend):
    """(output (B, T, H, D), gradient of qkv)"""
    qkv = qkv.detach().requires_grad_()
    with sdpa_kernel([BACKENDS[backend]]):
        out = F.scaled_dot_product_attention(*parts(qkv), is_causal=True).transpose(1, 2)
        out.backward(d_out)
    return out.detach(), qkv.grad


def expected_of(qkv, d_out):
    """The definition in fp32, one sequence at a time, because it stores all weights."""
    rows = [attend(qkv[i:i + 1].float(), d_out[i:i + 1].float(), "math")
            for i in range(qkv.shape[0])]
    return [torch.cat(tensors) for tensors in zip(*rows)]


def error(result, expected):
    value = float((result.float() - expected).norm() / expected.norm())
    return value if value == value and value != float("inf") else None


def seconds(function, repetitions):
    """Median time of a call on the GPU, after three calls of warm-up."""
    times = []
    for call in range(-3, repetitions):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        if call >= 0:
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def times_of(qkv, d_out, backend, repetitions):
    q, k, v = (part.detach().requires_grad_() for part in parts(qkv))
    d_out = d_out.transpose(1, 2)
    with sdpa_kernel([BACKENDS[backend]]):
        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = forward()

        def backward():
            torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)
        return {"forward_s": seconds(forward, repetitions),
                "backward_s": seconds(backward, repetitions)}


def report(impl, result, expected, times):
    print(json.dumps({"impl": impl, "out_error": error(result[0], expected[0]),
                      "grad_error": error(result[1], expected[1]), **times}), flush=True)


def write(path, tensor):
    path.write_bytes(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def read(path, like):
    flat = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.bfloat16)
    return flat.view(like.shape).to(like.device)


def run_ours(program, choice, qkv, d_out, repetitions):
    """((output, gradient), times) of train_gpt. choice: cudnn or kernels. Raises RuntimeError if
    the program fails or used the other one."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write(folder / "qkv.bin", qkv)
        write(folder / "d_out.bin", d_out)
        batch, time, _, heads, channels = qkv.shape
        ran = subprocess.run([program, "attention", *map(str, (batch, time, heads, channels)),
                              folder, str(repetitions)], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "TRAIN_GPT_ATTENTION": choice}, check=False)
        if ran.returncode != 0:
            raise RuntimeError(f"{program} ended with status {ran.returncode}")
        times = json.loads(ran.stdout.splitlines()[-1])
        if times.pop("by") != choice:
            raise RuntimeError("train_gpt did not use it")
        return (read(folder / "out.bin", d_out), read(folder / "dqkv.bin", qkv)), times


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True,
                        type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--program", required=True)
    parser.add_argument("--ours", default=list(OURS), type=lambda text: some_of(OURS)(text) if text else [])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repetitions", type=int, default=20)
    args = parser.parse_args()
    batch, time, heads, channels = args.shape
    torch.manual_seed(1)
    qkv = torch.randn(batch, time, 3, heads, channels).to(args.device, torch.bfloat16)
    d_out = torch.randn(batch, time, heads, channels).to(args.device, torch.bfloat16)
    expected = expected_of(qkv, d_out)
    for choice in args.ours:
        try:
            repetitions = args.repetitions if choice == "cudnn" else min(3, args.repetitions)
            ours, times = run_ours(args.program, choice, qkv, d_out, repetitions)
            report("acc " + choice, ours, expected, times)
        except RuntimeError as reason:
            print(f"acc {choice}: {reason}", file=sys.stderr, flush=True)
    cuda = args.device == "cuda"
    for backend in ("flash", "cudnn", "efficient") if cuda else ("math",):
        try:
            times = times_of(qkv, d_out, backend, args.repetitions) if cuda else {}
            report(backend, attend(qkv, d_out, backend), expected, times)
        except RuntimeError as reason:
            print(f"{backend}: {reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
