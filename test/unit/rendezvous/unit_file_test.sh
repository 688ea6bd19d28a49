#!/bin/sh
# unit_file_test.sh SYSTEMD_ANALYZE PROGRAM UNIT: whether systemd takes the unit as it is.
set -eu
analyze=$1 program=$2 unit=$3
if [ ! -x "$analyze" ]; then
  echo "skipped: systemd-analyze is not installed"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
# The program need not be installed for that.
sed "s|^ExecStart=.*|ExecStart=$program|; s|@[A-Z_]*@|/usr/share|" "$unit" >"$folder/acc-rendezvous.service"
output=$("$analyze" verify --man=no "$folder/acc-rendezvous.service" 2>&1) || { echo "$output"; exit 1; }
# What it does not know it only mentions.
if [ -n "$output" ]; then
  echo "$output"
  exit 1
fi
