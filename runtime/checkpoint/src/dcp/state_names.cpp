// SPDX-License-Identifier: Apache-2.0
#include "dcp/state_names.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace acc::checkpoint::dcp {

// A DCP folder stores a flattened state dict. This file maps its names to parameters, moments and
// groups. Writers differ in the keys above them: "model.X", "app.model.X", "module.X" or X alone.
// With planner_data the paths say what is a key; without it, only the dots in the names do, and a
// parameter may itself be called "model.X".
namespace {

bool is_model(std::string_view key) {
  return key == "model";
}
bool is_optimizer(std::string_view key) {
  return key == "optimizer" || key == "optim";
}

/// An entry's name and path without the keys above it that are stripped already.
struct Rest {
  Path path;  // empty: unknown
  std::string name;

  /// Returns the first key if anything is below it.
  [[nodiscard]] std::optional<std::string> top() const {
    if (path.size() > 1) {
      const auto* key = std::get_if<std::string>(&path.front());
      return key == nullptr ? std::nullopt : std::optional(*key);
    }
    const std::size_t dot = path.empty() ? name.find('.') : name.npos;
    return dot == name.npos ? std::nullopt : std::optional(name.substr(0, dot));
  }
  void drop(const std::string& key) {
    if (!path.empty()) {
      path.erase(path.begin());
    }
    name.erase(0, key.size() + 1);
  }
};

// Returns the key above all entries, if it can be stripped: it is not the optimizer's, and either
// the paths show that it is a key, or it is "model".
std::optional<std::string> common_top(const std::vector<Rest>& rests) {
  const auto top = rests.empty() ? std::nullopt : rests.front().top();
  const auto shares = [&](const Rest& rest) {
    return rest.top() == top && (!rest.path.empty() || *top == "model");
  };
  return top && !is_optimizer(*top) && std::ranges::all_of(rests, shares) ? top : std::nullopt;
}

// True if the folder has a part of that name. If there are no paths, "model." may be the beginning
// of a parameter's name; then all entries must be in a model or an optimizer.
bool has_part(const std::vector<Rest>& rests, bool (*is_part)(std::string_view)) {
  const auto is = [](const Rest& rest, auto test) {
    const auto top = rest.top();
    return top && test(*top);
  };
  const bool parts_only = std::ranges::all_of(
      rests, [&](const Rest& rest) { return is(rest, is_model) || is(rest, is_optimizer); });
  return std::ranges::any_of(rests, [&](const Rest& rest) {
    return is(rest, is_part) && (!rest.path.empty() || parts_only);
  });
}

// Splits "state.X.KIND", "param_groups.0.KEY", and "param_groups.X.KEY" of torch's
// flatten_optimizer_state_dict, which is a single key.
StateName optimizer_name(const Rest& rest) {
  constexpr std::string_view kState = "state.", kGroups = "param_groups.";
  if (rest.name.starts_with(kState)) {
    const std::size_t dot = rest.name.rfind('.');
    if (dot > kState.size()) {
      return {.name = rest.name.substr(kState.size(), dot - kState.size()),
              .kind = rest.name.substr(dot + 1),
              .key = {}};
    }
  } else if (rest.name.starts_with(kGroups)) {
    const char* end = rest.name.data() + rest.name.size();
    std::size_t group = 0;
    const auto number = std::from_chars(rest.name.data() + kGroups.size(), end, group);
    const bool is_list = rest.path.size() != 1;
    if (is_list && number.ec == std::errc() && number.ptr + 1 < end && *number.ptr == '.') {
      return {.name = rest.name,
              .kind = "group",
              .group = group,
              .key = std::string(number.ptr + 1, end)};
    }
    if (const std::size_t dot = rest.name.rfind('.'); dot > kGroups.size()) {
      return {.name = rest.name,
              .kind = "group",
              .key = rest.name.substr(dot + 1),
              .parameter = rest.name.substr(kGroups.size(), dot - kGroups.size())};
    }
  }
  return {.name = rest.name, .kind = "value", .key = {}};
}

}  // namespace

std::vector<StateName> state_names(const std::vector<Entry>& entries) {
  std::vector<Rest> rests;
  rests.reserve(entries.size());
  for (const Entry& entry : entries) {
    rests.push_back({.path = entry.path, .name = entry.name});
  }
  // Strips keys that all entries share, from the outside in, up to and including "model".
  bool stripped_model = false;
  while (const auto top = common_top(rests)) {
    std::ranges::for_each(rests, [&](Rest& rest) { rest.drop(*top); });
    if (stripped_model = *top == "model"; stripped_model) {
      break;
    }
  }
  const bool has_model = !stripped_model && has_part(rests, is_model);
  const bool has_optimizer = !stripped_model && has_part(rests, is_optimizer);
  std::vector<StateName> names;
  for (std::size_t i = 0; i < rests.size(); ++i) {
    Rest& rest = rests[i];
    const std::string top = rest.top().value_or("");
    if (has_optimizer && is_optimizer(top)) {
      rest.drop(top);
      names.push_back(optimizer_name(rest));
    } else if (has_model && is_model(top)) {
      rest.drop(top);
      names.push_back({.name = rest.name, .kind = "param", .key = {}});
    } else {
      const bool is_parameter = entries[i].is_tensor && !has_model;
      names.push_back({.name = is_parameter ? rest.name : entries[i].name,
                       .kind = is_parameter ? "param" : "value",
                       .key = {}});
    }
  }
  return names;
}

}  // namespace acc::checkpoint::dcp
