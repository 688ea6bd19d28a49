#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deb_test.sh DIR: installs the packages in DIR, uses them, upgrades, removes and purges them. Run by
# in_clean_debian.sh.
set -eu
dir=$(realpath "$1")
fail() { echo "deb_test.sh: $*" >&2; exit 1; }
apt() { apt-get -qq -y --no-install-recommends "$@" >/tmp/apt.log 2>&1 || fail "apt-get $*: $(cat /tmp/apt.log)"; }
ours="acclaunch acclaunch-examples libacc-runtime0 libacc-runtime-dev acc-rendezvous"
state() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null || echo none; }

begin=$(date +%s)
apt install "$dir"/*.deb
echo "installed after $(($(date +%s) - begin)) s"
cd /tmp
acclaunch test --cpu --num_processes 2 --use_fsdp >test.log 2>&1 || fail "acclaunch test: $(cat test.log)"
echo "first trained step after $(($(date +%s) - begin)) s"
acclaunch --config_file /usr/share/acclaunch/configs/zero2.yaml --cpu --num_processes 2 train_gpt \
  --data /usr/share/acclaunch/README.md --steps 3 --layers 1 --dim 32 --seq_len 32 >train.log 2>&1 ||
  fail "train_gpt: $(cat train.log)"
acc-rendezvous --port 0 --port_file port >daemon.log 2>&1 &
daemon=$!
until [ -s port ]; do kill -0 $daemon || fail "acc-rendezvous: $(cat daemon.log)"; done
kill $daemon
wait $daemon || fail "acc-rendezvous ended with $?: $(cat daemon.log)"
getent passwd acc-rendezvous >/dev/null || fail "no user acc-rendezvous"
[ -e /etc/systemd/system/multi-user.target.wants/acc-rendezvous.service ] || fail "the service is not enabled"
for file in /usr/share/bash-completion/completions/acclaunch /usr/share/zsh/vendor-completions/_acclaunch \
    /usr/share/fish/vendor_completions.d/acc-rendezvous.fish /usr/include/acc/runtime.hpp /etc/default/acc-rendezvous; do
  [ -e "$file" ] || fail "missing: $file"
done
# Minimal systems do not unpack manual pages.
dpkg -L acclaunch | grep -q /usr/share/man/man1/acclaunch.1.gz || fail "no manual page"

# Upgrade: the same files as a later version. A changed configuration file is kept.
echo 'ACC_RENDEZVOUS_PORT=29501' >>/etc/default/acc-rendezvous
mkdir -p later
for package in "$dir"/*.deb; do
  dpkg-deb -R "$package" tree
  sed -i 's/^Version: .*/&+later/; s/\(= [0-9.]*\))/\1+later)/' tree/DEBIAN/control
  dpkg-deb --root-owner-group -b tree "later/$(basename "$package")" >/dev/null
  rm -r tree
done
apt -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install ./later/*.deb
dpkg-query -W -f='${Version}\n' acclaunch | grep -q later || fail "not upgraded"
grep -q 29501 /etc/default/acc-rendezvous || fail "the upgrade replaced a changed configuration file"
acclaunch --version >/dev/null

# shellcheck disable=SC2086
apt remove $ours
[ ! -e /usr/bin/acclaunch ] || fail "acclaunch is still there"
[ "$(state acc-rendezvous)" = config-files ] || fail "remove: acc-rendezvous is $(state acc-rendezvous)"
[ -e /etc/default/acc-rendezvous ] || fail "remove deleted a configuration file"
# shellcheck disable=SC2086
dpkg --purge $ours >/tmp/purge.log 2>&1 || fail "purge: $(cat /tmp/purge.log)"
for package in $ours; do
  case $(state "$package") in none | not-installed) ;; *) fail "purge: $package is $(state "$package")" ;; esac
done
left=$(find / -xdev \( -path /proc -o -path /acclaunch -o -path /tmp -o -path /var/log \) -prune -o \
  \( -name '*acclaunch*' -o -name '*acc-rendezvous*' -o -name 'libacc_*' \) -print)
[ -z "$left" ] || fail "left after purge: $left"
echo "installed, used, upgraded, removed and purged"
