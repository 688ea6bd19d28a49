#pragma once

#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

/// How the elements that a rank keeps get their values, from initialisers or files. All functions
/// are collective.
namespace acc::sharding {

/// Gives elements [offset, offset + out.size()) of parameter number `index` of a flat parameter.
using ValueSource =
    std::function<void(std::size_t index, std::int64_t offset, std::span<float> out)>;

/// Sets master weights from `source`: each rank asks its own for just what it keeps.
void fill_by_each_rank(Engine& engine, FlatParameter& flat, const ValueSource& source);
/// Only rank 0 asks its `source`; the others receive what it gives, a few megabytes at a time, and
/// keep their part. A failure of rank 0's source ends the groups with its reason.
void fill_by_rank_zero(Engine& engine, FlatParameter& flat, const ValueSource& source);

/// Sets master weights by the initialisers of the parameters. Each rank makes its own part, with
/// `zero3_init` off by making the whole parameter first; initialisers whose values may differ
/// between ranks run on rank 0 alone where sync_module_states holds, but for ignored parameters.
void initialize(Engine& engine, FlatParameter& flat, std::uint64_t seed);

/// Which random numbers are those of the parameter or buffer of that full name.
std::uint64_t stream_of(std::string_view name, std::uint64_t seed) noexcept;

}  // namespace acc::sharding
