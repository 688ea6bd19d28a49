// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/parameter_names.hpp"
#include "state_dict/stored_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace acc::state_dict {
namespace {

using Parameters = std::vector<const sharding::ParameterRecord*>;
using Shapes = std::map<std::string, Shape>;  ///< number -> shape of its state
using DeclaredGroup = detail::OptimizerState::DeclaredGroup;

Parameters trained(const Parameters& parameters) {
  Parameters found;
  std::ranges::copy_if(parameters, std::back_inserter(found),
                       [](const auto* each) { return each->trainable; });
  return found;
}

bool fits(const std::vector<std::string>& numbers, const Parameters& parameters,
          const Shapes& shapes) {
  return std::ranges::equal(numbers, parameters, [&](const std::string& number, const auto* each) {
    const auto shape = shapes.find(number);
    return shape == shapes.end() || shape->second == each->shape;
  });
}

/// Returns the parameters that the numbers of a group stand for: all, or the trained ones; none if
/// neither fit.
Parameters matched(const std::vector<std::string>& numbers, const Parameters& all,
                   const Shapes& shapes) {
  for (const Parameters& candidates : {all, trained(all)}) {
    if (fits(numbers, candidates, shapes)) {
      return candidates;
    }
  }
  return {};
}

/// True if the group has stored this value under the key.
bool has_value(const StoredGroup& group, const std::string& key, double value) {
  const auto found = group.hyper_parameters.find(key);
  return found != group.hyper_parameters.end() && found->second == value;
}

/// Finds the declared group of each stored one.
class GroupMatch {
 public:
  GroupMatch(const Stored& stored, std::vector<DeclaredGroup> declared)
      : stored_(stored),
        declared_(std::move(declared)),
        shapes_(shapes_by_number(stored.catalog)) {}

  std::map<std::string, std::string> names() const;

 private:
  using Candidates = std::vector<std::size_t>;  ///< indices of declared groups

  [[nodiscard]] Parameters of_one_group(const std::vector<std::string>& numbers) const;
  [[nodiscard]] Candidates candidates_of(const StoredGroup& group) const;
  void narrow(Candidates& candidates, const std::function<bool(const DeclaredGroup&)>& same) const;
  [[noreturn]] void fail(const std::string& what) const;

  const Stored& stored_;
  std::vector<DeclaredGroup> declared_;
  Shapes shapes_;
};

void GroupMatch::fail(const std::string& what) const {
  std::vector<std::size_t> sizes;
  for (const DeclaredGroup& group : declared_) {
    sizes.push_back(group.parameters.size());
  }
  throw Error(
      Errc::config,
      fmt::format("{}: the optimizer's state has numbers and no names (param_names), and {}; "
                  "this program declares groups of {} parameters. Make the optimizer with "
                  "the groups of the program that saved, or load the weights alone",
                  stored_.path.string(), what, fmt::join(sizes, " and ")));
}

/// A single group has been passed all parameters of the model, whatever groups this program has.
Parameters GroupMatch::of_one_group(const std::vector<std::string>& numbers) const {
  Parameters all;
  for (const DeclaredGroup& group : declared_) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  std::ranges::sort(all, {}, &sharding::ParameterRecord::declared);
  Parameters found = matched(numbers, all, shapes_);
  if (found.empty()) {
    fail(
        fmt::format("its {} parameters do not fit the {} of this program ({} of them trained) in "
                    "number and shapes",
                    numbers.size(), all.size(), trained(all).size()));
  }
  return found;
}

/// Keeps the candidates for which `same` holds, if there are any.
void GroupMatch::narrow(Candidates& candidates,
                        const std::function<bool(const DeclaredGroup&)>& same) const {
  Candidates kept;
  std::ranges::copy_if(candidates, std::back_inserter(kept),
                       [&](std::size_t i) { return same(declared_[i]); });
  if (!kept.empty()) {
    candidates = std::move(kept);
  }
}

// A schedule changes the rates of both runs; torch keeps its base as initial_lr.
GroupMatch::Candidates GroupMatch::candidates_of(const StoredGroup& group) const {
  Candidates found;
  for (std::size_t i = 0; i < declared_.size(); ++i) {
    if (!matched(group.numbers, declared_[i].parameters, shapes_).empty()) {
      found.push_back(i);
    }
  }
  if (found.size() > 1) {
    narrow(found, [&](const DeclaredGroup& declared) {
      return has_value(group, "weight_decay", declared.hyper_parameters.at("weight_decay"));
    });
  }
  if (found.size() > 1) {
    narrow(found, [&](const DeclaredGroup& declared) {
      return has_value(group, "initial_lr", declared.base_lr) ||
             has_value(group, "lr", declared.hyper_parameters.at("lr"));
    });
  }
  return found;
}

std::map<std::string, std::string> GroupMatch::names() const {
  std::map<std::string, std::string> names;
  const auto add = [&](const std::vector<std::string>& numbers, const Parameters& parameters) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      names[numbers[i]] = parameters[i]->name;
    }
  };
  const std::vector<StoredGroup>& groups = stored_.training.groups;
  if (groups.size() == 1) {
    add(groups[0].numbers, of_one_group(groups[0].numbers));
    return names;
  }
  std::set<std::size_t> taken;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].numbers.empty()) {
      continue;
    }
    const Candidates found = candidates_of(groups[g]);
    if (found.size() != 1 || !taken.insert(found[0]).second) {
      fail(fmt::format("its group {} of {} parameters fits {} of this program", g,
                       groups[g].numbers.size(),
                       found.empty() ? "no group" : "more than one group"));
    }
    add(groups[g].numbers, matched(groups[g].numbers, declared_[found[0]].parameters, shapes_));
  }
  return names;
}

}  // namespace

void StoredModel::name_by(const detail::OptimizerState& optimizer) {
  if (!stored_.training.names_unknown.empty()) {
    name_parameters(stored_.catalog, stored_.training,
                    GroupMatch(stored_, optimizer.declared_groups()).names());
  }
}

}  // namespace acc::state_dict
