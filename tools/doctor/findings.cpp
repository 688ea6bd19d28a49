// SPDX-License-Identifier: Apache-2.0
#include "doctor/findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

namespace acc::doctor {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

using Figure = std::optional<double>;
using FigureOf = std::function<Figure(int, int)>;

/// A measured quantity in which smaller is better (latency, inverse bandwidth), and the threshold
/// above which it is slow: more than `factor` times the median and more than `at_least` above it.
struct Measure {
  FigureOf of;
  double factor;
  double at_least;
};

/// Finds slow machines and pairs. A machine whose best pair is slow compared to the best pairs of
/// all machines is slow itself. The pairs of the other machines are then compared with each other.
SlowLinks slow_by(const Measure& measure, int count) {
  SlowLinks slow;
  std::vector<Figure> best(static_cast<std::size_t>(count));
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      if (const Figure figure = a == b ? Figure() : measure.of(std::min(a, b), std::max(a, b))) {
        Figure& mine = best[static_cast<std::size_t>(a)];
        mine = std::min(mine.value_or(*figure), *figure);
      }
    }
  }
  const auto exceeds = [&](double figure, double usual) {
    return figure > usual * measure.factor && figure > usual + measure.at_least;
  };
  std::vector<double> bests;
  for (const Figure& each : best) {
    if (each) {
      bests.push_back(*each);
    }
  }
  for (int a = 0; a < count && !bests.empty(); ++a) {
    if (best[static_cast<std::size_t>(a)] &&
        exceeds(*best[static_cast<std::size_t>(a)], median(bests))) {
      slow.machines.push_back(a);
    }
  }
  std::vector<std::pair<std::pair<int, int>, double>> others;
  std::vector<double> figures;
  for (int a = 0; a < count; ++a) {
    for (int b = a + 1; b < count; ++b) {
      const bool told = std::ranges::count(slow.machines, a) + std::ranges::count(slow.machines, b);
      if (const Figure figure = measure.of(a, b); figure && !told) {
        others.push_back({{a, b}, *figure});
        figures.push_back(*figure);
      }
    }
  }
  for (const auto& [pair, figure] : others) {
    if (exceeds(figure, median(figures))) {
      slow.pairs.push_back(pair);
    }
  }
  return slow;
}

/// Adds the elements of `from` that `to` lacks, and sorts `to`.
void add_missing(std::vector<int>& to, const std::vector<int>& from) {
  for (const int each : from) {
    if (std::ranges::find(to, each) == to.end()) {
      to.push_back(each);
    }
  }
  std::ranges::sort(to);
}

}  // namespace

std::string_view to_string(Severity severity) noexcept {
  constexpr std::array<std::string_view, 3> kNames = {"error", "warning", "note"};
  return kNames[static_cast<std::size_t>(severity)];
}

SlowLinks slow_links(const Examination& examination) {
  const auto count = static_cast<int>(examination.machines.size());
  const auto seconds_a_bit = [&](int a, int b) -> Figure {
    const Figure gbps = examination.bandwidth_gbps(a, b);
    return gbps && *gbps > 0 ? Figure(1.0 / *gbps) : Figure();
  };
  const auto latency = [&](int a, int b) { return examination.latency_us(a, b); };
  SlowLinks all = slow_by({seconds_a_bit, 1.0 / kSlowBandwidth, 0.0}, count);
  const SlowLinks late = slow_by({latency, kSlowLatency, kSlowLatencyUs}, count);
  add_missing(all.machines, late.machines);
  for (const auto& pair : late.pairs) {
    if (std::ranges::find(all.pairs, pair) == all.pairs.end()) {
      all.pairs.push_back(pair);
    }
  }
  // A machine may be slow by one quantity only; its pairs are dropped for both.
  std::erase_if(all.pairs, [&](const auto& pair) {
    return std::ranges::count(all.machines, pair.first) +
               std::ranges::count(all.machines, pair.second) >
           0;
  });
  return all;
}

std::vector<std::optional<double>> clock_offsets_ms(const Examination& examination) {
  const std::size_t count = examination.machines.size();
  std::vector<std::optional<double>> offsets(count);
  std::vector<double> known;
  // Offsets are taken against one machine that answered, then shifted to the median.
  std::size_t reference = 0;
  while (reference < count && !examination.machines[reference]) {
    ++reference;
  }
  for (std::size_t machine = reference; machine < count; ++machine) {
    const auto a = static_cast<int>(reference);
    const auto b = static_cast<int>(machine);
    const PairFacts* there = examination.pair(a, b);
    const PairFacts* back = examination.pair(b, a);
    if (machine == reference) {
      offsets[machine] = 0.0;
    } else if (there != nullptr && there->clock_offset_ms) {
      offsets[machine] = there->clock_offset_ms;
    } else if (back != nullptr && back->clock_offset_ms) {
      offsets[machine] = -*back->clock_offset_ms;
    }
    if (offsets[machine]) {
      known.push_back(*offsets[machine]);
    }
  }
  if (!known.empty()) {
    const double middle = median(known);
    for (std::optional<double>& each : offsets) {
      each = each ? std::optional(*each - middle) : each;
    }
  }
  return offsets;
}

std::string name_of(const Examination& examination, int machine) {
  const auto& own = examination.machines[static_cast<std::size_t>(machine)];
  if (!own) {
    return fmt::format("machine {}", machine);
  }
  const auto called_so = std::ranges::count_if(
      examination.machines, [&](const auto& each) { return each && each->host == own->host; });
  return called_so == 1 ? own->host : fmt::format("{} (machine {})", own->host, machine);
}

std::vector<Finding> findings(const Examination& examination) {
  std::vector<Finding> all;
  for (const auto part : {machine_findings, difference_findings, pair_findings}) {
    for (Finding& each : part(examination)) {
      all.push_back(std::move(each));
    }
  }
  std::ranges::stable_sort(all, {}, &Finding::severity);
  return all;
}

}  // namespace acc::doctor
