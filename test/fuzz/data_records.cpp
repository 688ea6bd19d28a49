// SPDX-License-Identifier: Apache-2.0
// Fuzzes the records of samples that `acclaunch data check` reads.
#include "acc/base/error.hpp"
#include "commands/data/record.hpp"
#include "input.hpp"

#include <string>
#include <vector>

using acc::fuzz::require;
namespace data = acc::launcher::commands::data;

int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  std::vector<data::RankRecord> records;
  std::vector<std::string> remarks;
  try {
    records = data::parse_record(text, "file", remarks);
  } catch (const acc::Error& error) {
    require(error.code() == acc::Errc::config, "a damaged record is bad input");
    return 0;
  }
  require(remarks.size() <= 1, "only the last line may be incomplete");
  for (const data::RankRecord& record : records) {
    require(record.rank >= 0 && record.rank < record.world_size, "a rank is below the world size");
    require(!record.sources.empty(), "there is a source");
    for (const data::Batch& batch : record.batches) {
      require(batch.at < batch.next, "a batch moves the position");
    }
  }
  const bool is_empty = records.empty();
  const auto verdicts = data::check(std::move(records));
  require(verdicts.empty() == is_empty, "each record has a verdict");
  for (const auto& [name, verdict] : verdicts) {
    require(!verdict.findings.empty(), "a verdict has a summary");
  }
  return 0;
}
