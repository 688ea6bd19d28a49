// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/data_order.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

// The records that a program's order writes if the launcher asks for them.
namespace {

using acc::DataOrder;
using acc::DataSample;
using acc::test::contains;

acc::Runtime runtime_that_records(const std::string& folder, int round) {
  acc::settings::RuntimeSettings settings;
  settings.identity.job_secret = "0123456789abcdef0123456789abcdef";
  settings.data_record = {.folder = folder, .round = round};
  return acc::Runtime::from_settings(settings);
}

acc::DataOptions options() {
  return {.sources = {{.samples = 8}}, .shuffle = false};
}

void use(DataOrder& order, std::int64_t size) {
  const acc::DataBatch batch = order.next(size);
  order.advance(batch, order.samples(batch, {0, batch.size}));
}

std::vector<std::string> files(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("data record: what a rank uses, and the attempt that it goes on from") {
  const acc::test::TemporaryFolder folder;
  const auto record = folder.path() / "record";
  DataOrder first(runtime_that_records(record.string(), 0), options());
  CHECK_FALSE(std::filesystem::exists(record));  // until it is used
  use(first, 3);
  const acc::ProgramState state = first.state();
  const auto attempt = std::get<std::string>(state.at("acc.data.attempt"));
  use(first, 3);
  REQUIRE(files(record) == std::vector{(record / ("data." + attempt + ".rank0.jsonl")).string()});
  const std::string text = acc::test::file_text(files(record)[0]);
  CHECK(contains(text, "\"from\":null,\"at\":[0,0,0]}\n"));
  CHECK(contains(text,
                 "{\"kind\":\"batch\",\"at\":[0,0,0],\"next\":[0,3,0],\"size\":3,\"padding\":0,"
                 "\"samples\":[[0,0,[0,1,2]]]}\n"));
  CHECK(contains(text, "\"samples\":[[0,0,[3,4,5]]]}\n"));
  CHECK_FALSE(contains(text, "0123456789abcdef"));

  DataOrder second(runtime_that_records(record.string(), 1), options());
  REQUIRE(second.load(state));
  use(second, 8);
  REQUIRE(files(record).size() == 2);
  const bool is_first = contains(files(record)[0], attempt);
  const std::string later = acc::test::file_text(files(record)[is_first ? 1 : 0]);
  CHECK(contains(later, "\"from\":\"" + attempt + "\",\"at\":[0,3,0]}\n"));
  CHECK(contains(later, "\"samples\":[[0,0,[3,4,5,6,7]]]}\n"));

  // A process that goes back to a checkpoint begins another attempt in its file.
  REQUIRE(first.load(state));
  use(first, 2);
  const std::string again = acc::test::file_text(files(record)[is_first ? 0 : 1]);
  CHECK(again.starts_with(text));
  CHECK(contains(again, "\"attempt\":\"" + attempt + ".2\""));
  CHECK(contains(again, "\"from\":\"" + attempt + "\",\"at\":[0,3,0]}\n"));
}

TEST_CASE("data record: a state before the first batch is of the attempt that it came from") {
  const acc::test::TemporaryFolder folder;
  DataOrder first(runtime_that_records(folder.path().string(), 0), options());
  CHECK(first.state().at("acc.data.attempt") == acc::ProgramValue{std::string{}});
  use(first, 3);
  const acc::ProgramState state = first.state();
  DataOrder second(runtime_that_records(folder.path().string(), 1), options());
  REQUIRE(second.load(state));
  CHECK(second.state() == state);
  CHECK(files(folder.path()).size() == 1);
  use(second, 3);
  CHECK(second.state().at("acc.data.attempt") != state.at("acc.data.attempt"));
}

TEST_CASE("data record: two orders need names, and two jobs need folders") {
  const acc::test::TemporaryFolder folder;
  const acc::Runtime runtime = runtime_that_records(folder.path().string(), 0);
  DataOrder first(runtime, options());
  use(first, 3);
  CHECK(contains(acc::test::error_of([&] { const DataOrder second(runtime, options()); }),
                 "two orders of one program need different names"));
  acc::DataOptions named = options();
  named.name = "eval";
  DataOrder second(runtime, named);
  use(second, 3);
  CHECK(files(folder.path()).size() == 2);
}

TEST_CASE("data record: orders by the environment follow the rounds of a process that goes on") {
  const acc::test::TemporaryFolder folder;
  const auto attempt_in = [&](const char* round) {
    ::setenv("ACC_DATA_ROUND", round, 1);
    DataOrder order = DataOrder::from_environment(options());
    use(order, 3);
    return order.state().at("acc.data.attempt");
  };
  ::setenv("ACC_DATA_RECORD", folder.path().c_str(), 1);
  ::setenv("ACC_JOB_SECRET", "0123456789abcdef0123456789abcdef", 1);
  DataOrder first = DataOrder::from_environment(options());
  use(first, 3);
  const acc::ProgramState state = first.state();
  CHECK(attempt_in("1000") != state.at("acc.data.attempt"));
  REQUIRE(first.load(state));
  for (int tries = 0; tries < 2; ++tries) {
    CHECK(contains(acc::test::error_of([&] { use(first, 3); }), "exists"));  // of the same round
  }
  for (const char* name : {"ACC_DATA_RECORD", "ACC_DATA_ROUND", "ACC_JOB_SECRET"}) {
    ::unsetenv(name);
  }
}

TEST_CASE("data record: nothing is recorded unless the launcher asks for it") {
  const acc::test::TemporaryFolder folder;
  DataOrder order(acc::Runtime::from_settings({}), options());
  use(order, 3);
  CHECK(order.state().at("acc.data.attempt") == acc::ProgramValue{std::string{}});
}
