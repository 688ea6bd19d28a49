#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# unit_file_test.sh SYSTEMD_ANALYZE PROGRAM UNIT: checks that systemd accepts the unit file.
set -eu
analyze=$1 program=$2 unit=$3
if [ ! -x "$analyze" ]; then
  echo "skipped: systemd-analyze is not installed"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
# The program does not have to be installed for this check.
sed "s|^ExecStart=.*|ExecStart=$program|; s|@[A-Z_]*@|/usr/share|" "$unit" >"$folder/acc-rendezvous.service"
output=$("$analyze" verify --man=no "$folder/acc-rendezvous.service" 2>&1) || { echo "$output"; exit 1; }
# systemd-analyze succeeds with a warning for unknown settings.
if [ -n "$output" ]; then
  echo "$output"
  exit 1
fi
