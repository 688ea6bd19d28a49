// SPDX-License-Identifier: Apache-2.0
#include "sharding/policy.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>

namespace {

using acc::DType;
using acc::settings::Device;
using acc::settings::MixedPrecision;
using acc::sharding::make_policy;
using acc::sharding::PrecisionPolicy;

constexpr DType kF32 = DType::float32;
constexpr DType kBf16 = DType::bfloat16;
constexpr DType kF16 = DType::float16;

struct Row {
  MixedPrecision mixed;
  DType load;
  bool deepspeed;  ///< round_initial_weights
  DType stored, frozen, moments, gathered;
};

// The three modes of docs/sharding.md, "Precision": FSDP low precision, FSDP mixed, DeepSpeed.
constexpr Row kRows[] = {
    {MixedPrecision::no, kF32, false, kF32, kF32, kF32, kF32},
    {MixedPrecision::no, kBf16, false, kBf16, kBf16, kBf16, kBf16},
    {MixedPrecision::no, kF16, false, kF16, kF16, kBf16, kF16},
    {MixedPrecision::bf16, kF32, false, kF32, kF32, kF32, kBf16},
    {MixedPrecision::bf16, kBf16, false, kF32, kBf16, kF32, kBf16},
    {MixedPrecision::bf16, kF16, false, kF32, kF16, kF32, kBf16},
    {MixedPrecision::fp16, kF32, false, kF32, kF32, kF32, kF16},
    {MixedPrecision::fp16, kBf16, false, kF32, kBf16, kF32, kF16},
    {MixedPrecision::fp16, kF16, false, kF32, kF16, kF32, kF16},
    {MixedPrecision::fp8, kF32, false, kF32, kF32, kF32, kBf16},
    {MixedPrecision::fp8, kBf16, false, kF32, kBf16, kF32, kBf16},
    {MixedPrecision::fp8, kF16, false, kF32, kF16, kF32, kBf16},
    {MixedPrecision::no, kF32, true, kF32, kF32, kF32, kF32},
    {MixedPrecision::no, kBf16, true, kBf16, kBf16, kBf16, kBf16},
    {MixedPrecision::no, kF16, true, kF16, kF16, kBf16, kF16},
    {MixedPrecision::bf16, kF32, true, kF32, kBf16, kF32, kBf16},
    {MixedPrecision::bf16, kBf16, true, kF32, kBf16, kF32, kBf16},
    {MixedPrecision::bf16, kF16, true, kF32, kBf16, kF32, kBf16},
    {MixedPrecision::fp16, kF32, true, kF32, kF16, kF32, kF16},
    {MixedPrecision::fp16, kBf16, true, kF32, kF16, kF32, kF16},
    {MixedPrecision::fp16, kF16, true, kF32, kF16, kF32, kF16},
    {MixedPrecision::fp8, kF32, true, kF32, kBf16, kF32, kBf16},
    {MixedPrecision::fp8, kBf16, true, kF32, kBf16, kF32, kBf16},
    {MixedPrecision::fp8, kF16, true, kF32, kBf16, kF32, kBf16},
};

struct Reduce {
  std::optional<MixedPrecision> asked;
  std::optional<DType> reduced;  ///< absent: the dtype of gathered weights
};

constexpr Reduce kReduces[] = {{std::nullopt, std::nullopt},
                               {MixedPrecision::no, kF32},
                               {MixedPrecision::bf16, kBf16},
                               {MixedPrecision::fp16, kF16}};

}  // namespace

TEST_CASE("the three modes of precision, in every combination") {
  for (const Row& row : kRows) {
    for (const Reduce& reduce : kReduces) {
      for (const bool chance : {false, true}) {
        for (const Device device : {Device::cpu, Device::cuda}) {
          acc::settings::ShardingSettings settings;
          settings.mixed_precision = row.mixed;
          settings.reduce_precision = reduce.asked;
          settings.round_initial_weights = row.deepspeed;
          settings.stochastic_rounding = chance;
          const PrecisionPolicy expected{
              .loaded = row.load,
              .stored = row.stored,
              .frozen = row.frozen,
              .moments = row.moments,
              .gathered = row.gathered,
              .viewed = device == Device::cpu ? kF32 : row.gathered,
              .reduced = reduce.reduced.value_or(row.gathered),
              .reduced_whole = reduce.reduced.value_or(kF32),
              .buffers = row.gathered,
              .rounds_initial = row.deepspeed && row.mixed != MixedPrecision::no,
              .stochastic = chance && row.stored != kF32};
          CAPTURE(std::string(to_string(row.mixed)));
          CAPTURE(std::string(to_string(row.load)));
          CAPTURE(row.deepspeed);
          CHECK((make_policy(settings, row.load, device) == expected));
          CHECK(expected.stored_of(true) == row.stored);
          CHECK(expected.stored_of(false) == row.frozen);
        }
      }
    }
  }
}

TEST_CASE("weights of a dtype that is not a float, and gradients reduced in fp8, are refused") {
  acc::settings::ShardingSettings settings;
  CHECK_THROWS_AS(make_policy(settings, DType::float64, Device::cpu), acc::Error);
  CHECK_THROWS_AS(make_policy(settings, DType::byte, Device::cpu), acc::Error);
  settings.reduce_precision = MixedPrecision::fp8;
  CHECK_THROWS_AS(make_policy(settings, kF32, Device::cpu), acc::Error);
}
