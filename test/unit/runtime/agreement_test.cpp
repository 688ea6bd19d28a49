// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>

using namespace acc;
using acc::settings::RuntimeSettings;

TEST_CASE("ranks with different settings all get an error that names the rank and both values") {
  struct Row {
    void (*change)(RuntimeSettings&);
    const char* message;
  };
  const Row rows[] = {
      {[](RuntimeSettings& s) { s.sharding.nan_policy = settings::NanPolicy::raise; },
       "rank 1 has NaN policy=raise, rank 0 has NaN policy=ignore"},
      {[](RuntimeSettings& s) { s.sharding.strategy = settings::Strategy::full_shard; },
       "rank 1 has strategy=full_shard, rank 0 has strategy=no_shard"},
      {[](RuntimeSettings& s) { s.sharding.loss_scaling.static_scale = 128.0; },
       "rank 1 has loss scale=torch 128 from 2^16, window 2000, hysteresis 1 in all, at least 0, "
       "rank 0 has loss scale=torch dynamic from 2^16, window 2000, hysteresis 1 in all, at least "
       "0"},
      {[](RuntimeSettings& s) { s.sharding.offload_optimizer = settings::OffloadDevice::cpu; },
       "rank 1 has offload of the optimizer=cpu, rank 0 has offload of the optimizer=none"},
      {[](RuntimeSettings& s) { s.sharding.gradient_accumulation_steps = 4; },
       "rank 1 has gradient accumulation steps=4, rank 0 has gradient accumulation steps=1"},
      {[](RuntimeSettings& s) { s.sharding.save_16bit_model = true; },
       "rank 1 has 16-bit model in checkpoints=true, rank 0 has 16-bit model in "
       "checkpoints=false"},
      {[](RuntimeSettings& s) {
         s.sharding.optimizer = {.type = "sgd", .lr = 0.5, .betas = {0.5, 0.75}};
       },
       "rank 1 has optimizer=sgd with lr 0.5, betas [0.5, 0.75], eps default, weight decay "
       "default, momentum default, rank 0 has optimizer=none with lr default, betas [], eps "
       "default, weight decay default, momentum default"},
      {[](RuntimeSettings& s) { s.sharding.schedule.total_num_steps = 9; },
       "rank 1 has schedule=none with warmup from lr default to default in default steps (log, "
       "from ratio default), 9 steps in all, least ratio default, rank 0 has schedule=none with "
       "warmup from lr default to default in default steps (log, from ratio default), default "
       "steps in all, least ratio default"}};
  for (const Row& row : rows) {
    CAPTURE(row.message);
    std::mutex mutex;
    std::multiset<std::string> said;
    CHECK_THROWS_AS(test::run_ranks({.world_size = 3, .num_machines = 1, .sharding = {}},
                                    [&](RuntimeSettings settings, auto store) {
                                      if (settings.identity.rank == 1) {
                                        row.change(settings);
                                      }
                                      try {
                                        Runtime::from_settings(settings, std::move(store));
                                      } catch (const Error& error) {
                                        const std::lock_guard lock(mutex);
                                        said.insert(error.what());
                                        throw;
                                      }
                                    }),
                    Error);
    CHECK(said.size() == 3);
    const std::string expected =
        std::string("the ranks of this job have different settings: ") + row.message;
    CHECK(said.count(expected) == 3);
  }
}

namespace {

/// A store in which another program has overwritten the number of the job's saves.
class ForgedStore : public rendezvous::HashStore {
 public:
  ForgedStore(const HashStore& store, std::string number)
      : HashStore(store), number_(std::move(number)) {}
  std::string get(std::string_view key, Milliseconds timeout) override {
    return key.ends_with("agreement/number") ? number_ : HashStore::get(key, timeout);
  }

 private:
  std::string number_;
};

}  // namespace

TEST_CASE("a store value that is not a number is an error with key and value") {
  for (const std::string number : {"", "x", "-1", "18446744073709551616", "7 ", "7x"}) {
    CAPTURE(number);
    std::string said;
    test::run_ranks({.world_size = 2, .num_machines = 1},
                    [&](RuntimeSettings settings, auto store) {
                      try {
                        if (settings.identity.rank == 0) {
                          // It waits in vain for rank 1, which needs only what it has written
                          // before.
                          settings.collective_timeout = std::chrono::seconds(1);
                        } else {
                          store = std::make_unique<ForgedStore>(
                              dynamic_cast<rendezvous::HashStore&>(*store), number);
                        }
                        Runtime::from_settings(settings, std::move(store));
                      } catch (const Error& error) {
                        if (settings.identity.rank == 1) {
                          said = error.what();
                        }
                      }
                    });
    CHECK(said.find("agreement/number") != std::string::npos);
    CHECK(said.find("found '" + number + "'") != std::string::npos);
  }
}

TEST_CASE(
    "deterministic: sets the libraries' environment variables, except those that the user set") {
  const char* const kVariables[] = {"NCCL_ALGO",          "NCCL_PROTO",
                                    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
                                    "NCCL_NVLS_ENABLE",   "CUBLAS_WORKSPACE_CONFIG"};
  for (const char* variable : kVariables) {
    ::unsetenv(variable);
  }
  RuntimeSettings settings;
  Runtime::from_settings(settings);
  CHECK(std::getenv("NCCL_ALGO") == nullptr);
  ::setenv("NCCL_PROTO", "LL", 1);
  settings.sharding.deterministic = true;
  Runtime::from_settings(settings);
  CHECK(std::string(std::getenv("NCCL_ALGO")) == "Ring");
  CHECK(std::string(std::getenv("NCCL_PROTO")) == "LL");
  CHECK(std::string(std::getenv("CUBLAS_WORKSPACE_CONFIG")) == ":4096:8");
  for (const char* variable : kVariables) {
    ::unsetenv(variable);
  }
}
