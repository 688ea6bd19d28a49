// SPDX-License-Identifier: Apache-2.0
#include "model/declaration.hpp"

#include "acc/base/error.hpp"
#include "sharding/initial_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>

namespace acc::model {
namespace {

/// Number of differences that a message lists; it states the number of the others.
constexpr std::size_t kListed = 3;

/// Each name and value ends with a NUL.
std::string encode(const Declaration& declaration) {
  std::string text;
  for (const auto& [name, value] : declaration) {
    text.append(name).append(1, '\0').append(value).append(1, '\0');
  }
  return text;
}

Declaration decode(std::string_view text) {
  Declaration declaration;
  const auto next = [&text] {
    const std::size_t end = std::min(text.find('\0'), text.size());
    std::string word(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  while (!text.empty()) {
    std::string name = next();
    declaration.emplace_back(std::move(name), next());
  }
  return declaration;
}

/// Returns rank `root`'s `own` on every rank. nbytes: length of that rank's text.
std::string broadcast(const sharding::Context& context, const std::string& own, std::size_t nbytes,
                      int root) {
  device::Device& device = *context.device;
  const auto memory = device.allocate(nbytes, "declared parameters");
  if (context.groups.world->rank() == root) {
    device.copy(memory->data(), own.data(), nbytes, device.compute());
  }
  context.groups.world->broadcast(memory->data(), nbytes, root)->wait_released();
  std::string text(nbytes, '\0');
  device.copy(text.data(), memory->data(), nbytes, device.compute());
  device.record(device.compute())->synchronize();
  return text;
}

}  // namespace

std::vector<std::string> differences(const Declaration& here, const Declaration& other,
                                     const std::string& there) {
  const std::map<std::string, std::string> ours(here.begin(), here.end());
  const std::map<std::string, std::string> theirs(other.begin(), other.end());
  std::vector<std::string> found;
  for (const auto& [name, value] : here) {
    const auto same = theirs.find(name);
    if (same == theirs.end()) {
      found.push_back(fmt::format("{} is {} here, not declared {}", name, value, there));
    } else if (same->second != value) {
      found.push_back(fmt::format("{} is {} here, {} {}", name, value, same->second, there));
    }
  }
  for (const auto& [name, value] : other) {
    if (!ours.contains(name)) {
      found.push_back(fmt::format("{} is not declared here, {} {}", name, value, there));
    }
  }
  // The names and descriptions agree: only the order can differ.
  for (std::size_t i = 0; found.empty() && i < std::min(here.size(), other.size()); ++i) {
    if (here[i].first != other[i].first) {
      found.push_back(fmt::format("{} comes before {} here, after it {}", here[i].first,
                                  other[i].first, there));
    }
  }
  return found;
}

void check_declared_alike(const sharding::Context& context, const Declaration& own,
                          std::string_view what) {
  const auto& identity = context.settings.identity;
  if (identity.world_size == 1) {
    return;
  }
  const std::string text = encode(own);
  const std::uint64_t hash = sharding::stream_of(text, 0);
  // A double holds integers up to 2^53 exactly, so the hash is sent in halves.
  const double figures[] = {static_cast<double>(hash >> 32U),
                            static_cast<double>(hash & 0xffffffffU),
                            static_cast<double>(text.size())};
  constexpr std::size_t kFigures = std::size(figures);
  const auto all = sharding::all_gather(context.groups, *context.device, figures);
  const auto of_rank = [&](std::size_t rank) { return all.data() + rank * kFigures; };
  std::size_t differs = 1;
  const auto world = static_cast<std::size_t>(identity.world_size);
  while (differs < world && std::equal(of_rank(0), of_rank(0) + kFigures, of_rank(differs))) {
    ++differs;
  }
  if (differs == world) {
    return;
  }
  // All ranks have the same hashes, so all of them agree on the rank that differs and take part in
  // these broadcasts.
  const auto text_of = [&](std::size_t rank) {
    return broadcast(context, text, static_cast<std::size_t>(of_rank(rank)[kFigures - 1]),
                     static_cast<int>(rank));
  };
  const std::string first = text_of(0);
  const std::string other = text_of(differs);
  const bool as_first = text == first;
  std::vector<std::string> found = differences(own, decode(as_first ? other : first),
                                               fmt::format("on rank {}", as_first ? differs : 0));
  const std::size_t more = found.size() - std::min(found.size(), kListed);
  found.resize(found.size() - more);
  throw Error(Errc::disagreement,
              fmt::format("{}{}{}", what, fmt::join(found, "; "),
                          more > 0 ? fmt::format("; and {} more", more) : ""),
              static_cast<int>(differs));
}

}  // namespace acc::model
