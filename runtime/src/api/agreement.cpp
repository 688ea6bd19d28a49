// SPDX-License-Identifier: Apache-2.0
#include "api/agreement.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/settings/settings_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::detail {
namespace {

std::string in_words(const settings::LossScaling& scaling) {
  const auto& [rule, static_scale, power, window, hysteresis, consecutive, min_scale] = scaling;
  return fmt::format("{} {} from 2^{}, window {}, hysteresis {} {}, at least {}",
                     rule == settings::LossScaleRule::deepspeed ? "deepspeed" : "torch",
                     static_scale > 0.0 ? fmt::format("{}", static_scale) : std::string("dynamic"),
                     power, window, hysteresis, consecutive ? "consecutive" : "in all", min_scale);
}

/// A value that may be absent; the optimizer or schedule then uses its own default.
template <typename Value>
std::string in_words(const std::optional<Value>& value) {
  return value ? fmt::format("{}", *value) : "default";
}

std::string in_words(const settings::OptimizerChoice& choice) {
  const auto& [type, lr, betas, eps, weight_decay, momentum, values] = choice;
  return fmt::format("{} with lr {}, betas [{}], eps {}, weight decay {}, momentum {}{}{}",
                     type.empty() ? "none" : type, in_words(lr), fmt::join(betas, ", "),
                     in_words(eps), in_words(weight_decay), in_words(momentum),
                     values.empty() ? "" : ", ", values);
}

std::string in_words(const settings::ScheduleChoice& choice) {
  const auto& [type, min_lr, max_lr, warmup_steps, warmup_type, total_steps, min_ratio, cos_ratio,
               values] = choice;
  return fmt::format(
      "{} with warmup from lr {} to {} in {} steps ({}, from ratio {}), {} steps in all, least "
      "ratio {}{}{}",
      type.empty() ? "none" : type, in_words(min_lr), in_words(max_lr), in_words(warmup_steps),
      warmup_type, in_words(min_ratio), in_words(total_steps), in_words(cos_ratio),
      values.empty() ? "" : ", ", values);
}

/// The program's plugin and its values. The launchers of a job have compared their own settings;
/// the values that programs set are compared only here.
std::string in_words(const std::string& plugin, const std::vector<std::string>& values) {
  return plugin.empty() ? "none" : fmt::format("{} with {}", plugin, fmt::join(values, ", "));
}

using Terms = std::vector<std::pair<std::string, std::string>>;

/// Returns the settings that must be equal on all ranks, as pairs of name and value in the words of
/// error messages. The test `structure` fails if a member of ShardingSettings is neither here nor
/// in a row of the settings table (SettingRow::engine). All others may differ: they change neither
/// the collectives of a rank nor its results. choose_route makes one choice from all ranks'
/// device_collectives.
Terms agreed_terms(const settings::RuntimeSettings& settings) {
  const settings::ShardingSettings& sharding = settings.sharding;
  const auto number = [](auto value) { return fmt::format("{}", value); };
  Terms terms = {
      {"libacc_runtime", ACC_VERSION},
      {"the program's plugin", in_words(settings.program_plugin, settings.program_values)},
      {"device", std::string(to_string(settings.device))},
      {"strategy", std::string(to_string(sharding.strategy))},
      {"shard size", number(sharding.shard_size)},
      {"reshard size", number(sharding.reshard_size)},
      {"reduce precision",
       sharding.reduce_precision ? std::string(to_string(*sharding.reduce_precision)) : "default"},
      {"initial weights rounded", number(sharding.round_initial_weights)},
      {"loss scale", in_words(sharding.loss_scaling)},
      {"optimizer", in_words(sharding.optimizer)},
      {"schedule", in_words(sharding.schedule)},
      {"gathers by copy", number(settings.copy_gathers)},
      {"gathers of NCCL without multiprocessors", number(settings.nccl.zero_sm)},
      {"shared resources of NCCL", number(settings.nccl.split_share)}};
  for (const settings::SettingRow& row : settings::settings_table()) {
    if (!row.engine.term.empty()) {
      terms.emplace_back(row.engine.term, row.engine.text(sharding));
    }
  }
  return terms;
}

/// One line "name=value" per setting.
std::string encode(const Terms& terms) {
  std::string text;
  for (const auto& [name, value] : terms) {
    text += name + "=" + value + "\n";
  }
  return text;
}

/// Returns the first lines in which two encodings differ. Both lines are of the same setting,
/// unless the ranks run different versions of the library.
std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const std::string_view x = a.substr(0, a.find('\n'));
    const std::string_view y = b.substr(0, b.find('\n'));
    if (x != y) {
      return {std::string(x), std::string(y)};
    }
    a.remove_prefix(std::min(x.size() + 1, a.size()));
    b.remove_prefix(std::min(y.size() + 1, b.size()));
  }
  return {};
}

}  // namespace

void check_agreement(const settings::RuntimeSettings& settings, rendezvous::Store& store) {
  const auto& identity = settings.identity;
  if (identity.world_size == 1) {
    return;
  }
  // Rank 0 publishes its settings and every other rank compares. The first rank that differs writes
  // the fault (compare_set keeps the first). After the barrier every rank has compared, so all
  // ranks see the same fault, or none.
  const std::string own = encode(agreed_terms(settings));
  const std::string terms_key = "agreement/terms";
  const std::string fault_key = "agreement/fault";
  if (identity.rank == 0) {
    store.set(terms_key, own);
  } else if (const std::string first = store.get(terms_key, settings.collective_timeout);
             first != own) {
    const auto [theirs, ours] = first_difference(first, own);
    store.compare_set(fault_key, "",
                      fmt::format("the ranks of this job have different settings: rank {} has {}, "
                                  "rank 0 has {}",
                                  identity.rank, ours, theirs));
  }
  store.barrier("agreement/met", identity.world_size, settings.collective_timeout);
  if (store.check(std::span(&fault_key, 1))) {
    throw Error(Errc::disagreement, store.get(fault_key, settings.collective_timeout));
  }
}

std::uint64_t agree_on_number(const settings::WorkerIdentity& identity, std::uint32_t round,
                              std::chrono::milliseconds timeout, rendezvous::Store* store) {
  const std::uint64_t own = (std::uint64_t{round} << 32U) | std::random_device{}();
  if (identity.world_size == 1 || store == nullptr) {
    return own;
  }
  const std::string key = "agreement/number";
  if (identity.rank == 0) {
    store->set(key, std::to_string(own));
    return own;
  }
  const std::string text = store->get(key, timeout);
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) {
    throw Error(Errc::protocol, fmt::format("the rendezvous store's key {} must contain a 64-bit "
                                            "number written by rank 0, found '{}': another "
                                            "program writes to the store of this job",
                                            key, text.substr(0, 64)));
  }
  return number;
}

}  // namespace acc::detail
