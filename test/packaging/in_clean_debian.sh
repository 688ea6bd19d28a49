#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# in_clean_debian.sh wheel|deb: tests the packages in dist/ on a minimal Debian without a compiler, as
# root; scripts/try_debian starts it. It installs packages: do not run it anywhere else.
set -eu
cd "$(dirname "$0")/../.."
export DEBIAN_FRONTEND=noninteractive
! command -v cc >/dev/null || { echo "in_clean_debian.sh: there is a compiler here" >&2; exit 2; }
begin=$(date +%s)
since() { echo "$(($(date +%s) - begin)) s"; }
apt-get -qq update
apt() { apt-get -qq -y --no-install-recommends "$@" >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }; }
if [ "$1" = wheel ]; then
  apt install python3-venv
  echo "python3-venv installed after $(since)"
  test/packaging/wheel_test.sh dist/acclaunch-*.whl
else
  test/packaging/deb_test.sh dist
fi
echo "done after $(since)"
