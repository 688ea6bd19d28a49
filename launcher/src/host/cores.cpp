#include "host/cores.hpp"

#include "acc/plugins/settings.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

namespace acc::launcher {

std::vector<int> parse_core_list(std::string_view text) {
  std::vector<int> cores;
  for (const std::string_view part : plugins::split(text, ',')) {
    const auto dash = std::min(part.find('-'), part.size());
    const auto first = plugins::parse_integer(part.substr(0, dash));
    const auto last = dash == part.size() ? first : plugins::parse_integer(part.substr(dash + 1));
    for (auto core = first.value_or(0); first && last && core <= *last; ++core) {
      cores.push_back(static_cast<int>(core));
    }
  }
  return cores;
}

std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) {
      ++last;
    }
    text += (i == 0 ? "" : ",") + std::to_string(cores[i]);
    if (last > i) {
      text += "-" + std::to_string(cores[last]);
    }
    i = last + 1;
  }
  return text;
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  if (cores.empty()) {
    cores.resize(static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

}  // namespace acc::launcher
