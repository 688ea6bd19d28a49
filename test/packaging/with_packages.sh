#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# with_packages.sh FOLDER "PACKAGE..." COMMAND...: runs Python with these packages of PyPI, which it installs into a
# virtual environment in FOLDER the first time.
set -eu
folder=$1 packages=$2
shift 2
if [ ! -e "$folder/complete" ]; then
  python3 -m venv "$folder"
  # shellcheck disable=SC2086
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check $packages || exit 77  # PyPI is not reachable
  touch "$folder/complete"
fi
exec "$folder/bin/python" "$@"
