// SPDX-License-Identifier: Apache-2.0
#include "data/order.hpp"

#include "acc/base/error.hpp"
#include "acc/base/hash.hpp"
#include "data/permutation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace acc {

using detail::DataOrderState;

namespace {

// Larger counts could overflow when positions are added.
constexpr std::int64_t kMostSamples = std::int64_t{1} << 60U;

Error wrong(const std::string& what) {
  return {Errc::invalid_argument, "data order: " + what};
}

std::string text_of(const DataPosition& at) {
  return fmt::format("epoch {}, offset {}, token {}", at.epoch, at.offset, at.token);
}

void check_name(const std::string& name) {
  const bool good = std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  if (!good || name.size() > 64) {
    throw wrong(fmt::format("the name '{}' must be up to 64 letters, digits, '_' and '-'", name));
  }
}

void check_options(const DataOptions& options) {
  check_name(options.name);
  if (options.sources.empty()) {
    throw wrong("there is no source");
  }
  for (std::size_t i = 0; i < options.sources.size(); ++i) {
    const std::int64_t samples = options.sources[i].samples;
    if (samples != DataSource::kUnknown && (samples < 1 || samples > kMostSamples)) {
      throw wrong(fmt::format("source {} has {} samples, expected 1 to 2^60, or {} for a stream", i,
                              samples, DataSource::kUnknown));
    }
  }
  const bool has_epochs =
      options.sources.size() == 1 && options.sources[0].samples != DataSource::kUnknown;
  if (!has_epochs && options.last_batch != LastBatch::partial) {
    throw wrong("a stream and a mixture have no last batch: leave last_batch at partial");
  }
}

/// Begin of the keys in a checkpoint.
std::string prefix_of(const DataOptions& options) {
  return options.name.empty() ? "acc.data." : "acc.data." + options.name + ".";
}

/// What tells two orders apart, by key. Integers have the same form in every language.
std::map<std::string, std::int64_t> identity_of(const DataOptions& options) {
  std::string sources;
  std::int64_t samples = 0;
  for (const DataSource& source : options.sources) {
    sources += fmt::format("{} {};", source.samples, source.weight);
    samples = source.samples == DataSource::kUnknown || samples == DataSource::kUnknown
                  ? DataSource::kUnknown
                  : samples + source.samples;
  }
  return {{"seed", static_cast<std::int64_t>(options.seed)},
          {"shuffle", options.shuffle ? 1 : 0},
          {"samples", samples},
          {"sources", static_cast<std::int64_t>(options.sources.size())},
          {"weights", options.sources.size() == 1 ? 0 : static_cast<std::int64_t>(fnv1a(sources))}};
}

/// Draws samples one after the other. Keeps the permutation of the epoch that it is in.
class Drawer {
 public:
  explicit Drawer(const DataOrderState& order) : order_(order) {}

  /// place: a position in a source, counted over all its epochs from `epoch` on.
  DataSample at(data::Place place, std::int64_t epoch) {
    const DataSource& source = order_.options_.sources[static_cast<std::size_t>(place.source)];
    if (source.samples == DataSource::kUnknown) {
      return {place.source, epoch, place.index};
    }
    epoch += place.index / source.samples;
    const std::int64_t index = place.index % source.samples;
    if (!order_.options_.shuffle) {
      return {place.source, epoch, index};
    }
    if (!permutation_ || place.source != source_ || epoch != epoch_) {
      source_ = place.source;
      epoch_ = epoch;
      permutation_.emplace(
          static_cast<std::uint64_t>(source.samples),
          data::random_bits({order_.options_.seed, static_cast<std::uint64_t>(source_),
                             static_cast<std::uint64_t>(epoch_)}));
    }
    return {place.source, epoch,
            static_cast<std::int64_t>((*permutation_)(static_cast<std::uint64_t>(index)))};
  }

 private:
  const DataOrderState& order_;
  std::optional<data::Permutation> permutation_;
  std::int64_t source_ = 0;
  std::int64_t epoch_ = 0;
};

void check_share(std::int64_t size, DataShare share) {
  if (share.first < 0 || share.count < 0 || share.count > size ||
      share.first > size - share.count) {
    throw wrong(fmt::format("samples {} to {} + {} are not in a batch of {}", share.first,
                            share.first, share.count, size));
  }
}

}  // namespace

// --- detail::DataOrderState

detail::DataOrderState::DataOrderState(DataOptions options,
                                       std::shared_ptr<const data::Recording> recording)
    : options_(std::move(options)) {
  check_options(options_);
  if (options_.sources.size() == 1) {
    samples_ = options_.sources[0].samples;
  } else {
    std::vector<double> weights;
    for (const DataSource& source : options_.sources) {
      weights.push_back(source.weight);
    }
    mixture_.emplace(weights);
  }
  if (recording != nullptr && !recording->folder.empty()) {
    std::vector<std::int64_t> per_block;
    for (std::size_t i = 0; mixture_ && i < options_.sources.size(); ++i) {
      per_block.push_back(mixture_->count(i));
    }
    record_.emplace(std::move(recording), options_, std::move(per_block));
  }
}

void detail::DataOrderState::check(const DataPosition& at) const {
  const std::int64_t last = has_epochs() ? samples_ : kMostSamples;
  if (at.epoch < 0 || at.epoch > kMostSamples || at.offset < 0 || at.offset > last ||
      at.token < 0 || at.token > kMostSamples) {
    throw wrong(fmt::format("no position is {}: an epoch has {}", text_of(at),
                            has_epochs() ? fmt::format("{} samples", samples_) : "no end"));
  }
}

void detail::DataOrderState::move(const DataPosition& first, const DataPosition& next) {
  const bool skips_rest = first == DataPosition{position_.epoch + 1, 0, 0};
  if (first != position_ && !skips_rest) {
    throw wrong(fmt::format("a batch at {} cannot follow the position {}", text_of(first),
                            text_of(position_)));
  }
  check(next);
  position_ = next;
}

data::Record* detail::DataOrderState::record() {
  if (!record_) {
    return nullptr;
  }
  if (!has_begun_) {
    record_->begin(origin_);
    has_begun_ = true;  // after a failure it is tried again
  }
  return &*record_;
}

// --- DataOrder

DataOrder::DataOrder(DataOptions options)
    : state_(std::make_unique<DataOrderState>(std::move(options), nullptr)) {}

DataOrder::DataOrder(DataOrder&&) noexcept = default;
DataOrder& DataOrder::operator=(DataOrder&&) noexcept = default;
DataOrder::~DataOrder() = default;

const DataOptions& DataOrder::options() const {
  return state_->options_;
}

std::int64_t DataOrder::samples_per_epoch() const {
  return state_->samples_;
}

DataPosition DataOrder::position() const {
  return state_->position_;
}

DataBatch DataOrder::batch(DataPosition at, std::int64_t size) const {
  state_->check(at);
  if (size < 1 || size > kMostSamples) {
    throw wrong(fmt::format("a batch has {} samples, expected at least 1", size));
  }
  if (!state_->has_epochs()) {
    return {at, size, 0, {at.epoch, at.offset + size, 0}};
  }
  const std::int64_t all = state_->samples_;
  const LastBatch last_batch = state_->options_.last_batch;
  if (last_batch == LastBatch::drop && size > all) {
    throw wrong(
        fmt::format("an epoch of {} samples has no batch of {}, and LastBatch::drop leaves "
                    "out smaller ones",
                    all, size));
  }
  if (at.offset == all || (last_batch == LastBatch::drop && size > all - at.offset)) {
    at = {at.epoch + 1, 0, 0};
  }
  const std::int64_t left = all - at.offset;
  if (last_batch == LastBatch::next_epoch) {
    const std::int64_t end = at.offset + size;
    return {at, size, 0, {at.epoch + end / all, end % all, 0}};
  }
  const DataPosition next_epoch{at.epoch + 1, 0, 0};
  if (size > left) {
    return last_batch == LastBatch::pad ? DataBatch{at, size, size - left, next_epoch}
                                        : DataBatch{at, left, 0, next_epoch};
  }
  const bool ends = size == left || (last_batch == LastBatch::drop && left - size < size);
  return {at, size, 0, ends ? next_epoch : DataPosition{at.epoch, at.offset + size, 0}};
}

std::int64_t DataOrder::batches(DataPosition at, std::int64_t size) const {
  state_->check(at);
  if (!state_->has_epochs()) {
    throw wrong("a stream and a mixture have no number of batches");
  }
  if (size < 1) {
    throw wrong(fmt::format("a batch has {} samples, expected at least 1", size));
  }
  const std::int64_t left = state_->samples_ - at.offset;
  const bool counts_rest = state_->options_.last_batch != LastBatch::drop && left % size != 0;
  return left / size + (counts_rest ? 1 : 0);
}

void DataOrder::samples(const DataBatch& batch, DataShare share, std::span<DataSample> out) const {
  state_->check(batch.first);
  check_share(batch.size, share);
  if (std::ssize(out) != share.count) {
    throw wrong(
        fmt::format("space for {} samples is given for a share of {}", out.size(), share.count));
  }
  Drawer drawer(*state_);
  for (std::int64_t i = 0; i < share.count; ++i) {
    std::int64_t offset = batch.first.offset + share.first + i;
    if (batch.padding > 0) {
      offset %= state_->samples_;
    }
    const data::Place place = state_->mixture_ ? state_->mixture_->at(offset, state_->options_.seed)
                                               : data::Place{0, offset};
    out[static_cast<std::size_t>(i)] = drawer.at(place, batch.first.epoch);
  }
}

std::vector<DataSample> DataOrder::samples(const DataBatch& batch, DataShare share) const {
  check_share(batch.size, share);
  std::vector<DataSample> out(static_cast<std::size_t>(share.count));
  samples(batch, share, out);
  return out;
}

PackedBatch DataOrder::pack(DataPosition at, std::span<const std::int64_t> lengths,
                            std::int64_t tokens, std::int64_t count) const {
  state_->check(at);
  const std::int64_t all = state_->samples_;
  const LastBatch last_batch = state_->options_.last_batch;
  if (!state_->has_epochs() || std::ssize(lengths) != all) {
    throw wrong(
        fmt::format("packing needs one source whose number of documents is known, and as "
                    "many lengths; {} lengths are given for {} documents",
                    lengths.size(), all));
  }
  if (last_batch == LastBatch::pad) {
    throw Error(Errc::not_supported,
                "data order: sequences of packed documents cannot be filled with documents of the "
                "same epoch (LastBatch::pad): take partial, next_epoch or drop");
  }
  if (tokens < 1 || count < 1) {
    throw wrong(
        fmt::format("{} sequences of {} tokens: expected at least 1 of each", count, tokens));
  }
  Drawer drawer(*state_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    PackedBatch packed{.first = at, .next = at};
    DataPosition& next = packed.next;
    std::vector<DataPiece> sequence;
    std::int64_t room = tokens;
    while (std::ssize(packed.sequences) < count) {
      if (next.offset == all) {
        if (last_batch != LastBatch::next_epoch) {
          break;
        }
        next = {next.epoch + 1, 0, 0};
      }
      const std::int64_t document = drawer.at({0, next.offset}, next.epoch).index;
      const std::int64_t length = lengths[static_cast<std::size_t>(document)];
      if (length < 1 || next.token >= length) {
        throw wrong(fmt::format("document {} has {} tokens, expected more than {}", document,
                                length, length < 1 ? 0 : next.token));
      }
      const std::int64_t taken = std::min(room, length - next.token);
      sequence.push_back({next.epoch, document, next.token, taken, length});
      next.token += taken;
      room -= taken;
      if (next.token == length) {
        next = {next.epoch, next.offset + 1, 0};
      }
      if (room == 0) {
        packed.sequences.push_back(std::exchange(sequence, {}));
        room = tokens;
      }
    }
    const bool is_full = std::ssize(packed.sequences) == count;
    if (!sequence.empty() && last_batch == LastBatch::partial) {
      packed.sequences.push_back(std::move(sequence));
    }
    packed.size = std::ssize(packed.sequences);
    if (next.offset == all) {
      next = {next.epoch + 1, 0, 0};
    }
    if (is_full || (last_batch == LastBatch::partial && packed.size > 0)) {
      return packed;
    }
    at = {at.epoch + 1, 0, 0};
  }
  throw wrong(
      fmt::format("an epoch of {} documents has fewer than {} sequences of {} tokens, and "
                  "LastBatch::drop leaves out what does not fill them",
                  all, count, tokens));
}

void DataOrder::advance(const DataBatch& batch, std::span<const DataSample> used,
                        std::span<const std::uint64_t> hashes) {
  if (!hashes.empty() && hashes.size() != used.size()) {
    throw wrong(fmt::format("{} hashes are given for {} samples", hashes.size(), used.size()));
  }
  data::Record* const record = state_->record();  // begins before the position moves
  state_->move(batch.first, batch.next);
  if (record != nullptr) {
    record->add(batch, used, hashes);
  }
}

void DataOrder::advance(const PackedBatch& batch, std::span<const DataPiece> used) {
  data::Record* const record = state_->record();
  state_->move(batch.first, batch.next);
  if (record != nullptr) {
    record->add(batch, used);
  }
}

void DataOrder::end_epoch() {
  if (state_->mixture_) {
    throw wrong("a mixture has no epochs that end");
  }
  seek({state_->position_.epoch + 1, 0, 0});
}

void DataOrder::seek(DataPosition to) {
  state_->check(to);
  state_->position_ = to;
  if (!state_->has_begun_) {
    state_->origin_ = {to, {}};
  }
}

ProgramState DataOrder::state() const {
  const std::string prefix = prefix_of(state_->options_);
  ProgramState values;
  for (const auto& [key, value] : identity_of(state_->options_)) {
    values[prefix + key] = value;
  }
  values[prefix + "epoch"] = state_->position_.epoch;
  values[prefix + "offset"] = state_->position_.offset;
  values[prefix + "token"] = state_->position_.token;
  // Before the first batch of the attempt whose last sample is before this position. Always a
  // value: torch DCP reads those that the state of a new order has.
  values[prefix + "attempt"] =
      state_->has_begun_ ? state_->record_->attempt() : state_->origin_.attempt;
  if (state_->has_begun_) {
    state_->record_->flush();
  }
  return values;
}

bool DataOrder::load(const ProgramState& state) {
  const std::string prefix = prefix_of(state_->options_);
  const auto number = [&](const std::string& key) {
    const auto found = state.find(prefix + key);
    const auto* value = found == state.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
    if (value == nullptr) {
      throw Error(Errc::config,
                  fmt::format("data order: the checkpoint's value '{}{}' {}, expected an integer",
                              prefix, key, found == state.end() ? "is missing" : "is no integer"));
    }
    return *value;
  };
  if (!state.contains(prefix + "epoch")) {
    return false;
  }
  for (const auto& [key, value] : identity_of(state_->options_)) {
    if (const std::int64_t found = number(key); found != value) {
      throw Error(Errc::config,
                  fmt::format("data order: {} is {} in the checkpoint and {} in this program "
                              "('{}{}'): after its position other samples would follow than those "
                              "that are not used yet",
                              key == "weights" ? "the hash of sizes and weights" : key, found,
                              value, prefix, key));
    }
  }
  const DataPosition position{number("epoch"), number("offset"), number("token")};
  try {
    state_->check(position);
  } catch (const Error& error) {
    throw Error(Errc::config, std::string("a checkpoint's position: ") + error.what());
  }
  const auto attempt = state.find(prefix + "attempt");
  const auto* name = attempt == state.end() ? nullptr : std::get_if<std::string>(&attempt->second);
  state_->position_ = position;
  state_->origin_ = {position, name == nullptr ? std::string() : *name};
  state_->has_begun_ = false;
  return true;
}

}  // namespace acc
