// SPDX-License-Identifier: Apache-2.0
#include "optim/step_recording.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/written_file.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>

namespace acc::optim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kPart = 1U << 16U;  ///< elements that are read at once

/// Number of an optimizer among those of this rank, in this process, that are recorded.
int next_number(const std::filesystem::path& folder, int rank) {
  static std::mutex mutex;
  static std::map<std::pair<std::filesystem::path, int>, int> numbers;
  const std::lock_guard lock(mutex);
  return numbers[{folder, rank}]++;
}

Json json_of(double value) {
  return std::isfinite(value) ? Json(value)
         : std::isnan(value)  ? Json("nan")
                              : Json(value > 0.0 ? "inf" : "-inf");
}

Json json_of(const std::array<double, 4>& numbers) {
  Json all = Json::array();
  for (const double number : numbers) {
    all.push_back(json_of(number));
  }
  return all;
}

}  // namespace

StepRecording::StepRecording(const sharding::Context& context,
                             const std::vector<const sharding::ParameterRecord*>& parameters,
                             const std::vector<std::string>& units)
    : context_(context), file_(nullptr, &std::fclose) {
  const std::filesystem::path folder = context.settings.recording.folder;
  const int rank = context.settings.identity.rank;
  if (std::error_code error; !std::filesystem::create_directories(folder, error) && error) {
    throw Error(Errc::config, fmt::format("ACC_RECORD: cannot create the folder {}: {}",
                                          folder.string(), error.message()));
  }
  const int number = next_number(folder, rank);
  path_ = folder / fmt::format("rank_{}.runtime{}.jsonl", rank, number);
  file_.reset(::fdopen(open_file(path_, O_WRONLY | O_TRUNC).release(), "w"));
  add({{"kind", "program"},
       {"version", 1},
       {"rank", rank},
       {"world_size", context.settings.identity.world_size},
       {"engine", "native"},
       {"framework", {{"acclaunch", ACC_VERSION}}},
       {"arguments", Json::array()},
       {"steps", context.settings.recording.steps},
       {"random", "keep"}});
  Json declared = Json::array();
  for (const sharding::ParameterRecord* each : parameters) {
    shapes_[each->name] = each->shape;
    const auto describe = [&](const std::string& name) {
      return Json{{"name", name},
                  {"shape", each->shape},
                  {"dtype", to_string(each->precision.stored)},
                  {"trained", each->trainable}};
    };
    declared.push_back(describe(each->name));
    for (const std::string& alias : each->aliases) {
      declared.push_back(describe(alias));
      declared.back()["same_as"] = each->name;
    }
  }
  Json modules = Json::array();
  for (const std::string& name : units) {
    modules.push_back({{"name", name}, {"class", "unit"}});
  }
  add({{"kind", "model"},
       {"name", number == 0 ? "" : fmt::format("Model{}", number)},
       {"wrapper", "acc"},
       {"parameters", std::move(declared)},
       {"buffers", Json::array()},
       {"modules", std::move(modules)}});
  write_lines();
}

StepRecording::~StepRecording() {
  try {
    add({{"kind", "end"}, {"reason", "exit"}});
    write_lines();
  } catch (const std::exception&) {  // the recording then has no end
  }
}

void StepRecording::begin_step(const std::vector<Group>& groups,
                               std::span<const ParameterShard> shards) {
  if (steps_ == 0) {
    add_weights("weights", shards);
  }
  int number = 0;
  for (const Group& group : groups) {
    Json settings = Json::object();
    for (const auto& [name, value] : group.settings) {
      if (name == "beta1" || name == "beta2") {
        settings["betas"].push_back(json_of(value));  // as torch has them
      } else {
        settings[name] = json_of(value);
      }
    }
    Json states = Json::object();
    for (const std::string& state : group.states) {
      states[state] = to_string(context_.precision.moments);
    }
    Json line = {{"kind", "group"},
                 {"step", steps_},
                 {"optimizer", group.optimizer},
                 {"number", number++},
                 {"settings", std::move(settings)},
                 {"state_dtypes", std::move(states)},
                 {"weight_dtype", to_string(context_.precision.stored)}};
    if (steps_ == 0) {
      line["names"] = group.parameters;
    }
    add(line);
  }
}

void StepRecording::add_gradients(std::span<const ParameterShard> shards, double factor) {
  for (const ParameterShard& shard : shards) {
    if (shard.gradient != nullptr && shard.numel > 0) {
      const Sketch found = sketch_of(shard.gradient, DType::float32, shard.numel, shard.offset);
      gradients_.push_back({shard, found.times(factor)});
    }
  }
}

bool StepRecording::end_step(std::span<const ParameterShard> shards, const StepInfo& info,
                             const Clipping& clipping) {
  for (const Gradient& each : gradients_) {
    add_tensor("gradient", each.shard, DType::float32, each.sketch.times(clipping.late));
  }
  gradients_.clear();
  const auto clip = [&](const char* function, double limit, const Json& norm) {
    if (limit > 0.0) {
      add({{"kind", "clip"},
           {"step", steps_},
           {"function", function},
           {"limit", limit},
           {"norm", norm},
           {"norm_type", norm.is_null() ? Json() : Json(2.0)}});
    }
  };
  clip("value", clipping.value, nullptr);
  clip("norm", clipping.norm, json_of(info.grad_norm));
  const std::map<Key, Sketch> before = weights_;
  add_weights("updated", shards);
  std::set<std::string> changed;
  for (const auto& [key, sketch] : weights_) {
    if (const auto found = before.find(key); found != before.end() && found->second != sketch) {
      changed.insert(key.first);
    }
  }
  add({{"kind", "step"},
       {"step", steps_},
       {"skipped", info.skipped},
       {"parameters", changed.size()}});
  const int wanted = context_.settings.recording.steps;
  const bool is_last = ++steps_ == wanted;
  if (is_last) {
    add({{"kind", "end"}, {"reason", "steps"}});
  }
  write_lines();
  return is_last;
}

void StepRecording::add_weights(const char* phase, std::span<const ParameterShard> shards) {
  for (const ParameterShard& shard : shards) {
    if (shard.numel > 0) {
      const Sketch found = sketch_of(shard.weights, shard.dtype, shard.numel, shard.offset);
      add_tensor(phase, shard, shard.dtype, found);
      weights_[{shard.name, shard.offset}] = found;
    }
  }
}

Sketch StepRecording::sketch_of(const void* values, DType dtype, std::int64_t numel,
                                std::int64_t begin) {
  Sketch sketch;
  const auto* from = static_cast<const std::byte*>(values);
  device::MemoryPtr host;
  if (!context_.updater->host_can_use(values)) {
    host = context_.updater->allocate_host(kPart * nbytes_of(dtype), "recording");
  }
  for (std::int64_t done = 0; done < numel;) {
    const std::size_t count = std::min(kPart, static_cast<std::size_t>(numel - done));
    const std::size_t nbytes = count * nbytes_of(dtype);
    const void* part = from;
    if (host) {
      context_.updater->copy(host->data(), from, nbytes, context_.updater->compute());
      context_.updater->synchronize();
      part = host->data();
    }
    values_.resize(count);
    kernels::cast(part, dtype, values_.data(), DType::float32, count);
    sketch.add(values_, begin + done);
    from += nbytes;
    done += static_cast<std::int64_t>(count);
  }
  return sketch;
}

void StepRecording::add_tensor(const char* phase, const ParameterShard& shard, DType dtype,
                               const Sketch& sketch) {
  Json line = {{"kind", "tensor"},
               {"step", steps_},
               {"phase", phase},
               {"name", shard.name},
               {"dtype", to_string(dtype)},
               {"count", shard.numel},
               {"squares", json_of(sketch.squares)},
               {"sketch", json_of(sketch.numbers)},
               {"begin", shard.offset},
               {"shape", shapes_.at(shard.name)}};
  add(line);
}

void StepRecording::add(const Json& line) {
  lines_ += lossy_text_of_json(line) + '\n';
}

void StepRecording::write_lines() {
  if (std::fwrite(lines_.data(), 1, lines_.size(), file_.get()) != lines_.size() ||
      std::fflush(file_.get()) != 0) {
    throw Error(Errc::config,
                fmt::format("ACC_RECORD: cannot write to {}: {}", path_, std::strerror(errno)));
  }
  lines_.clear();
}

}  // namespace acc::optim
