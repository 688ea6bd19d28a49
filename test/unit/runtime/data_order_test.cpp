// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/data_order.hpp"

#include "acc/base/error.hpp"
#include "data/mixture.hpp"
#include "data/permutation.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

// The order of a training's samples, and simulated trainings that are killed and resized.
namespace {

using acc::DataBatch;
using acc::DataOptions;
using acc::DataOrder;
using acc::DataPiece;
using acc::DataPosition;
using acc::DataSample;
using acc::DataShare;
using acc::DataSource;
using acc::LastBatch;
using acc::share_of;
using acc::data::Mixture;
using acc::data::Permutation;

constexpr std::int64_t kUnknown = DataSource::kUnknown;

DataOptions of(std::int64_t samples, LastBatch last_batch = LastBatch::partial,
               std::uint64_t seed = 7) {
  return {.sources = {{.samples = samples}}, .seed = seed, .last_batch = last_batch};
}

std::vector<std::int64_t> permuted(std::uint64_t size, std::uint64_t key) {
  const Permutation permutation(size, key);
  std::vector<std::int64_t> all;
  for (std::uint64_t i = 0; i < size; ++i) {
    all.push_back(static_cast<std::int64_t>(permutation(i)));
  }
  return all;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<std::int64_t> upto(std::int64_t size) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Numbers of the samples of a batch, of all ranks together.
std::vector<std::int64_t> indices(const DataOrder& order, const DataBatch& batch,
                                  std::int64_t ranks = 1) {
  std::vector<std::int64_t> all;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (const DataSample& sample : order.samples(batch, share_of(batch.size, rank, ranks))) {
      all.push_back(sample.index);
    }
  }
  return all;
}

std::string words(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) {
    text += (text.empty() ? "" : " ") + std::to_string(value);
  }
  return text;
}

/// Chi-square statistic of counts that should be equal, per degree of freedom: near 1 if they are
/// random.
double chi_square(const std::vector<std::int64_t>& counts) {
  const double mean = static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0LL)) /
                      static_cast<double>(counts.size());
  double sum = 0.0;
  for (const std::int64_t count : counts) {
    sum += (static_cast<double>(count) - mean) * (static_cast<double>(count) - mean) / mean;
  }
  return sum / static_cast<double>(counts.size() - 1);
}

}  // namespace

TEST_CASE("data order: a permutation has every number once, of any size") {
  for (std::uint64_t size = 1; size <= 1100; ++size) {
    REQUIRE(sorted(permuted(size, size * 31)) == upto(static_cast<std::int64_t>(size)));
  }
  for (const std::uint64_t size : {65535U, 65536U, 65537U, 99991U, 1000000U}) {
    REQUIRE(sorted(permuted(size, 5)) == upto(static_cast<std::int64_t>(size)));
  }
}

TEST_CASE("data order: a permutation of a large set has no two equal numbers, all in range") {
  for (const std::uint64_t size : {std::uint64_t{10'000'000'019U}, std::uint64_t{1} << 60U}) {
    const Permutation permutation(size, 3);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      const std::uint64_t value = permutation(i);
      REQUIRE(value < size);
      REQUIRE(seen.insert(value).second);
    }
  }
}

TEST_CASE("data order: permutations are random in the place of each sample, and from key to key") {
  for (const std::uint64_t size : {2U, 3U, 5U, 8U, 10U, 64U, 100U}) {
    CAPTURE(size);
    constexpr std::uint64_t kKeys = 20'000;
    std::vector<std::int64_t> first(size), last(size), distance(size);
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      const Permutation permutation(size, key);
      ++first[permutation(0)];
      ++last[permutation(size - 1)];
      ++distance[(permutation(1) + size - permutation(0)) % size];
    }
    CHECK(chi_square(first) < 5.0);  // beyond any accident, for one degree of freedom or for 99
    CHECK(chi_square(last) < 5.0);
    if (size > 2) {
      CHECK(distance[0] == 0);
      distance.erase(distance.begin());
      CHECK(chi_square(distance) < 5.0);
    }
  }
  std::map<std::vector<std::int64_t>, std::int64_t> orders;
  for (std::uint64_t key = 0; key < 24'000; ++key) {
    ++orders[permuted(4, key)];
  }
  std::vector<std::int64_t> counts;
  for (const auto& [order, count] : orders) {
    counts.push_back(count);
  }
  CHECK(counts.size() == 24);
  CHECK(chi_square(counts) < 5.0);
}

TEST_CASE("data order: neighbours in the order are far apart in the set") {
  constexpr std::int64_t kSize = 100'000;
  const auto order = permuted(kSize, 11);
  double correlation = 0.0;
  const double mean = (kSize - 1) / 2.0;
  for (std::size_t i = 1; i < order.size(); ++i) {
    correlation +=
        (static_cast<double>(order[i]) - mean) * (static_cast<double>(order[i - 1]) - mean);
  }
  correlation /= mean * mean / 3.0 * kSize;
  CHECK(std::abs(correlation) < 0.02);  // 6 standard deviations
}

TEST_CASE("data order: the numbers are those of all versions") {
  // A training that is resumed by a newer version must go on in the same order.
  const DataOrder order(of(1000));
  const auto first = indices(order, order.batch({}, 6));
  const auto later = indices(order, order.batch({3, 500, 0}, 6));
  CHECK(words(first) == "966 924 62 951 564 581");
  CHECK(words(later) == "62 369 871 759 234 842");
  const DataOrder mixture(
      DataOptions{.sources = {{100, 0.5}, {10, 0.3}, {kUnknown, 0.2}}, .seed = 1});
  std::vector<std::int64_t> mixed;
  for (const DataSample& each : mixture.samples(mixture.batch({}, 4), {0, 4})) {
    mixed.insert(mixed.end(), {each.source, each.epoch, each.index});
  }
  CHECK(words(mixed) == "2 0 0 0 0 24 1 0 8 2 0 1");
}

TEST_CASE("data order: shares of a batch follow each other and differ by at most one sample") {
  for (std::int64_t size = 0; size < 40; ++size) {
    for (std::int64_t parts = 1; parts < 12; ++parts) {
      std::int64_t at = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        const DataShare share = share_of(size, part, parts);
        REQUIRE(share.first == at);
        REQUIRE((share.count == size / parts || share.count == size / parts + 1));
        at += share.count;
      }
      REQUIRE(at == size);
    }
  }
}

TEST_CASE("data order: the last batch of an epoch") {
  struct Case {
    LastBatch last_batch;
    DataPosition at;
    std::int64_t size;
    DataBatch expected;
  };
  using enum LastBatch;
  const std::vector<Case> cases = {
      {partial, {0, 0}, 4, {{0, 0}, 4, 0, {0, 4}}},
      {partial, {0, 8}, 4, {{0, 8}, 2, 0, {1, 0}}},
      {partial, {0, 6}, 4, {{0, 6}, 4, 0, {1, 0}}},
      {partial, {2, 10}, 4, {{3, 0}, 4, 0, {3, 4}}},
      {partial, {0, 0}, 40, {{0, 0}, 10, 0, {1, 0}}},
      {next_epoch, {0, 8}, 4, {{0, 8}, 4, 0, {1, 2}}},
      {next_epoch, {0, 8}, 24, {{0, 8}, 24, 0, {3, 2}}},
      {next_epoch, {0, 6}, 4, {{0, 6}, 4, 0, {1, 0}}},
      {drop, {0, 4}, 4, {{0, 4}, 4, 0, {1, 0}}},
      {drop, {0, 0}, 4, {{0, 0}, 4, 0, {0, 4}}},
      {drop, {0, 8}, 4, {{1, 0}, 4, 0, {1, 4}}},
      {drop, {0, 8}, 2, {{0, 8}, 2, 0, {1, 0}}},
      {pad, {0, 8}, 4, {{0, 8}, 4, 2, {1, 0}}},
      {pad, {0, 0}, 25, {{0, 0}, 25, 15, {1, 0}}},
      {pad, {0, 6}, 4, {{0, 6}, 4, 0, {1, 0}}},
  };
  for (const Case& each : cases) {
    const DataOrder order(of(10, each.last_batch));
    const DataBatch found = order.batch(each.at, each.size);
    CAPTURE(&each - cases.data());
    CHECK(found.first == each.expected.first);
    CHECK(found.size == each.expected.size);
    CHECK(found.padding == each.expected.padding);
    CHECK(found.next == each.expected.next);
  }
  const DataOrder padded(of(10, pad));
  const auto all = indices(padded, padded.batch({}, 25));
  const auto epoch = indices(padded, padded.batch({}, 10));
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i] == epoch[i % 10]);
  }
  const DataOrder endless(of(10, next_epoch));
  const auto three = endless.samples(endless.batch({0, 5}, 20), {0, 20});
  CHECK(three.front().epoch == 0);
  CHECK(three[5].epoch == 1);
  CHECK(three.back().epoch == 2);
}

TEST_CASE("data order: the number of batches is that of a loop") {
  for (const LastBatch last_batch :
       {LastBatch::partial, LastBatch::drop, LastBatch::pad, LastBatch::next_epoch}) {
    for (std::int64_t size = 1; size <= 17; ++size) {
      DataOrder order(of(17, last_batch));
      order.seek({1, 4, 0});
      std::int64_t count = 0;
      for (; order.next(size).first.epoch == 1; ++count) {
        order.advance(order.next(size));
      }
      CAPTURE(size);
      CHECK(order.batches({1, 4, 0}, size) == count);
    }
  }
}

TEST_CASE("data order: a source that is not shuffled, and a stream, come in their own order") {
  DataOptions options = of(10);
  options.shuffle = false;
  const DataOrder order(options);
  CHECK(indices(order, order.batch({1, 3}, 4)) == std::vector<std::int64_t>{3, 4, 5, 6});
  DataOrder stream(of(kUnknown));
  stream.advance(stream.next(5));
  CHECK(indices(stream, stream.next(4)) == std::vector<std::int64_t>{5, 6, 7, 8});
  stream.advance(stream.next(3));  // the end of the stream has come after three
  stream.end_epoch();
  CHECK(stream.position() == DataPosition{1, 0, 0});
  CHECK(indices(stream, stream.next(2)) == std::vector<std::int64_t>{0, 1});
}

TEST_CASE(
    "data order: a mixture has the weights of its sources in every block, each without gaps") {
  const std::vector<std::vector<double>> cases = {{0.7, 0.2, 0.1}, {1, 1},     {3, 5, 9, 2},
                                                  {0.123, 0.877},  {1, 65535}, {1.0 / 3, 2.0 / 3}};
  for (const auto& weights : cases) {
    const Mixture mixture(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::map<std::int64_t, std::vector<std::int64_t>> used;
    for (std::int64_t position = 0; position < 3 * mixture.block(); ++position) {
      const auto place = mixture.at(position, 5);
      used[place.source].push_back(place.index);
    }
    REQUIRE(used.size() == weights.size());
    for (auto& [source, places] : used) {
      const double share =
          static_cast<double>(places.size()) / static_cast<double>(3 * mixture.block());
      const double wanted = weights[static_cast<std::size_t>(source)] / sum;
      CHECK(std::abs(share - wanted) <= 0.0011 * wanted);
      CHECK(sorted(places) == upto(std::ssize(places)));
    }
  }
  CHECK(Mixture(cases[0]).block() == 10);
  CHECK(Mixture(cases[1]).block() == 2);
  DataOrder order(DataOptions{.sources = {{3, 0.5}, {1000, 0.5}}, .seed = 2});
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> epochs;
  for (const DataSample& each : order.samples(order.batch({}, 600), {0, 600})) {
    epochs[{each.source, each.epoch}].push_back(each.index);
  }
  for (std::int64_t epoch = 0; epoch < 100; ++epoch) {  // of the small source
    CHECK(sorted(epochs[{0, epoch}]) == upto(3));
  }
  CHECK(epochs[{1, 0}].size() == 300);
}

TEST_CASE("data order: documents are packed without a gap, and cut where a sequence is full") {
  std::mt19937 random(3);
  for (const LastBatch last_batch : {LastBatch::partial, LastBatch::next_epoch, LastBatch::drop}) {
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < 60; ++i) {
      lengths.push_back(std::uniform_int_distribution<>(1, 40)(random));
    }
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    DataOrder order(of(60, last_batch));
    std::map<std::int64_t, std::map<std::int64_t, std::int64_t>> ends;  // by epoch and document
    std::map<std::int64_t, std::int64_t> tokens;                        // by epoch
    std::int64_t sequences = 0;
    while (order.position().epoch < 3) {
      const std::int64_t count = std::uniform_int_distribution<>(1, 7)(random);
      const auto packed = order.pack(order.position(), lengths, 32, count);
      REQUIRE(packed.size == std::ssize(packed.sequences));
      for (const auto& sequence : packed.sequences) {
        std::int64_t room = 32;
        for (const DataPiece& piece : sequence) {
          auto& end = ends[piece.epoch][piece.document];
          REQUIRE(piece.offset == end);
          REQUIRE(piece.total == lengths[static_cast<std::size_t>(piece.document)]);
          end += piece.length;
          tokens[piece.epoch] += piece.length;
          room -= piece.length;
        }
        const bool is_last = &sequence == &packed.sequences.back();
        REQUIRE((room == 0 || (last_batch == LastBatch::partial && is_last && room > 0)));
        ++sequences;
      }
      order.advance(packed);
    }
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      if (last_batch == LastBatch::drop) {
        CHECK(tokens[epoch] > total - 8 * 32);
        CHECK(tokens[epoch] <= total);
      } else {
        CHECK(tokens[epoch] == total);
      }
    }
    CHECK(sequences > 50);
  }
}

TEST_CASE(
    "data order: what is packed does not depend on how many sequences are asked for at once") {
  const std::vector<std::int64_t> lengths = {5, 17, 3, 100, 1, 1, 8};
  const auto all = [&](std::int64_t count) {
    DataOrder order(of(7));
    std::vector<std::vector<DataPiece>> sequences;
    while (order.position().epoch == 0) {
      const auto packed = order.pack(order.position(), lengths, 16, count);
      sequences.insert(sequences.end(), packed.sequences.begin(), packed.sequences.end());
      order.advance(packed);
    }
    return sequences;
  };
  const auto one = all(1);
  CHECK(one.size() == 9);  // 135 tokens
  for (const std::int64_t count : {2, 3, 8, 100}) {
    CHECK(all(count) == one);
  }
}

TEST_CASE("data order: 200 trainings that are killed and resized use each sample once") {
  std::mt19937 random(11);
  const auto draw = [&](int first, int last) {
    return std::uniform_int_distribution<>(first, last)(random);
  };
  for (int history = 0; history < 200; ++history) {
    CAPTURE(history);
    const std::int64_t samples = draw(1, 400);
    const auto last_batch = static_cast<LastBatch>(draw(0, 1));
    constexpr std::int64_t kEpochs = 3;
    acc::ProgramState saved;
    std::map<std::int64_t, std::vector<std::int64_t>> kept;  // by epoch: used before the checkpoint
    std::int64_t made = 0;
    bool ends = false;
    while (!ends) {  // attempts
      const std::int64_t ranks = draw(1, 9);
      const std::int64_t size = ranks * draw(1, 7) + (draw(0, 3) == 0 ? draw(0, 5) : 0);
      const int killed_after = draw(0, 12);
      const int saves_every = draw(1, 5);
      // Each rank has an order of its own, as each is a process.
      std::vector<DataOrder> orders;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        orders.emplace_back(of(samples, last_batch, static_cast<std::uint64_t>(history)));
        REQUIRE(orders.back().load(saved) == !saved.empty());
      }
      auto since = kept;  // lost if the attempt is killed before it saves
      for (int step = 1; !ends && step <= killed_after; ++step, ++made) {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          DataOrder& order = orders[static_cast<std::size_t>(rank)];
          const DataBatch batch = order.next(size);
          for (const DataSample& each : order.samples(batch, share_of(batch.size, rank, ranks))) {
            since[each.epoch].push_back(each.index);
          }
          order.advance(batch);
        }
        ends = orders[0].position().epoch >= kEpochs;
        if (step % saves_every == 0 || ends) {
          saved = orders[0].state();
          kept = since;
        }
      }
      REQUIRE(made < 100'000);
    }
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      REQUIRE(sorted(kept[epoch]) == upto(samples));
    }
  }
}

TEST_CASE("data order: a checkpoint of another order is refused, with both values") {
  const DataOrder order(of(100));
  const acc::ProgramState state = order.state();
  DataOrder same(of(100));
  CHECK(same.load(state));
  CHECK_FALSE(same.load({}));
  CHECK_FALSE(same.load({{"step", std::int64_t{3}}}));
  const auto message = [](DataOptions options, const acc::ProgramState& values) {
    return acc::test::error_of([&] {
      DataOrder other(std::move(options));
      static_cast<void>(other.load(values));
    });
  };
  using acc::test::contains;
  CHECK(contains(message(of(101), state), "samples is 100 in the checkpoint and 101"));
  CHECK(contains(message(of(100, LastBatch::partial, 8), state), "seed is 7"));
  DataOptions plain = of(100);
  plain.shuffle = false;
  CHECK(contains(message(plain, state), "shuffle is 1"));
  acc::ProgramState damaged = state;
  damaged["acc.data.offset"] = std::int64_t{101};
  CHECK(contains(message(of(100), damaged), "offset 101"));
  damaged["acc.data.offset"] = std::string("3");
  CHECK(contains(message(of(100), damaged), "'acc.data.offset' is no integer"));
  damaged.erase("acc.data.offset");
  CHECK(contains(message(of(100), damaged), "'acc.data.offset' is missing"));
  DataOptions mixture{.sources = {{10, 0.5}, {20, 0.5}}};
  const acc::ProgramState mixed = DataOrder(mixture).state();
  mixture.sources[0].weight = 0.25;
  CHECK(contains(message(mixture, mixed), "hash of sizes and weights"));
  DataOptions named = of(100);
  named.name = "eval";
  DataOrder eval(named);
  CHECK_FALSE(eval.load(state));
  CHECK(eval.state().contains("acc.data.eval.offset"));
}

TEST_CASE("data order: wrong options and calls are refused by name") {
  using acc::test::contains;
  using acc::test::error_of;
  const auto made = [](DataOptions options) {
    return error_of([&] { const DataOrder order(std::move(options)); });
  };
  CHECK(contains(made({}), "there is no source"));
  CHECK(contains(made(of(0)), "source 0 has 0 samples"));
  CHECK(contains(made(of(-2)), "source 0 has -2 samples"));
  CHECK(contains(made(of(kUnknown, LastBatch::drop)), "no last batch"));
  DataOptions named = of(3);
  named.name = "a/b";
  CHECK(contains(made(named), "the name 'a/b'"));
  CHECK(contains(made({.sources = {{5, 1.0}, {5, 0.0}}}), "weight 1 of a mixture is 0"));
  CHECK(contains(made({.sources = {{5, 1.0}, {5, 1e-6}}}), "at least 1/65536"));
  CHECK(contains(made({.sources = {{5, 1.0}, {5, std::nan("")}}}), "of a mixture is"));
  DataOrder order(of(10));
  const auto call = [&](const auto& body) { return error_of(body); };
  CHECK(contains(call([&] { static_cast<void>(order.next(0)); }), "expected at least 1"));
  CHECK(contains(call([&] { static_cast<void>(order.batch({0, 11}, 1)); }), "an epoch has 10"));
  CHECK(contains(call([&] {
                   static_cast<void>(order.samples(order.next(4), {2, 3}));
                 }),
                 "are not in a batch of 4"));
  const DataBatch batch = order.next(4);
  order.advance(batch);
  CHECK(contains(call([&] { order.advance(batch); }), "cannot follow the position"));
  DataOrder dropping(of(10, LastBatch::drop));
  CHECK(contains(call([&] { static_cast<void>(dropping.next(11)); }), "no batch of 11"));
  const std::vector<std::int64_t> lengths(10, 3);
  CHECK(contains(call([&] { static_cast<void>(dropping.pack({}, lengths, 4, 9)); }),
                 "fewer than 9 sequences of 4 tokens"));
  const std::vector<std::int64_t> empty(10, 0);
  CHECK(contains(call([&] { static_cast<void>(order.pack({}, empty, 4, 1)); }),
                 "has 0 tokens, expected more than 0"));
  CHECK(contains(call([&] {
                   static_cast<void>(order.pack({0, 2, 3}, lengths, 4, 1));
                 }),
                 "has 3 tokens, expected more than 3"));
  DataOrder padded(of(10, LastBatch::pad));
  CHECK(contains(call([&] { static_cast<void>(padded.pack({}, lengths, 4, 1)); }), "pad"));
  CHECK(contains(call([&] { static_cast<void>(order.pack({}, empty, 4, 0)); }), "at least 1"));
  CHECK(contains(call([&] { static_cast<void>(order.pack({}, std::span(empty).first(9), 4, 1)); }),
                 "9 lengths are given for 10 documents"));
}
