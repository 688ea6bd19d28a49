// SPDX-License-Identifier: Apache-2.0
#include "acc/base/text.hpp"
#include "commands/data/record.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace acc::launcher::commands::data {
namespace {

constexpr std::size_t kNamed = 5;  ///< samples that a problem names

std::string in_words(const Position& at) {
  return at.token == 0
             ? fmt::format("epoch {} offset {}", at.epoch, at.offset)
             : fmt::format("epoch {} document {} token {}", at.epoch, at.offset, at.token);
}

/// One attempt of the job: the records of its ranks.
struct Attempt {
  std::string name;
  std::vector<const RankRecord*> ranks;  ///< by rank; null: there is none
  Position from_at;
  std::string from;
  double time = 0.0;
};

/// An attempt as far as its batches are part of the training that has been made: those from the
/// position with which it began to that from which a later attempt went on.
struct Kept {
  const Attempt* attempt;
  std::optional<Position> end;  ///< absent: the last attempt
};

/// A sample or a part of a document, and the batch that used it.
struct Use {
  std::int64_t number;
  std::size_t batch;
};

/// Checks the records of one order.
class Check {
 public:
  explicit Check(std::vector<RankRecord> records) : records_(std::move(records)) {}

  Verdict run() {
    collect_attempts();
    if (verdict_.problems.empty()) {
      follow_back();
    }
    for (const Kept& kept : chain_) {
      collect_batches(kept);
    }
    compare_contents();
    check_samples();
    check_documents();
    summarize();
    return std::move(verdict_);
  }

 private:
  void problem(std::string text) { verdict_.problems.push_back(std::move(text)); }

  void collect_attempts() {
    for (const RankRecord& record : records_) {
      Attempt& attempt = attempts_[record.attempt];
      if (attempt.ranks.empty()) {
        attempt = {record.attempt, {}, record.at, record.from, record.time};
        attempt.ranks.resize(static_cast<std::size_t>(
            std::min<std::int64_t>(record.world_size, std::ssize(records_))));
      }
      const RankRecord& first = records_.front();
      if (record.sources != first.sources || record.last_batch != first.last_batch) {
        problem(
            fmt::format("{}: the data set is another one than in {}", record.place, first.place));
      }
      if (record.from != attempt.from || record.at != attempt.from_at) {
        problem(fmt::format("{}: rank {} began attempt {} at {}, another rank at {}", record.place,
                            record.rank, printable(record.attempt), in_words(record.at),
                            in_words(attempt.from_at)));
      }
      if (record.rank >= std::ssize(attempt.ranks)) {
        problem(
            fmt::format("attempt {} has {} ranks, and {} records of it are there: the records "
                        "of some are missing",
                        printable(record.attempt), record.world_size, attempt.ranks.size()));
        continue;
      }
      const RankRecord*& place = attempt.ranks[static_cast<std::size_t>(record.rank)];
      if (place != nullptr) {
        problem(fmt::format("{} and {} are both of rank {} in attempt {}", place->place,
                            record.place, record.rank, printable(record.attempt)));
      }
      place = &record;
      attempt.time = std::min(attempt.time, record.time);
    }
  }

  /// Finds the attempts that the newest one has gone on from. None has gone on from the newest one,
  /// whatever the clocks of the machines say.
  void follow_back() {
    std::set<std::string> parents;
    for (const auto& [name, each] : attempts_) {
      parents.insert(each.from);
    }
    const auto age = [&](const Attempt& each) {
      return std::pair(parents.contains(each.name), -each.time);
    };
    const Attempt* attempt = nullptr;
    for (const auto& [name, each] : attempts_) {
      attempt = attempt == nullptr || age(each) < age(*attempt) ? &each : attempt;
    }
    std::optional<Position> end;
    std::set<const Attempt*> seen;
    while (attempt != nullptr) {
      if (!seen.insert(attempt).second) {
        problem(fmt::format("attempt {} has gone on from itself", printable(attempt->name)));
        return;
      }
      chain_.push_back({attempt, end});
      end = attempt->from_at;
      if (attempt->from.empty()) {
        if (attempt->from_at != Position{}) {
          problem(
              fmt::format("attempt {} began at {}, with a checkpoint of which there is no "
                          "record: nothing says what was used before",
                          printable(attempt->name), in_words(attempt->from_at)));
        }
        break;
      }
      const auto parent = attempts_.find(attempt->from);
      if (parent == attempts_.end()) {
        problem(fmt::format("attempt {} went on from attempt {} at {}, of which there is no record",
                            printable(attempt->name), printable(attempt->from),
                            in_words(attempt->from_at)));
        break;
      }
      attempt = &parent->second;
    }
    std::ranges::reverse(chain_);
  }

  /// Adds the batches of an attempt that are kept, of all ranks together.
  void collect_batches(const Kept& kept) {
    const Attempt& attempt = *kept.attempt;
    std::size_t common = SIZE_MAX;  // batches that all ranks have recorded
    std::size_t most = 0;
    for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
      if (attempt.ranks[rank] == nullptr) {
        problem(fmt::format("attempt {}: there is no record of rank {}", printable(attempt.name),
                            rank));
        return;
      }
      common = std::min(common, attempt.ranks[rank]->batches.size());
      most = std::max(most, attempt.ranks[rank]->batches.size());
    }
    Position at = attempt.from_at;
    std::size_t i = 0;
    for (; i < common && (!kept.end || at < *kept.end); ++i) {
      const Batch& first = attempt.ranks.front()->batches[i];
      if (first.at != at && first.at != Position{at.epoch + 1, 0, 0}) {
        problem(fmt::format("attempt {}: the batch at {} follows the position {}",
                            printable(attempt.name), in_words(first.at), in_words(at)));
        return;
      }
      add_batch(attempt, i);
      at = first.next;
    }
    if (kept.end && at != *kept.end) {
      problem(fmt::format("attempt {}: its record ends at {}, but the next attempt went on at {}",
                          printable(attempt.name), in_words(at), in_words(*kept.end)));
    }
    const std::size_t rest = most - i;
    (kept.end ? made_again_ : incomplete_) += rest;
    end_ = at;
  }

  /// Adds batch number i of an attempt.
  void add_batch(const Attempt& attempt, std::size_t i) {
    const std::size_t number = places_.size();
    const Batch& first = attempt.ranks.front()->batches[i];
    places_.push_back(
        fmt::format("the batch at {} of attempt {}", in_words(first.at), printable(attempt.name)));
    std::int64_t count = 0;
    for (const RankRecord* rank : attempt.ranks) {
      const Batch& batch = rank->batches[i];
      if (batch.at != first.at || batch.next != first.next || batch.size != first.size ||
          batch.is_packed != first.is_packed || batch.padding != first.padding) {
        problem(fmt::format("{}: rank {} has another batch there", places_.back(), rank->rank));
        return;
      }
      for (const Samples& samples : batch.samples) {
        std::vector<Use>& uses = uses_[{samples.source, samples.epoch}];
        for (const std::int64_t sample : samples.numbers) {
          uses.push_back({sample, number});
        }
        count += std::ssize(samples.numbers);
      }
      for (const Piece& piece : batch.pieces) {
        pieces_[piece.epoch].push_back({piece, number});
      }
    }
    padding_[first.at.epoch] += first.padding;
    if (!first.is_packed && count != first.size) {
      problem(fmt::format("{} has {} samples, of which the ranks have used {}", places_.back(),
                          first.size, count));
    }
  }

  /// A stream must give the same samples again when an attempt goes on from an earlier position.
  void compare_contents() {
    std::map<std::pair<std::int64_t, std::int64_t>, std::unordered_map<std::int64_t, std::uint64_t>>
        seen;
    std::unordered_map<std::uint64_t, std::int64_t> numbers;
    std::size_t alike = 0;
    for (const RankRecord& record : records_) {
      for (const Batch& batch : record.batches) {
        for (const Samples& samples : batch.samples) {
          auto& contents = seen[{samples.source, samples.epoch}];
          for (std::size_t i = 0; i < samples.hashes.size(); ++i) {
            const auto [found, is_new] = contents.emplace(samples.numbers[i], samples.hashes[i]);
            if (found->second != samples.hashes[i]) {
              problem(
                  fmt::format("sample {} of the stream had another content in another attempt: "
                              "the stream is not the same each time that it is read",
                              samples.numbers[i]));
              return;
            }
            alike += is_new && !numbers.emplace(samples.hashes[i], samples.numbers[i]).second;
          }
        }
      }
    }
    if (alike > 0) {
      verdict_.findings.push_back(
          fmt::format("{} samples have the same content as another one", alike));
    }
  }

  /// Samples of an epoch of a source that must have been used; nothing if the epoch is not over.
  [[nodiscard]] std::optional<std::int64_t> expected(std::int64_t source,
                                                     std::int64_t epoch) const {
    const std::vector<Source>& sources = records_.front().sources;
    const Source& of = sources[static_cast<std::size_t>(source)];
    if (sources.size() == 1) {
      return of.samples >= 0 && epoch < end_.epoch ? std::optional(of.samples) : std::nullopt;
    }
    // Every whole block of a mixture has `per_block` samples of the source.
    std::int64_t block = 0;
    for (const Source& each : sources) {
      block += each.per_block;
    }
    const std::int64_t certain = end_.offset / std::max<std::int64_t>(block, 1) * of.per_block;
    if (of.samples <= 0 || certain / of.samples <= epoch) {
      return std::nullopt;
    }
    return of.samples;
  }

  void check_samples() {
    for (auto& [of, uses] : uses_) {
      const auto [source, epoch] = of;
      const bool is_one = records_.front().sources.size() == 1;
      const std::string name = is_one ? fmt::format("epoch {}", epoch)
                                      : fmt::format("source {} epoch {}", source, epoch);
      std::ranges::sort(uses, {}, [](const Use& use) { return std::pair(use.number, use.batch); });
      const std::int64_t samples =
          records_.front().sources[static_cast<std::size_t>(source)].samples;
      const std::int64_t padding = is_one ? padding_[epoch] : 0;
      std::int64_t different = 0;
      std::int64_t repeated = 0;
      std::vector<std::string> twice;
      for (std::size_t i = 0; i < uses.size(); ++i) {
        if (i > 0 && uses[i].number == uses[i - 1].number) {
          ++repeated;
          if (twice.size() < kNamed) {
            twice.push_back(fmt::format("sample {} in {} and in {}", uses[i].number,
                                        places_[uses[i - 1].batch], places_[uses[i].batch]));
          }
        } else {
          ++different;
        }
      }
      if (samples >= 0 && !uses.empty() && uses.back().number >= samples) {
        problem(
            fmt::format("{}: sample {} of {} does not exist", name, uses.back().number, samples));
      }
      if (repeated != padding) {
        problem(fmt::format("{}: {} samples were used twice, expected {}: {}", name, repeated,
                            padding, fmt::join(twice, ", ")));
      }
      report_missing(name, uses, different, padding, source, epoch);
    }
    if (records_.front().sources.size() == 1 && pieces_.empty()) {
      for (std::int64_t epoch = 0; epoch < end_.epoch; ++epoch) {
        if (!uses_.contains({0, epoch})) {
          problem(fmt::format("epoch {}: no sample was used", epoch));
          break;
        }
      }
    }
  }

  /// Reports an epoch in which samples are missing, or that is right.
  void report_missing(const std::string& name, const std::vector<Use>& uses, std::int64_t different,
                      std::int64_t padding, std::int64_t source, std::int64_t epoch) {
    const std::int64_t samples = records_.front().sources[static_cast<std::size_t>(source)].samples;
    const bool is_stream = samples < 0;
    const std::optional<std::int64_t> all =
        is_stream && records_.front().sources.size() == 1
            ? std::optional(uses.empty() ? 0 : uses.back().number + 1)
            : expected(source, epoch);
    const std::string padded =
        padding > 0 ? fmt::format(", {} again to fill a batch", padding) : "";
    if (!all) {
      verdict_.findings.push_back(is_stream
                                      ? fmt::format("{}: {} samples, none twice", name, different)
                                      : fmt::format("{}: {} of {} samples, none twice{}", name,
                                                    different, samples, padded));
      return;
    }
    if (different >= *all) {
      verdict_.findings.push_back(
          fmt::format("{}: {} samples, each used once{}", name, different, padded));
      return;
    }
    std::vector<std::string> missing;
    std::int64_t next = 0;
    for (std::size_t i = 0; i <= uses.size() && missing.size() < kNamed; ++i) {
      const std::int64_t end = i < uses.size() ? std::min(uses[i].number, *all) : *all;
      for (; next < end && missing.size() < kNamed; ++next) {
        missing.push_back(std::to_string(next));
      }
      next = i < uses.size() ? std::max(next, uses[i].number + 1) : next;
    }
    const std::string text =
        fmt::format("{}: {} of {} samples were not used: {}{}", name, *all - different, *all,
                    fmt::join(missing, ", "), *all - different > std::ssize(missing) ? ", …" : "");
    if (records_.front().last_batch == "drop") {
      verdict_.findings.push_back(text + " (left out at the end of the epoch: last_batch drop)");
    } else {
      problem(text);
    }
  }

  void check_documents() {
    for (auto& [epoch, pieces] : pieces_) {
      std::ranges::sort(pieces, {}, [](const auto& each) {
        return std::pair(each.first.document, each.first.offset);
      });
      const std::int64_t documents = records_.front().sources.front().samples;
      const bool is_over = epoch < end_.epoch;
      const bool may_drop = records_.front().last_batch == "drop";
      std::int64_t whole = 0;
      std::int64_t cut = 0;
      for (std::size_t i = 0; i < pieces.size();) {
        const std::int64_t document = pieces[i].first.document;
        std::int64_t end = 0;
        for (; i < pieces.size() && pieces[i].first.document == document; ++i) {
          const Piece& piece = pieces[i].first;
          if (piece.offset != end || piece.length > piece.total - piece.offset) {
            problem(
                fmt::format("epoch {}: document {}: tokens {} to {} of {} were used in {}, after "
                            "token {}",
                            epoch, document, piece.offset, piece.offset + piece.length, piece.total,
                            places_[pieces[i].second], end));
            return;
          }
          end += piece.length;
        }
        const bool is_whole = end == pieces[i - 1].first.total;
        whole += is_whole ? 1 : 0;
        cut += is_whole ? 0 : 1;
        if (!is_whole && is_over && !may_drop) {
          problem(fmt::format("epoch {}: document {}: {} of {} tokens were used", epoch, document,
                              end, pieces[i - 1].first.total));
          return;
        }
      }
      if (cut > 1) {
        problem(fmt::format("epoch {}: of {} documents only a part was used", epoch, cut));
      }
      const std::string counted = fmt::format("epoch {}: {} of {} documents, each token used once",
                                              epoch, whole, documents);
      if (is_over && !may_drop && whole != documents) {
        problem(counted + ": the others are missing");
      } else {
        verdict_.findings.push_back(counted);
      }
    }
  }

  void summarize() {
    std::size_t other = made_again_;
    for (const auto& each : attempts_) {
      const Attempt& attempt = each.second;
      const bool is_kept =
          std::ranges::any_of(chain_, [&](const Kept& kept) { return kept.attempt == &attempt; });
      std::size_t most = 0;
      for (const RankRecord* rank : attempt.ranks) {
        most = std::max(most, rank == nullptr ? 0 : rank->batches.size());
      }
      other += is_kept ? 0 : most;
    }
    std::string text = fmt::format(
        "attempts: {}, of which {} are part of the training; batches: {} kept, {} made again by a "
        "later attempt",
        attempts_.size(), chain_.size(), places_.size(), other);
    if (incomplete_ > 0) {
      text +=
          fmt::format("; {} at the end that not all ranks have recorded are left out", incomplete_);
    }
    verdict_.findings.insert(verdict_.findings.begin(), text);
  }

  std::vector<RankRecord> records_;
  std::map<std::string, Attempt> attempts_;
  std::vector<Kept> chain_;
  Verdict verdict_;
  std::vector<std::string> places_;  ///< of each kept batch, for messages
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Use>> uses_;  ///< by source and epoch
  std::map<std::int64_t, std::vector<std::pair<Piece, std::size_t>>> pieces_;  ///< by epoch
  std::map<std::int64_t, std::int64_t> padding_;                               ///< by epoch
  std::size_t made_again_ = 0;
  std::size_t incomplete_ = 0;
  Position end_;
};

}  // namespace

std::map<std::string, Verdict> check(std::vector<RankRecord> records) {
  std::map<std::string, std::vector<RankRecord>> by_name;
  for (RankRecord& record : records) {
    by_name[record.name].push_back(std::move(record));
  }
  std::map<std::string, Verdict> verdicts;
  for (auto& [name, own] : by_name) {
    verdicts[name] = Check(std::move(own)).run();
  }
  return verdicts;
}

}  // namespace acc::launcher::commands::data
