#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains on several machines of a Flux cluster, with one worker on each of their GPUs.
#
#   flux batch several_nodes.flux --use_fsdp train.py --epochs 3
#
# The arguments are those of acclaunch: its flags, your program, and the program's arguments. This script runs in an
# instance of Flux of its own. `flux run` starts acclaunch on each machine; Flux gives it the rank of its machine, and
# this script the name of the first one.
#
#flux: --job-name=train
#flux: --nodes=2
#flux: --exclusive
#flux: --time-limit=4h
#flux: --output=train-{{id}}.out
set -euo pipefail

# Site-specific settings. Override them in the environment: WORKERS=8 flux batch ...
: "${ACCLAUNCH:=acclaunch}"    # its path on all machines, if it is not in PATH
: "${WORKERS:=4}"              # per machine: one per GPU

mapfile -t machines < <("$ACCLAUNCH" expand-hosts "$(flux getattr hostlist)")
flux run --nodes="${#machines[@]}" --ntasks="${#machines[@]}" --exclusive \
  "$ACCLAUNCH" --main_process_ip "${machines[0]}" --num_processes "$((WORKERS * ${#machines[@]}))" "$@"
