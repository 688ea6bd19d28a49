# SPDX-License-Identifier: Apache-2.0
"""Formulas for work, memory and peak speed, with which measurements are compared."""
import re

# Peak of dense bf16 matrix products with fp32 sums in TFLOP/s, from NVIDIA's data sheets. The first
# pattern that the device's name contains applies.
PEAKS = [(r"\bGB200\b", 2500.0), (r"\bB200\b", 2250.0), (r"\bH200\b", 989.4),
         (r"\bH100 NVL\b", 835.0), (r"\bH100 PCIe\b", 756.0), (r"\bH100\b", 989.4),
         (r"\bH800\b", 989.4), (r"\bA100\b", 312.0), (r"\bA800\b", 312.0), (r"\bL40S\b", 362.0),
         (r"\bL4\b", 121.0), (r"\bA10\b", 125.0)]
HOPPER = (9, 0)


def peak_tflops(device_name):
    """Peak bf16 rate of a GPU by its name in TFLOP/s; None if it is not in the table."""
    for pattern, tflops in PEAKS:
        if re.search(pattern, device_name):
            return tflops
    return None


def block_parameters(dim):
    """Parameters of a pre-LN block: 4 matrices with biases (12 d^2 + 9 d), 2 layer norms (4 d)."""
    return 12 * dim * dim + 13 * dim


def gpt_parameters(model):
    """Number of parameters of train_gpt's model; the head shares the token embedding."""
    dim = model["dim"]
    embeddings = (model["vocab"] + model["seq_len"]) * dim
    return model["layers"] * block_parameters(dim) + embeddings + 2 * dim


def flops_per_token(model):
    """FLOP per token of forward and backward: 6 per matrix weight, 12 L s d for full attention."""
    dim, layers = model["dim"], model["layers"]
    weights = layers * 12 * dim * dim + model["vocab"] * dim
    return 6.0 * weights + 12.0 * layers * model["seq_len"] * dim


def mfu(model, tokens_per_s, tflops):
    """Model FLOP utilization (MFU): the model's FLOP per second over the GPU's peak."""
    return flops_per_token(model) * tokens_per_s / (tflops * 1e12)


def state_bytes(strategy, parameters, ranks, unit=0, alive=0, gradients=0):
    """Bytes of device memory per rank in mixed precision with Adam, without activations.

    strategy: full_shard, or one_rank. One rank shares nothing: it has weights in bf16 and fp32,
    gradients and moments in fp32, and nothing to gather.
    unit: parameters of the largest unit; alive: units gathered at the same time; gradients:
    elements of gradients that are not reduced yet.
    """
    p, n = parameters, ranks
    return {"full_shard": 16 * p / n + 2 * unit * (alive + 1),
            "one_rank": 16 * p + 2 * p + 2 * gradients}[strategy]


def micro_batch(memory_gib, model):
    """Sequences per rank and step, the same for us and PyTorch: the largest power of two that fits.

    The program that needs most memory decides. States take 16 bytes per parameter. PyTorch without
    compilation keeps about 60 bytes per token, layer and channel (layer norms in fp32 under
    autocast), and 14 bytes per logit: bf16, fp32, and their gradients.
    """
    states = 16 * gpt_parameters(model)
    sequence = model["seq_len"] * (60 * model["dim"] * model["layers"] + 14 * model["vocab"])
    room = 0.75 * memory_gib * 2**30 - states
    size = 64
    while size > 1 and size * sequence > room:
        size //= 2
    return size
