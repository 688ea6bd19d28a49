#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains on several machines of a Flux cluster, with one worker on each of their GPUs.
#
#   flux batch scripts/flux/several_nodes.flux
#   PROGRAM=train.py flux batch scripts/flux/several_nodes.flux # your program, in C++ or Python
#
# This script runs in an instance of Flux of its own. `flux run` starts acclaunch on each machine; Flux gives it the
# rank of its machine, and this script the name of the first one.
#
#flux: --job-name=train
#flux: --nodes=2
#flux: --exclusive
#flux: --time-limit=4h
#flux: --output=train-{{id}}.out
set -euo pipefail

# Site-specific settings. Override them in the environment: WORKERS=8 flux batch ...
: "${BIN:=$(dirname "$(command -v acclaunch || echo build/release/bin/acclaunch)")}"  # acclaunch and train_gpt, on all machines
: "${PROGRAM:=$BIN/train_gpt}"                     # yours: ./train_bin, or train.py for Python
: "${CONFIG:=configs/fsdp_hybrid_shard.yaml}"     # shards within a machine, replicas across machines
: "${WORKERS:=4}"                                 # per machine: one per GPU
[ $# -gt 0 ] || [ "$PROGRAM" != "$BIN/train_gpt" ] || set -- --data "$HOME/book.txt" --layers 12 --dim 768 --steps 10000

mapfile -t machines < <("$BIN/acclaunch" expand-hosts "$(flux getattr hostlist)")
flux run --nodes="${#machines[@]}" --ntasks="${#machines[@]}" --exclusive \
  "$BIN/acclaunch" --main_process_ip "${machines[0]}" --config_file "$CONFIG" \
  --num_processes "$((WORKERS * ${#machines[@]}))" "$PROGRAM" "$@"
