// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

/// Initial values of master weights, from initialisers or files. All functions are collective, and
/// set only the part of a flat parameter that this rank owns.
namespace acc::sharding {

/// Returns elements [offset, offset + out.size()) of parameter number `index` of a flat parameter.
using ValueSource =
    std::function<void(std::size_t index, std::int64_t offset, std::span<float> out)>;

/// Sets master weights from `source`. Each rank calls its source for the elements that it owns.
void fill_by_each_rank(const Context& context, FlatParameter& flat, const ValueSource& source);
/// Sets master weights from rank 0's `source`. Rank 0 broadcasts the values 4 MiB at a time and
/// each rank keeps its part. A failure of the source aborts the groups with its reason.
void fill_by_rank_zero(const Context& context, FlatParameter& flat, const ValueSource& source);

/// Sets master weights with the parameters' initialisers. A pure initialiser runs on each rank for
/// the elements that the rank owns; with `zero3_init` false it computes the whole parameter first.
/// An initialiser whose values may differ between ranks runs on rank 0 only if sync_module_states
/// is true, except for ignored parameters.
/// known: false leaves zeros in place of values whose initialisers are called once only, but takes
/// part in their broadcasts.
void initialize(const Context& context, FlatParameter& flat, std::uint64_t seed, bool known = true);

/// Returns the stream of random numbers of the parameter or buffer with that full name.
std::uint64_t stream_of(std::string_view name, std::uint64_t seed) noexcept;

}  // namespace acc::sharding
