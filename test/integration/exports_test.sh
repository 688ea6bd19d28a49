#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# exports_test.sh LIBRARY HEADER...: checks that the library exports each function of the C headers,
# and otherwise only symbols of the namespace acc.
set -eu
library=$1
shift
exported=$(nm -DC --defined-only "$library" | cut -d' ' -f3-)
foreign=$(printf '%s\n' "$exported" | grep -vE '^(acc_|acc::|(typeinfo|typeinfo name|vtable) for acc::)' || true)
if [ -n "$foreign" ]; then
  printf '%s exports what is not ours:\n%s\n' "$library" "$foreign"
  exit 1
fi
functions=$(grep -ohE '\bacc_[a-z0-9_]+\(' "$@" | tr -d '(' | sort -u)
for function in $functions; do
  if ! printf '%s\n' "$exported" | grep -qx "$function"; then
    printf '%s does not export %s\n' "$library" "$function"
    exit 1
  fi
done
[ "$(printf '%s\n' "$functions" | wc -l)" -gt 40 ]
