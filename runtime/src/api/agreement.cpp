#include "api/agreement.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <span>
#include <string_view>

namespace acc::detail {
namespace {

std::string in_words(const plugins::LossScaling& scaling) {
  return fmt::format(
      "{} {} from 2^{}, window {}, hysteresis {} {}, at least {}",
      scaling.rule == plugins::LossScaleRule::deepspeed ? "deepspeed" : "torch",
      scaling.static_scale > 0.0 ? fmt::format("{}", scaling.static_scale) : std::string("dynamic"),
      scaling.initial_scale_power, scaling.window, scaling.hysteresis,
      scaling.consecutive_hysteresis ? "consecutive" : "in all", scaling.min_scale);
}

/// The program's plugin and its values. The launchers of a job have compared their own settings;
/// the values that programs set are compared only here.
std::string program_plugin(const plugins::RuntimeSettings& settings) {
  return settings.program_plugin.empty() ? "none"
                                         : fmt::format("{} with {}", settings.program_plugin,
                                                       fmt::join(settings.program_values, ", "));
}

using Terms = std::vector<std::pair<std::string, std::string>>;

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

Terms agreed_terms(const plugins::RuntimeSettings& settings) {
  const plugins::ShardingSettings& sharding = settings.sharding;
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {
      {"libacc_runtime", ACC_VERSION},
      {"the program's plugin", program_plugin(settings)},
      {"device", std::string(to_string(settings.device))},
      {"strategy", std::string(to_string(sharding.strategy))},
      {"shard size", number(sharding.shard_size)},
      {"hpZ partition size", number(sharding.hpz_partition_size)},
      {"reshard size", number(sharding.reshard_size)},
      {"mixed precision", std::string(to_string(sharding.mixed_precision))},
      {"reduce precision",
       sharding.reduce_precision ? std::string(to_string(*sharding.reduce_precision)) : "default"},
      {"stochastic rounding", number(sharding.stochastic_rounding)},
      {"initial weights rounded", number(sharding.round_initial_weights)},
      {"loss scale", in_words(sharding.loss_scaling)},
      {"offload of parameters", std::string(to_string(sharding.offload_param))},
      {"offload of the optimizer", std::string(to_string(sharding.offload_optimizer))},
      {"NaN policy", std::string(to_string(sharding.nan_policy))},
      {"gradient accumulation steps", number(sharding.gradient_accumulation_steps)},
      {"gradient clipping",
       sharding.gradient_clipping ? number(*sharding.gradient_clipping) : "the program's"},
      {"reduce bucket size", number(sharding.reduce_bucket_size)},
      {"allgather bucket size", number(sharding.allgather_bucket_size)},
      {"prefetch bucket size", number(sharding.prefetch_bucket_size)},
      {"parameter persistence threshold", number(sharding.param_persistence_threshold)},
      {"model persistence threshold", number(sharding.model_persistence_threshold)},
      {"overlap of communication", number(sharding.overlap_comm)},
      {"contiguous gradients", number(sharding.contiguous_gradients)},
      {"round robin gradients", number(sharding.round_robin_gradients)},
      {"wrap policy", std::string(to_string(sharding.wrap_policy))},
      {"classes to wrap", fmt::format("{}", fmt::join(sharding.transformer_layer_classes, ","))},
      {"min num params", number(sharding.min_num_params)},
      {"ignored modules", sharding.ignored_modules},
      {"original parameters", number(sharding.use_orig_params)},
      {"activation checkpointing", number(sharding.activation_checkpointing)},
      {"state dict type", std::string(to_string(sharding.state_dict_type))},
      {"sync module states", number(sharding.sync_module_states)},
      {"cpu ram efficient loading", number(sharding.cpu_ram_efficient_loading)},
      {"max live parameters", number(sharding.max_live_parameters)},
      {"max reuse distance", number(sharding.max_reuse_distance)},
      {"backward prefetch", std::string(to_string(sharding.backward_prefetch))},
      {"forward prefetch", number(sharding.forward_prefetch)},
      {"gathers by copy", number(settings.copy_gathers)},
      {"deterministic", number(settings.deterministic)}};
}

void check_agreement(const plugins::RuntimeSettings& settings, rendezvous::Store& store) {
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
    throw Error(Errc::config, store.get(fault_key, settings.collective_timeout));
  }
}

std::uint32_t agree_on_number(const plugins::WorkerIdentity& identity,
                              std::chrono::milliseconds timeout, rendezvous::Store* store) {
  const std::uint32_t own = std::random_device{}();
  if (identity.world_size == 1 || store == nullptr) {
    return own;
  }
  const std::string key = "agreement/number";
  if (identity.rank == 0) {
    store->set(key, std::to_string(own));
    return own;
  }
  const std::string text = store->get(key, timeout);
  std::uint32_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) {
    throw Error(Errc::protocol, fmt::format("the rendezvous store's key {} must contain a 32-bit "
                                            "number written by rank 0, found '{}': another "
                                            "program writes to the store of this job",
                                            key, text.substr(0, 64)));
  }
  return number;
}

}  // namespace acc::detail
