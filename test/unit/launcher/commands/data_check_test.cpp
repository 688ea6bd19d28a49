// SPDX-License-Identifier: Apache-2.0
// acclaunch data check on records of simulated trainings, sound and damaged.
#include "acc/runtime/data_order.hpp"
#include "commands/data/record.hpp"
#include "data/record.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>

namespace {

namespace fs = std::filesystem;

using acc::DataBatch;
using acc::DataOptions;
using acc::DataOrder;
using acc::DataPosition;
using acc::DataSample;
using acc::LastBatch;
using acc::share_of;
using acc::data::Origin;
using acc::data::Record;
using acc::launcher::commands::data::check;
using acc::launcher::commands::data::parse_record;
using acc::launcher::commands::data::read_records;
using acc::launcher::commands::data::Verdict;
using acc::test::contains;
using acc::test::TemporaryFolder;

/// One rank of an attempt.
struct Rank {
  DataOrder order;
  Record record;
};

/// A training whose attempts write records.
class Training {
 public:
  Training(fs::path folder, DataOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {}

  void begin(int world_size) {
    ranks_.clear();
    const std::string name = "a" + std::to_string(attempts_++);
    for (int rank = 0; rank < world_size; ++rank) {
      ranks_.push_back({DataOrder(options_), Record(std::make_shared<acc::data::Recording>(
                                                        folder_, name, rank, world_size),
                                                    options_, per_block_)});
      ranks_.back().order.seek(saved_.at);
      ranks_.back().record.begin(saved_);
    }
  }

  /// Uses a batch. recorded: by so many ranks, if the others are killed before.
  void step(std::int64_t size, int recorded = 1000) {
    const auto world_size = std::ssize(ranks_);
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      Rank& own = ranks_[static_cast<std::size_t>(rank)];
      const DataBatch batch = own.order.next(size);
      const auto samples = own.order.samples(batch, share_of(batch.size, rank, world_size));
      own.order.advance(batch, samples);
      if (rank < recorded) {
        std::vector<std::uint64_t> hashes;
        if (options_.sources[0].samples < 0) {
          for (const DataSample& sample : samples) {
            hashes.push_back(static_cast<std::uint64_t>(sample.index) * 77 + content_);
          }
        }
        own.record.add(batch, samples, hashes);
      }
    }
  }

  void pack(std::span<const std::int64_t> lengths, std::int64_t tokens, std::int64_t count) {
    const auto world_size = std::ssize(ranks_);
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      Rank& own = ranks_[static_cast<std::size_t>(rank)];
      const auto batch = own.order.pack(own.order.position(), lengths, tokens, count);
      const auto share = share_of(batch.size, rank, world_size);
      std::vector<acc::DataPiece> used;
      for (std::int64_t i = share.first; i < share.first + share.count; ++i) {
        const auto& sequence = batch.sequences[static_cast<std::size_t>(i)];
        used.insert(used.end(), sequence.begin(), sequence.end());
      }
      own.order.advance(batch, used);
      own.record.add(batch, used);
    }
  }

  void save() { saved_ = {ranks_[0].order.position(), ranks_[0].record.attempt()}; }
  [[nodiscard]] DataPosition position() const { return ranks_[0].order.position(); }

  std::vector<std::int64_t> per_block_ = {};
  std::uint64_t content_ = 0;  ///< another one: the stream gives other samples

 private:
  fs::path folder_;
  DataOptions options_;
  std::vector<Rank> ranks_;
  Origin saved_;
  int attempts_ = 0;
};

Verdict verdict(const fs::path& folder) {
  std::vector<std::string> remarks;
  const std::string path = folder.string();
  return check(read_records(std::span(&path, 1), remarks)).at("");
}

std::string text_of(const Verdict& found) {
  std::string text;
  for (const auto& lines : {found.findings, found.problems}) {
    for (const std::string& line : lines) {
      text += line + "\n";
    }
  }
  return text;
}

DataOptions of(std::int64_t samples, LastBatch last_batch = LastBatch::partial) {
  return {.sources = {{.samples = samples}}, .seed = 3, .last_batch = last_batch};
}

/// Three attempts with 2, 3 and 1 ranks: the second goes on after 16 of 50 samples, the third after
/// 28.
void train(const fs::path& folder, const DataOptions& options = of(50)) {
  Training training(folder, options);
  training.begin(2);
  training.step(8);
  training.step(8);
  training.save();
  training.step(8);
  training.step(8, 1);
  training.begin(3);
  training.step(6);
  training.step(6);
  training.save();
  training.step(6);
  training.begin(1);
  while (training.position().epoch < 2) {
    training.step(11);
  }
  training.step(7);
}

}  // namespace

TEST_CASE("data check: a training of three attempts has used each sample once") {
  const TemporaryFolder folder;
  train(folder.path());
  const std::string expected =
      "attempts: 3, of which 3 are part of the training; batches: 12 kept, 3 made again by a "
      "later attempt\n"
      "epoch 0: 50 samples, each used once\n"
      "epoch 1: 50 samples, each used once\n"
      "epoch 2: 7 of 50 samples, none twice\n";
  CHECK(text_of(verdict(folder.path())) == expected);

  // The clock of the machine of the last attempt is behind.
  const fs::path last = folder.path() / "data.a2.rank0.jsonl";
  std::string content = acc::test::file_text(last);
  const auto at = content.find("\"time\":");
  REQUIRE(at != std::string::npos);
  acc::test::write_text(last, content.insert(at + 7, "1,\"of_clock\":"));
  CHECK(text_of(verdict(folder.path())) == expected);
}

TEST_CASE("data check: 200 trainings that are killed and resized") {
  std::mt19937 random(5);
  const auto draw = [&](int first, int last) {
    return std::uniform_int_distribution<>(first, last)(random);
  };
  for (int history = 0; history < 200; ++history) {
    CAPTURE(history);
    const TemporaryFolder folder;
    const auto last_batch = static_cast<LastBatch>(draw(0, 3));
    DataOptions options = of(draw(20, 300), last_batch);
    const int kind = draw(0, 5);
    Training training(folder.path(), options);
    if (kind == 0) {
      options = {.sources = {{20, 0.5}, {80, 0.3}, {-1, 0.2}}, .seed = 3};
      training = Training(folder.path(), options);
      training.per_block_ = {5, 3, 2};
    } else if (kind == 1) {
      training = Training(folder.path(), of(-1));
    }
    const int attempts = draw(1, 5);
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const int ranks = draw(1, 5);
      training.begin(ranks);
      for (int step = draw(0, 25); step > 0; --step) {
        // With pad and drop, a batch of another size at the end of an epoch is another end of it.
        training.step(std::min(20, ranks * draw(1, 5)), step == 1 ? draw(1, ranks) : 1000);
        if (draw(0, 3) == 0 && step > 1) {
          training.save();
        }
      }
    }
    const Verdict found = verdict(folder.path());
    REQUIRE_MESSAGE(found.problems.empty(), text_of(found));
  }
}

TEST_CASE("data check: packed documents, with kills and other numbers of ranks") {
  std::mt19937 random(9);
  for (int history = 0; history < 40; ++history) {
    CAPTURE(history);
    const TemporaryFolder folder;
    std::vector<std::int64_t> lengths(30);
    for (std::int64_t& length : lengths) {
      length = std::uniform_int_distribution<>(1, 50)(random);
    }
    Training training(folder.path(), of(30, static_cast<LastBatch>(history % 3)));
    for (int attempt = 0; attempt < 4; ++attempt) {
      training.begin(1 + attempt);
      for (int step = 0; step < 12; ++step) {
        training.pack(lengths, 16, 4 + step % 3);
        if (step % 5 == 3) {
          training.save();
        }
      }
    }
    const Verdict found = verdict(folder.path());
    REQUIRE_MESSAGE(found.problems.empty(), text_of(found));
  }
}

TEST_CASE("data check: records that are altered or damaged prove nothing") {
  struct Case {
    const char* what;
    std::function<void(const fs::path&)> alter;
    const char* expected;
  };
  const auto replace = [](const char* file, const std::string& old, const std::string& text) {
    return [=](const fs::path& folder) {
      std::string content = acc::test::file_text(folder / file);
      const auto at = content.find(old);
      REQUIRE(at != std::string::npos);
      acc::test::write_text(folder / file, content.replace(at, old.size(), text));
    };
  };
  const auto without_line = [](const char* file, int line) {
    return [=](const fs::path& folder) {
      std::string content = acc::test::file_text(folder / file);
      std::size_t begin = 0;
      for (int i = 1; i < line; ++i) {
        begin = content.find('\n', begin) + 1;
      }
      content.erase(begin, content.find('\n', begin) + 1 - begin);
      acc::test::write_text(folder / file, content);
    };
  };
  const auto without_file = [](const char* file) {
    return [=](const fs::path& folder) { fs::remove(folder / file); };
  };
  const std::vector<Case> cases = {
      {"a kept line is missing on one rank", without_line("data.a0.rank1.jsonl", 2),
       "rank 1 has another batch there"},
      {"a line that was made again is missing", without_line("data.a0.rank1.jsonl", 4), ""},
      {"the record of a rank is missing", without_file("data.a1.rank1.jsonl"),
       "attempt a1: there is no record of rank 1"},
      {"the last rank is missing", without_file("data.a1.rank2.jsonl"),
       "there is no record of rank 2"},
      {"an attempt is missing",
       [&](const fs::path& folder) {
         without_file("data.a0.rank0.jsonl")(folder);
         without_file("data.a0.rank1.jsonl")(folder);
       },
       "went on from attempt a0 at epoch 0 offset 16, of which there is no record"},
      {"a resume from another position",
       replace("data.a2.rank0.jsonl", "\"at\":[0,28,0]}", "\"at\":[0,34,0]}"),
       "attempt a2: the batch at epoch 0 offset 28 follows the position epoch 0 offset 34"},
      {"a checkpoint without a record",
       replace("data.a2.rank0.jsonl", "\"from\":\"a1\"", "\"from\":null"),
       "with a checkpoint of which there is no record"},
      {"another data set", replace("data.a2.rank0.jsonl", "\"samples\":50", "\"samples\":51"),
       "the data set is another one"},
      {"a batch of another size", replace("data.a0.rank0.jsonl", "\"size\":8", "\"size\":9"),
       "rank 1 has another batch there"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    const TemporaryFolder folder;
    train(folder.path());
    each.alter(folder.path());
    const std::string text = text_of(verdict(folder.path()));
    const bool is_sound = verdict(folder.path()).problems.empty();
    CHECK_MESSAGE((is_sound == (*each.expected == '\0') && contains(text, each.expected)), text);
  }
}

TEST_CASE("data check: the first samples that were lost and repeated are named") {
  const TemporaryFolder folder;
  DataOptions options = of(10);
  options.shuffle = false;
  Training training(folder.path(), options);
  training.begin(1);
  training.step(5);
  training.step(5);
  training.step(5);
  const fs::path file = folder.path() / "data.a0.rank0.jsonl";
  std::string content = acc::test::file_text(file);
  const auto at = content.find("[5,6,7,8,9]");
  REQUIRE(at != std::string::npos);
  acc::test::write_text(file, content.replace(at, 11, "[5,2,7,2,9]"));
  const std::string text = text_of(verdict(folder.path()));
  CHECK_MESSAGE(contains(text,
                         "epoch 0: 2 samples were used twice, expected 0: sample 2 in the batch at "
                         "epoch 0 offset 0 of attempt a0 and in the batch at epoch 0 offset 5 of "
                         "attempt a0, sample 2 in"),
                text);
  CHECK_MESSAGE(contains(text, "epoch 0: 2 of 10 samples were not used: 6, 8\n"), text);
}

TEST_CASE("data check: a stream that gives other samples when it is read again") {
  const TemporaryFolder folder;
  Training training(folder.path(), of(-1));
  training.begin(2);
  training.step(4);
  training.save();
  training.step(4);
  training.begin(2);
  training.content_ = 5;
  training.step(4);
  const std::string text = text_of(verdict(folder.path()));
  CHECK_MESSAGE(contains(text, "sample 4 of the stream had another content in another attempt"),
                text);
}

TEST_CASE("data check: a damaged line is refused with file, line and what was found") {
  struct Case {
    std::string text;
    const char* message;
  };
  const std::string head =
      R"({"kind":"attempt","version":1,"name":"","attempt":"a","rank":0,"world_size":1,"time":1.5,)"
      R"("seed":1,"shuffle":true,"last_batch":"partial","sources":[{"samples":5,"weight":1,"per_block":1}],)"
      R"("from":null,"at":[0,0,0]})"
      "\n";
  const auto with = [&](const std::string& line) { return head + line + "\n"; };
  for (const Case& each : std::vector<Case>{
           {"[1]\n", "file, line 1: expected a JSON object, found [1]"},
           {"{\"kind\":\"batch\"}\n", "expected a first line of the kind 'attempt'"},
           {with("{\"kind\":\"x\"}"),
            "file, line 2: expected the kind 'attempt', 'batch' or 'packed'"},
           {with(R"({"kind":"batch","at":[0,0,0],"next":[0,0,0],"size":1})"),
            "a position 'next' behind 'at'"},
           {with(R"({"kind":"batch","at":[0,0],"next":[0,1,0],"size":1})"), "at: a list of 3"},
           {with(R"({"kind":"batch","at":[0,-1,0],"next":[0,1,0],"size":1})"),
            "from 0 to 2305843009213693952"},
           {with(R"({"kind":"batch","at":[0,0,0],"next":[0,1,0],"size":1,"padding":0,)"
                 R"("samples":[[1,0,[3]]]})"),
            "a source below 1"},
           {with(R"({"kind":"batch","at":[0,0,0],"next":[0,1,0],"size":1,"padding":0,)"
                 R"("samples":[[0,0,[3.5]]]})"),
            "number of a sample: an integer"},
           {with(R"({"kind":"batch","at":[0,0,0],"next":[0,1,0],"size":1,"padding":0,)"
                 R"("samples":[[0,0,[3]]],"hashes":[]})"),
            "1 hashes, one for each sample"},
           {"{\"kind\":\"attempt\",\"version\":2}\n", "expected version 1"},
       }) {
    CAPTURE(each.text);
    std::vector<std::string> remarks;
    const std::string found =
        acc::test::error_of([&] { return parse_record(each.text, "file", remarks); });
    CHECK_MESSAGE(contains(found, each.message), found);
  }
  std::vector<std::string> remarks;
  CHECK(parse_record(head + "{\"kind\":\"bat", "file", remarks).size() == 1);
  CHECK(remarks == std::vector<std::string>{"file, line 2: is not complete and was left out"});
}
