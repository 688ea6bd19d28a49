# SPDX-License-Identifier: Apache-2.0
"""The plan of a checkpoint of Llama 2 70B, compared with torch's DCP planner, which plans for all ranks on one.

    python bench/checkpoint_plan.py [--bin build/release/bin/checkpoint_plan] [--python PYTHON]

Measures acclaunch's plan for 10,000 ranks, as FULL_SHARD and as HYBRID_SHARD in groups of 8, and reading
it: all of .metadata, or with the manifest's plan the pieces that rank 123 of 512 loads. Then measures both
programs for 64 ranks and 8 layers, a size that torch can handle. For torch this is only the coordinator's
time to remove duplicates, to make the global plan and to pickle .metadata, without communication. Results
are per chunk, because torch shards rows and acclaunch shards flat parameters. Times are CPU seconds.
"""
import argparse
import json
import pickle
import time

from launchers import json_lines
from names import PYTHON, Options


def torch_planner(ranks, layers):
    import torch
    from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
    from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

    hidden, keys, feed, words = 8192, 1024, 28672, 32000
    shapes = {"embed": (words, hidden), "norm": (hidden,), "head": (words, hidden)}
    for layer in range(layers):
        for name, shape in {"q": (hidden, hidden), "k": (keys, hidden), "v": (keys, hidden),
                            "o": (hidden, hidden), "gate": (feed, hidden), "up": (feed, hidden),
                            "down": (hidden, feed), "in": (hidden,), "post": (hidden,)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    properties = TensorProperties(dtype=torch.float32)

    def item(name, shape, rank):
        share = -(-shape[0] // ranks)
        begin = min(shape[0], rank * share)
        offsets = torch.Size((begin, *(0 for _ in shape[1:])))
        sizes = torch.Size((min(share, shape[0] - begin), *shape[1:]))
        data = TensorWriteData(ChunkStorageMetadata(offsets, sizes), properties, torch.Size(shape))
        return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)

    plans = [SavePlan([item(name, shape, rank) for name, shape in shapes.items()]) for rank in range(ranks)]
    start = time.process_time()
    plans, metadata = create_default_global_save_plan(dedup_save_plans(plans))
    planned = time.process_time()
    metadata.storage_data = {
        item.index: _StorageInfo(f"__{rank}_0.distcp", number * 4096, 4096)
        for rank, plan in enumerate(plans) for number, item in enumerate(plan.items)}  # fmt: skip
    content = pickle.dumps(metadata)
    end = time.process_time()
    chunks = len(metadata.storage_data)
    return {"chunks": chunks, "plan_s": planned - start, "pickle_s": end - planned,
            "ns_a_chunk": (end - start) * 1e9 / chunks, "bytes_a_chunk": len(content) / chunks}


def main():
    parser = Options(__doc__, bin="build/release/bin/checkpoint_plan", python=PYTHON)
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        print(json.dumps(torch_planner(64, 8)))
        return
    print(f"{'ranks':>6} {'shards':>6} {'folder':>9} {'chunks':>8} {'file plan ms':>12} {'.metadata s':>11} "
          f"{'MB':>7} {'B/chunk':>7} {'RSS MiB':>7} {'read s':>6} {'RSS MiB':>7} "
          f"{'by plan ms':>10} {'RSS MiB':>7} {'plan KB':>7}")
    for shards in (10_000, 8):
        for row in json_lines([args.bin, 10_000, shards]):
            print(f"{row['ranks']:6} {row['shards']:6} {row['folder']:>9} {row['chunks']:8} "
                  f"{row['plan_of_a_file_ms']:12.3f} {row['metadata_s']:11.3f} {row['metadata_mb']:7.1f} "
                  f"{row['bytes_a_chunk']:7.1f} {row['peak_rss_mib']:7.1f} {row['parse_s']:6.2f} "
                  f"{row['parse_peak_rss_mib']:7.0f} {row['by_plan_open_ms'] + row['by_plan_find_ms']:10.1f} "
                  f"{row['by_plan_mib']:7.1f} {row['plan_kb']:7.0f}", flush=True)
    mine = json_lines([args.bin, 64, 64, 8])[0]
    peer = json_lines([args.python, __file__, "--torch"])[-1]
    print(f"64 ranks, 8 layers: ours {mine['ns_a_chunk']:.0f} ns and {mine['bytes_a_chunk']:.0f} bytes per chunk, "
          f"torch {peer['ns_a_chunk']:.0f} ns and {peer['bytes_a_chunk']:.0f}: "
          f"{peer['ns_a_chunk'] / mine['ns_a_chunk']:.0f} times the time, "
          f"{peer['bytes_a_chunk'] / mine['bytes_a_chunk']:.1f} times the bytes")


main()
