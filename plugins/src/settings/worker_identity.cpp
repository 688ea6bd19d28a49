// SPDX-License-Identifier: Apache-2.0
#include "acc/base/token.hpp"
#include "acc/settings/settings.hpp"
#include "settings/variables.hpp"

#include <limits>
#include <numeric>

namespace acc::settings {
namespace {

// Decoding of the rank variables of torchrun (RANK, LOCAL_RANK, GROUP_RANK, ...) and of DeepSpeed's
// launcher (LOCAL_SIZE, CROSS_RANK, CROSS_SIZE). Every value is checked against the others, because
// a wrong rank would otherwise make the first collective hang.

/// Reads variables. A wrong value becomes a fault and the fallback is used, so that all faults are
/// found in one pass.
class IdentityReader {
 public:
  IdentityReader(const Environment& environment, Faults& faults)
      : environment_(environment), faults_(faults) {}

  int number(std::string_view name, int fallback, int low,
             int high = std::numeric_limits<int>::max()) {
    const std::string* value = value_of(environment_, name);
    if (value == nullptr) {
      return fallback;
    }
    const auto parsed = parse_integer(*value);
    if (parsed && *parsed >= low && *parsed <= high) {
      return static_cast<int>(*parsed);
    }
    faults_.collect([&] {
      const std::string range = high == std::numeric_limits<int>::max()
                                    ? " of at least " + std::to_string(low)
                                    : " " + std::to_string(low) + ".." + std::to_string(high);
      throw bad_variable(name, *value, "an integer" + range);
    });
    return fallback;
  }

  /// Returns torchrun's name of a variable, or DeepSpeed's if only that is set.
  std::string_view either(std::string_view name, std::string_view deepspeed_name) const {
    const bool deepspeed = value_of(environment_, name) == nullptr &&
                           value_of(environment_, deepspeed_name) != nullptr &&
                           value_of(environment_, "WORLD_SIZE") != nullptr;
    return deepspeed ? deepspeed_name : name;
  }

  std::string text(std::string_view name, std::string fallback) {
    const std::string* value = value_of(environment_, name);
    return value == nullptr ? std::move(fallback) : *value;
  }

 private:
  const Environment& environment_;
  Faults& faults_;
};

/// Returns the number of ranks of each machine, or an empty list if all have the same number.
/// torchrun's variables give a worker only the number of machines, so a job with different numbers
/// needs kLocalWorldSizesVariable.
std::vector<int> read_local_world_sizes(const Environment& environment,
                                        const WorkerIdentity& identity) {
  const std::string* text = value_of(environment, kLocalWorldSizesVariable);
  if (text == nullptr) {
    if (identity.num_nodes > 1 &&
        identity.local_world_size * identity.num_nodes != identity.world_size) {
      throw Error(Errc::config,
                  "the " + std::to_string(identity.num_nodes) +
                      " machines have different numbers of the " +
                      std::to_string(identity.world_size) + " ranks, but " +
                      std::string(kLocalWorldSizesVariable) +
                      ", which acclaunch sets to the number of ranks of each machine, is not set");
    }
    return {};
  }
  std::vector<int> sizes;
  for (const std::string_view part : split(*text, ',')) {
    sizes.push_back(static_cast<int>(parse_integer(part).value_or(0)));
  }
  const auto node = static_cast<std::size_t>(identity.node_rank);
  if (std::ssize(sizes) != identity.num_nodes || sizes[node] != identity.local_world_size ||
      std::accumulate(sizes.begin(), sizes.end(), 0) != identity.world_size) {
    throw bad_variable(kLocalWorldSizesVariable, *text,
                       "the LOCAL_WORLD_SIZE of each of the " + std::to_string(identity.num_nodes) +
                           " machines, " + std::to_string(identity.world_size) + " in all");
  }
  return sizes;
}

}  // namespace

// Defaults describe a single process that no launcher started: rank 0 of 1.
WorkerIdentity read_identity(const Environment& environment, Faults& faults) {
  IdentityReader reader(environment, faults);
  WorkerIdentity identity;
  identity.world_size = reader.number("WORLD_SIZE", 1, 1);
  identity.rank = reader.number("RANK", 0, 0, identity.world_size - 1);
  identity.local_world_size = reader.number(reader.either("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
                                            identity.world_size, 1, identity.world_size);
  identity.local_rank = reader.number("LOCAL_RANK", 0, 0, identity.local_world_size - 1);
  identity.num_nodes = reader.number(reader.either("GROUP_WORLD_SIZE", "CROSS_SIZE"), 1, 1);
  identity.node_rank =
      reader.number(reader.either("GROUP_RANK", "CROSS_RANK"), 0, 0, identity.num_nodes - 1);
  identity.master_addr = reader.text("MASTER_ADDR", "");
  identity.master_port = static_cast<std::uint16_t>(reader.number("MASTER_PORT", 0, 0, 65535));
  identity.run_id = reader.text("TORCHELASTIC_RUN_ID", "none");
  identity.restart_count = reader.number("TORCHELASTIC_RESTART_COUNT", 0, 0);
  identity.job_secret = reader.text(kJobSecretVariable, "");
  if (!identity.job_secret.empty() && !is_token(identity.job_secret)) {
    faults.collect([] {  // the message must not print the secret
      throw Error(Errc::config, std::string(kJobSecretVariable) +
                                    " must be 32 hexadecimal digits, as acclaunch sets it");
    });
  }
  faults.collect(
      [&] { identity.local_world_sizes = read_local_world_sizes(environment, identity); });
  return identity;
}

}  // namespace acc::settings
