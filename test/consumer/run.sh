#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD_DIR SOURCE_DIR: tests an installation. Installs the build into a new prefix, moves the
# prefix, and uses only that: builds test/consumer and examples/ against it in each documented way, and
# trains with every strategy and every file of configs/. All must give the weights of NO_SHARD.
set -eu
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "run.sh: $*" >&2; exit 1; }
cmake --install "$build" --prefix "$work/first" >"$work/install.log"
grep -q "^ExecStart=$work/first/bin/acc-rendezvous$" "$work/first/lib/systemd/system/acc-rendezvous.service" ||
  fail "the unit does not start the daemon of its prefix"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
python3 "$source/test/packaging/search_paths_test.py" "$prefix"
share=$prefix/share/acclaunch
launch=$prefix/bin/acclaunch
cmake -S "$source/test/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" \
  >"$work/configure.log"
cmake --build "$work/build" >"$work/build.log"
net=$work/build/odd_net
"$net"

# LibTorch, if acc::torch was built.
if [ -x "$work/build/torch_net" ]; then
  "$launch" --cpu --num_processes 2 --use_fsdp "$work/build/torch_net" >"$work/torch_net.log" 2>&1 ||
    fail "torch_net: $(cat "$work/torch_net.log")"
elif [ -e "$prefix/include/acc/torch.hpp" ]; then
  fail "find_package(acc COMPONENTS torch) did not find the component: $(cat "$work/configure.log")"
fi

# A component that is missing is an error with the reason, or a line with it if the component is optional.
mkdir "$work/component"
cat >"$work/component/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(component LANGUAGES NONE)
find_package(acc REQUIRED ${KIND} ${NAME})
END
expect_reason() { # TEXT NAME OPTION...
  text=$1 name=$2
  shift 2
  for kind in COMPONENTS OPTIONAL_COMPONENTS; do
    rm -rf "$work/component/build"
    found=0
    cmake -S "$work/component" -B "$work/component/build" -DCMAKE_PREFIX_PATH="$prefix" -DKIND=$kind -DNAME="$name" "$@" \
      >"$work/component.log" 2>&1 || found=1
    [ $found = $([ $kind = COMPONENTS ] && echo 1 || echo 0) ] && tr -s '\n ' '  ' <"$work/component.log" | grep -q "$text" ||
      fail "find_package(acc REQUIRED $kind $name) ended with $found, not with '$text': $(cat "$work/component.log")"
  done
}
expect_reason "there is no component 'cuda', only torch" cuda
if [ -e "$prefix/include/acc/torch.hpp" ]; then
  expect_reason "$work/none has no LibTorch" torch -DTorch_DIR="$work/none/share/cmake/Torch"
fi
mkdir "$work/torch_files"
find "$prefix/lib/cmake/acc" -name 'accTorch*' -exec mv {} "$work/torch_files" \;
expect_reason "built without LibTorch, like every wheel. Build and install acclaunch from a clone" torch
find "$work/torch_files" -name 'accTorch*' -exec mv {} "$prefix/lib/cmake/acc" \;

# The commands of README.md and examples/c_api/README.md must give no warning, and the program must
# find the library.
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
c++ -std=c++20 -Werror "$source/test/consumer/odd_net.cpp" $(pkg-config --cflags --libs acc_runtime) -o "$work/odd_net"
# shellcheck disable=SC2046
cc -Wall -Wextra -Werror "$share/examples/c_api/mlp.c" $(pkg-config --cflags --libs acc_runtime) -lm -o "$work/mlp"
"$launch" --cpu --num_processes 2 --use_fsdp "$work/mlp" >"$work/mlp.log" || fail "mlp: $(cat "$work/mlp.log")"

# The examples as a separate project, without train_gpt, which takes a minute to compile.
cmake -S "$share/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$prefix" >"$work/examples.log"
cmake --build "$work/examples" --target mlp >>"$work/examples.log"
"$prefix/bin/train_gpt" --help >/dev/null

# Every relative link in the installed documentation must have a target.
(cd "$share" && find . -name '*.md' | while read -r file; do
  grep -o ']([^)#:]*[^):]*)' "$file" | sed 's/^](//; s/[#)].*//' | grep -v '^$' | while read -r link; do
    [ -e "$(dirname "$file")/$link" ] || echo "$file: $link"
  done
done) >"$work/dead_links"
[ ! -s "$work/dead_links" ] || fail "dead links: $(cat "$work/dead_links")"

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

# Files of configs/ work with any model (the reference has four processes). An error about a wrong class
# must name its line.
for config in "$share"/configs/*.yaml; do
  "$launch" --config_file "$config" --cpu --num_processes 4 $accumulate "$net" "$work/out"
  "$net" "$work/reference" "$work/out" 1e-4
done
sed 's/# *\(fsdp_transformer_layer_cls_to_wrap\)/\1/' "$share/configs/fsdp_full_shard.yaml" >"$work/named.yaml"
line=$(grep -n fsdp_transformer_layer_cls_to_wrap "$work/named.yaml" | cut -d: -f1)
if "$launch" --config_file "$work/named.yaml" --cpu --num_processes 2 "$net" "$work/out" 2>"$work/refused"; then
  fail "a class that the model lacks was accepted"
fi
grep -q "named.yaml:$line: fsdp_transformer_layer_cls_to_wrap names Block, .* the model has Mix, OddNet" \
  "$work/refused" || fail "the message lacks the line or the classes: $(cat "$work/refused")"
