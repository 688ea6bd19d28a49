#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# wheel_test.sh WHEEL: installs a wheel into a new virtual environment, and uses only that. Needs
# python3-venv; with a compiler it also builds a program against the wheel.
set -eu
wheel=$(realpath "$1")
source=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheel_test.sh: $*" >&2; exit 1; }
seconds() { date +%s.%N; }
begin=$(seconds)
python3 -m venv "$work/venv"
created=$(seconds)
"$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
bin=$work/venv/bin
installed=$(seconds)
cd "$work"
"$bin/acclaunch" test --cpu --num_processes 2 --use_fsdp >test.log 2>&1 || fail "acclaunch test: $(cat test.log)"
trained=$(seconds)
grep -q "the loss falls" test.log || fail "acclaunch test trained nothing: $(cat test.log)"
echo "$begin $created $installed $trained" | awk '{
  printf "virtual environment %.1f s, pip install %.1f s, acclaunch test (first trained step) %.1f s\n", $2-$1, $3-$2, $4-$3}'

# Workers run the Python of the virtual environment, whatever is first in PATH.
echo 'import os, sys; print("rank", os.environ["RANK"], sys.prefix)' >where.py
expected=$(printf 'rank 0 %s\nrank 1 %s' "$work/venv" "$work/venv")
for start in "$bin/acclaunch" "$bin/python -m acclaunch" "$bin/acclaunch torchrun --standalone --nproc-per-node 2"; do
  case $start in *torchrun*) flags= ;; *) flags="--cpu --num_processes 2" ;; esac
  # shellcheck disable=SC2086
  got=$($start $flags where.py 2>/dev/null | sed 's/^\[[^]]*\]:* *//' | sort)
  [ "$got" = "$expected" ] || fail "$start: workers printed: $got"
done

# The other programs, and the library from Python.
"$bin/acc-rendezvous" --version >/dev/null
"$bin/acclaunch" doctor --cpu >doctor.log 2>&1 || fail "acclaunch doctor: $(cat doctor.log)"
"$bin/python" -c 'from acclaunch._library import library; print(library().path)' >library.log ||
  fail "the package does not find its library"
grep -q "^$work/venv/lib/" library.log || fail "another library than the wheel's: $(cat library.log)"
[ -e "$work/venv/share/man/man1/acclaunch.1" ] || fail "no manual page"

if ! command -v cc >/dev/null; then
  echo "no compiler on this machine: no program was built against the wheel"
  exit 0
fi
export PKG_CONFIG_PATH="$work/venv/lib/pkgconfig"
# shellcheck disable=SC2046
c++ -std=c++20 "$source/test/consumer/odd_net.cpp" $(pkg-config --cflags --libs acc_runtime) -o odd_net
"$bin/acclaunch" --cpu --num_processes 2 --use_fsdp ./odd_net weights
cmake -S "$source/test/consumer" -B build -DCMAKE_PREFIX_PATH="$work/venv" -DCMAKE_BUILD_TYPE=Debug >configure.log
cmake --build build >build.log
./build/odd_net
echo "programs were built with pkg-config and with CMake"
