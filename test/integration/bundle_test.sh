#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bundle_test.sh BUILD_TREE SOURCE: packs the tree, moves the bundle to another folder, and uses it
# with an empty environment.
set -euo pipefail
tree=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The limits are for a bundle with plain BLAS from an older distribution; this tree may contain oneDNN.
"$source/scripts/gpu_bundle" --build "$tree" --out "$work/packed" --limit 120 \
  --glibc "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)"
mkdir "$work/elsewhere"
tar -C "$work/elsewhere" -xzf "$work/packed.tar.gz"
rm -rf "$work/packed"
bundle=$work/elsewhere/packed
python3 "$source/test/packaging/search_paths_test.py" "$bundle"

run() { env -i PATH=/usr/bin:/bin HOME="$work" "$@"; }
run "$bundle/bin/acclaunch" --cpu --num_processes 2 --main_process_port 0 \
  --config_file "$bundle/configs/fsdp_full_shard.yaml" "$bundle/bin/train_gpt" \
  --batches "$bundle/test/data/parity_gpt/tokens.npy" --layers 2 --heads 4 --dim 32 --seq_len 64 \
  --vocab 256 --micro_batch 4 --steps 2 --metrics "$work/metrics.jsonl"
[ "$(wc -l <"$work/metrics.jsonl")" = 2 ]

run "$bundle/bin/acclaunch" test --cpu --num_processes 2 --use_fsdp | grep -q 'everything works'

run "$bundle/scripts/gpu_check" --list | grep -q strategies_staged
if ! run "$bundle/bin/acclaunch" explain --num_processes 1 /bin/true | grep -q '^gpus '; then
  status=0
  run "$bundle/scripts/gpu_check" --set correctness --out "$work/figures" 2>"$work/errors" || status=$?
  [ "$status" = 2 ] && grep -q 'driver' "$work/errors"
fi
