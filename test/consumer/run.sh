#!/bin/sh
# run.sh BUILD_DIR SOURCE_DIR: installs the build into a fresh prefix, builds test/consumer against
# that prefix alone, and trains under every strategy; all must give NO_SHARD's weights.
set -eu
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
cmake -S "$source/test/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_BUILD_TYPE=Release >"$work/configure.log"
cmake --build "$work/build" >"$work/build.log"
net=$work/build/odd_net
launch=$work/prefix/bin/acclaunch
"$net"

# The pkg-config file names the same prefix.
flags=$(PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name acc_runtime.pc)") \
  pkg-config --cflags --libs acc_runtime)
# shellcheck disable=SC2086
c++ "$source/test/consumer/odd_net.cpp" $flags -o "$work/odd_net_pc"

accumulate="--gradient_accumulation_steps 2"
for processes in 2 4; do
  run() { "$launch" --cpu --num_processes $processes $accumulate "$@"; }
  run --use_fsdp --fsdp_sharding_strategy NO_SHARD "$net" "$work/reference"
  for strategy in SHARD_GRAD_OP FULL_SHARD HYBRID_SHARD HYBRID_SHARD_ZERO2; do
    run --use_fsdp --fsdp_sharding_strategy $strategy --parallelism_config_dp_shard_size 2 \
      "$net" "$work/out"
    "$net" "$work/reference" "$work/out" 1e-4
  done
  for stage in 0 1 2 3; do
    run --use_deepspeed --zero_stage $stage "$net" "$work/out"
    "$net" "$work/reference" "$work/out" 1e-4
  done
done
