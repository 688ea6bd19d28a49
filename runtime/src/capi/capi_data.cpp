// SPDX-License-Identifier: Apache-2.0
// The order of samples in C.
#include "capi/capi.hpp"

#include <memory>
#include <vector>

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;

// The C structs have the fields of the C++ ones in the same order: bit_cast converts them.
static_assert(sizeof(acc_data_position) == sizeof(acc::DataPosition));
static_assert(sizeof(acc_data_batch) == sizeof(acc::DataBatch));
static_assert(sizeof(acc_data_sample) == sizeof(acc::DataSample));
static_assert(static_cast<int>(acc::LastBatch::next_epoch) == ACC_LAST_BATCH_NEXT_EPOCH);
static_assert(static_cast<int>(acc::LastBatch::drop) == ACC_LAST_BATCH_DROP);
static_assert(static_cast<int>(acc::LastBatch::pad) == ACC_LAST_BATCH_PAD);
static_assert(acc::DataSource::kUnknown == ACC_DATA_UNKNOWN);

acc::DataPosition position_of(const acc_data_position* position) {
  return std::bit_cast<acc::DataPosition>(required(position, "position"));
}

acc::DataBatch batch_of(const acc_data_batch* batch) {
  return std::bit_cast<acc::DataBatch>(required(batch, "batch"));
}

/// Checks an array of the caller, which may be NULL if it is empty.
template <typename T>
std::span<T> elements_of(T* first, std::size_t count, const char* name) {
  return count == 0 ? std::span<T>() : std::span<T>(&required(first, name), count);
}

acc::DataOptions options_of(const acc_data_config& config) {
  acc::DataOptions options;
  for (std::size_t i = 0; i < config.num_sources; ++i) {
    const double weight = config.weights == nullptr ? 1.0 : config.weights[i];
    options.sources.push_back(
        {.samples = (&required(config.samples, "config.samples"))[i], .weight = weight});
  }
  options.seed = config.seed;
  options.shuffle = config.shuffle != 0;
  if (config.last_batch < ACC_LAST_BATCH_PARTIAL || config.last_batch > ACC_LAST_BATCH_PAD) {
    throw Error(Errc::invalid_argument,
                "config.last_batch: unknown kind " + std::to_string(config.last_batch));
  }
  options.last_batch = static_cast<acc::LastBatch>(config.last_batch);
  options.name = config.name == nullptr ? "" : config.name;
  return options;
}

}  // namespace

acc_status acc_data_order_create(const acc_data_config* config, acc_data_order** order) noexcept {
  return create(order, "order", [&] {
    const auto c = config_of<acc_data_config>(config, ACC_DATA_CONFIG_INITIALIZER, "config");
    return acc::DataOrder::from_environment(options_of(c));
  });
}

void acc_data_order_free(acc_data_order* order) noexcept {
  delete order;
}

acc_status acc_data_order_position(const acc_data_order* order,
                                   acc_data_position* position) noexcept {
  return guarded([&] {
    required(position, "position") =
        std::bit_cast<acc_data_position>(required(order, "order").value.position());
  });
}

acc_status acc_data_order_seek(acc_data_order* order, const acc_data_position* position) noexcept {
  return guarded([&] { required(order, "order").value.seek(position_of(position)); });
}

acc_status acc_data_order_batch(const acc_data_order* order, const acc_data_position* position,
                                int64_t size, acc_data_batch* batch) noexcept {
  return guarded([&] {
    required(batch, "batch") = std::bit_cast<acc_data_batch>(
        required(order, "order").value.batch(position_of(position), size));
  });
}

acc_status acc_data_order_batches(const acc_data_order* order, const acc_data_position* position,
                                  int64_t size, int64_t* count) noexcept {
  return guarded([&] {
    required(count, "count") = required(order, "order").value.batches(position_of(position), size);
  });
}

acc_status acc_data_order_samples(const acc_data_order* order, const acc_data_batch* batch,
                                  int64_t first, int64_t count, acc_data_sample* samples) noexcept {
  return guarded([&] {
    const auto drawn = required(order, "order").value.samples(batch_of(batch), {first, count});
    const auto out = elements_of(samples, drawn.size(), "samples");
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = std::bit_cast<acc_data_sample>(drawn[i]);
    }
  });
}

acc_status acc_data_share(int64_t size, int64_t part, int64_t parts, int64_t* first,
                          int64_t* count) noexcept {
  return guarded([&] {
    if (size < 0 || parts < 1 || part < 0 || part >= parts) {
      throw Error(Errc::invalid_argument, "no part " + std::to_string(part) + " of " +
                                              std::to_string(parts) + " of " +
                                              std::to_string(size) + " samples");
    }
    int64_t& to = required(first, "first");
    required(count, "count") = acc::share_of(size, part, parts).count;
    to = acc::share_of(size, part, parts).first;
  });
}

acc_status acc_data_order_pack(const acc_data_order* order, const acc_data_position* position,
                               const int64_t* lengths, size_t num_lengths, int64_t tokens,
                               int64_t count, acc_data_batch* batch, acc_data_piece* pieces,
                               size_t capacity, size_t* num_pieces) noexcept {
  return guarded([&] {
    acc_data_batch& to = required(batch, "batch");
    std::size_t& found = required(num_pieces, "num_pieces");
    const acc::PackedBatch packed =
        required(order, "order")
            .value.pack(position_of(position), elements_of(lengths, num_lengths, "lengths"), tokens,
                        count);
    std::vector<acc_data_piece> all;
    for (std::size_t i = 0; i < packed.sequences.size(); ++i) {
      for (const acc::DataPiece& each : packed.sequences[i]) {
        all.push_back({static_cast<int64_t>(i), each.epoch, each.document, each.offset, each.length,
                       each.total});
      }
    }
    if (all.size() <= capacity) {
      std::copy(all.begin(), all.end(), elements_of(pieces, all.size(), "pieces").begin());
    }
    found = all.size();
    to = {std::bit_cast<acc_data_position>(packed.first), std::ssize(packed.sequences), 0,
          std::bit_cast<acc_data_position>(packed.next)};
  });
}

acc_status acc_data_order_advance(acc_data_order* order, const acc_data_batch* batch,
                                  const acc_data_sample* samples, size_t count,
                                  const uint64_t* hashes) noexcept {
  return guarded([&] {
    std::vector<acc::DataSample> used;
    for (const acc_data_sample& each : elements_of(samples, count, "samples")) {
      used.push_back(std::bit_cast<acc::DataSample>(each));
    }
    required(order, "order")
        .value.advance(batch_of(batch), used,
                       std::span<const uint64_t>(hashes, hashes == nullptr ? 0 : count));
  });
}

acc_status acc_data_order_advance_packed(acc_data_order* order, const acc_data_batch* batch,
                                         const acc_data_piece* pieces, size_t count) noexcept {
  return guarded([&] {
    const acc::DataBatch moved = batch_of(batch);
    if (moved.size < 0) {
      throw Error(Errc::invalid_argument,
                  "batch.count is " + std::to_string(moved.size) + ", expected at least 0");
    }
    std::vector<acc::DataPiece> used;
    for (const acc_data_piece& each : elements_of(pieces, count, "pieces")) {
      used.push_back({each.epoch, each.document, each.offset, each.length, each.total});
    }
    required(order, "order")
        .value.advance(
            acc::PackedBatch{.first = moved.first, .size = moved.size, .next = moved.next}, used);
  });
}

acc_status acc_data_order_end_epoch(acc_data_order* order) noexcept {
  return guarded([&] { required(order, "order").value.end_epoch(); });
}

acc_status acc_data_order_state(acc_data_order* order, acc_program_value* values, size_t capacity,
                                size_t* count) noexcept {
  return guarded([&] {
    acc_data_order& of = required(order, "order");
    std::size_t& number = required(count, "count");
    if (capacity < ACC_DATA_ORDER_VALUES) {
      throw Error(Errc::invalid_argument, "capacity is " + std::to_string(capacity) +
                                              ", expected at least " +
                                              std::to_string(ACC_DATA_ORDER_VALUES));
    }
    of.state = of.value.state();
    const std::size_t stride = required(values, "values").size;
    check_struct_size(stride, sizeof(acc_program_value), "values");
    auto* to = reinterpret_cast<std::byte*>(values);
    for (const auto& [name, value] : of.state) {
      acc_program_value converted = value_to_c(name, value, false);
      converted.size = stride;
      std::memcpy(to, &converted, stride);
      to += stride;
    }
    number = of.state.size();
  });
}

acc_status acc_data_order_load(acc_data_order* order, const acc_program_state* state) noexcept {
  return guarded([&] {
    if (!required(order, "order").value.load(required(state, "state").value.program)) {
      throw Error(Errc::not_found, "the checkpoint has no position of this data order");
    }
  });
}

acc_status acc_data_order_load_values(acc_data_order* order, const acc_program_value* values,
                                      size_t count) noexcept {
  return guarded([&] {
    if (!required(order, "order").value.load(state_of(values, count).program)) {
      throw Error(Errc::not_found, "the values have no position of this data order");
    }
  });
}
