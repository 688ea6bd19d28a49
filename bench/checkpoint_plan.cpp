// SPDX-License-Identifier: Apache-2.0
// checkpoint_plan [RANKS [SHARDS [LAYERS]]]
//
// Measures the work of a rank before it can write its file of a torch DCP folder (the plan of the
// file) and the work of rank 0 for all ranks (.metadata, which is discarded), with the parameters
// of Llama 2 70B and one unit per layer. Also measures reading: .metadata, or the plan in the
// manifest together with all pieces that rank 123 of 512 loads. RANKS / SHARDS ranks hold the same
// data. Prints one line of JSON for the model's folder and one for the optimizer's. A separate
// process measures each, so that their memory is not mixed.

#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/dcp/folder_plan.hpp"
#include "acc/checkpoint/dcp/plan_json.hpp"
#include "acc/checkpoint/files/manifest.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace acc::checkpoint;
using namespace acc::checkpoint::dcp;

namespace {

using Unit = std::vector<std::pair<std::string, Shape>>;

std::vector<Unit> llama_70b(int layers) {
  constexpr std::int64_t kHidden = 8192, kKeys = 1024, kFeedForward = 28672, kVocabulary = 32000;
  std::vector<Unit> units = {{{"model.embed_tokens.weight", {kVocabulary, kHidden}},
                              {"model.norm.weight", {kHidden}},
                              {"lm_head.weight", {kVocabulary, kHidden}}}};
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    units.push_back({{layer + "self_attn.q_proj.weight", {kHidden, kHidden}},
                     {layer + "self_attn.k_proj.weight", {kKeys, kHidden}},
                     {layer + "self_attn.v_proj.weight", {kKeys, kHidden}},
                     {layer + "self_attn.o_proj.weight", {kHidden, kHidden}},
                     {layer + "mlp.gate_proj.weight", {kFeedForward, kHidden}},
                     {layer + "mlp.up_proj.weight", {kFeedForward, kHidden}},
                     {layer + "mlp.down_proj.weight", {kHidden, kFeedForward}},
                     {layer + "input_layernorm.weight", {kHidden}},
                     {layer + "post_attention_layernorm.weight", {kHidden}}});
  }
  return units;
}

/// Builds one kind of state of all units, with one array per unit.
struct Builder {
  FolderPlan plan;
  std::vector<CutArray> arrays;

  void add(const std::vector<Unit>& units, const std::string& kind, int shards) {
    for (const Unit& unit : units) {
      CutArray array{.members = {}, .shards = shards};
      for (const auto& [name, shape] : unit) {
        array.members.push_back({plan.tensors.size(), array.padded_numel});
        array.padded_numel += numel_of(shape);
        add_tensor(name, kind, shape);
      }
      array.padded_numel = (array.padded_numel + shards - 1) / shards * shards;
      arrays.push_back(array);
    }
  }
  void add_steps(const std::vector<Unit>& units) {
    for (const Unit& unit : units) {
      for (const auto& [name, shape] : unit) {
        arrays.push_back({.members = {{plan.tensors.size(), 0}}, .padded_numel = 1});
        add_tensor(name, "step", {});
      }
    }
  }
  void add_tensor(const std::string& name, const std::string& kind, const Shape& shape) {
    const Path path =
        kind == "param" ? Path{"model", name} : Path{"optimizer", "state", name, kind};
    std::string joined;
    for (const auto& part : path) {
      joined += (joined.empty() ? "" : ".") + std::get<std::string>(part);
    }
    plan.tensors.push_back({.name = joined, .path = path, .dtype = Dtype::f32, .shape = shape});
  }
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Measures CPU time, because nothing here waits.
template <typename Work>
double seconds_of(const Work& work) {
  const double start = cpu_seconds();
  work();
  return cpu_seconds() - start;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

/// Runs `work` in a separate process, so that the measured memory is only that of the work.
template <typename Work>
void apart(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    std::fflush(nullptr);
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    std::exit(1);
  }
}

std::string manifest_of(Builder builder, int ranks) {
  FolderPlan& plan = builder.plan;
  plan.world_size = ranks;
  plan.rule = cut_arrays(builder.arrays, plan.tensors, ranks);
  Manifest manifest;
  manifest.world_size = ranks;
  manifest.plans["folder"] = format_plan(plan);
  for (int rank = 0; rank < ranks; ++rank) {
    manifest.files.push_back({"folder/" + file_name(rank), plan_file(plan, rank).nbytes, {}});
  }
  return format_manifest(manifest);
}

/// Does the work of a rank that loads with the plan, except reading the data.
void read_by_plan(const std::string& text, const std::vector<CutArray>& arrays) {
  constexpr std::int64_t kRank = 123, kRanks = 512;
  const double before = peak_mib();
  Catalog catalog;
  const double open = seconds_of([&] {
    const Manifest manifest = parse_manifest(text, "manifest");
    auto plan = parse_plan(manifest.plans.at("folder"), manifest.world_size, "manifest", "plans");
    std::vector<std::uint64_t> nbytes;
    for (const Manifest::File& file : manifest.files) {
      nbytes.push_back(file.nbytes);
    }
    TrainingState training;
    training.step = 1;
    Provenance provenance;
    read_planned_folder("/checkpoint/folder", std::move(*plan), nbytes, catalog, training,
                        provenance);
    catalog.index();
  });
  std::size_t pieces = 0;
  const double find = seconds_of([&] {
    for (const CutArray& array : arrays) {
      const std::int64_t shard = (array.padded_numel + kRanks - 1) / kRanks;
      for (const CutArray::Member& member : array.members) {
        const StoredTensor& tensor = catalog.tensors[member.tensor];
        const std::int64_t first = kRank * shard - member.offset, numel = numel_of(tensor.shape);
        const std::int64_t begin = std::clamp<std::int64_t>(first, 0, numel);
        const std::int64_t end = std::clamp<std::int64_t>(first + shard, 0, numel);
        tensor.for_each_piece(begin, end, [&](const StoredPiece&) { ++pieces; });
      }
    }
  });
  const double found = peak_mib();
  std::size_t all_pieces = 0;
  const double all = seconds_of([&] {
    for (const StoredTensor& tensor : catalog.tensors) {
      all_pieces += tensor.all_pieces().size();
    }
  });
  std::printf(
      "\"plan_kb\": %.1f, \"manifest_kb\": %.1f, \"by_plan_open_ms\": %.1f, "
      "\"by_plan_pieces\": %zu, \"by_plan_find_ms\": %.2f, \"by_plan_mib\": %.1f, "
      "\"by_plan_all_s\": %.2f, \"by_plan_all_mib\": %.1f, ",
      static_cast<double>(parse_manifest(text, "").plans.at("folder").size()) / 1e3,
      static_cast<double>(text.size()) / 1e3, open * 1e3, pieces, find * 1e3, found - before, all,
      peak_mib() - before);
}

void report_reading(const Builder& builder, int ranks) {
  std::FILE* const file = std::tmpfile();
  apart([&] {
    const std::string text = manifest_of(builder, ranks);
    std::fwrite(text.data(), 1, text.size(), file);
  });
  std::rewind(file);
  apart([&] {
    std::string text;
    std::array<char, 65'536> part{};
    while (const std::size_t got = std::fread(part.data(), 1, part.size(), file)) {
      text.append(part.data(), got);
    }
    read_by_plan(text, builder.arrays);
  });
  std::fclose(file);
}

void report(const char* folder, Builder builder, int ranks, int shards) {
  std::printf("{");
  std::fflush(stdout);
  report_reading(builder, ranks);
  FolderPlan& plan = builder.plan;
  plan.world_size = ranks;
  const double rule =
      seconds_of([&] { plan.rule = cut_arrays(builder.arrays, plan.tensors, ranks); });
  double slowest = 0.0;
  std::size_t most = 0;
  std::uint64_t least_nbytes = UINT64_MAX, most_nbytes = 0;
  for (int i = 0; i < 20; ++i) {
    FilePlan file;
    slowest = std::max(slowest, seconds_of([&] { file = plan_file(plan, i * (ranks - 1) / 19); }));
    most = std::max(most, file.chunks.size());
    least_nbytes = std::min(least_nbytes, file.nbytes);
    most_nbytes = std::max(most_nbytes, file.nbytes);
  }
  std::uint64_t nbytes = 0, chunks = 0;
  const double metadata = seconds_of(
      [&] { write_metadata(plan, [&](std::string_view bytes) { nbytes += bytes.size(); }); });
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    plan.rule->for_each_chunk(i, [&](int, const PlannedChunk&) { ++chunks; });
  }
  const double planned_mib = peak_mib();
  std::string text;
  text.reserve(nbytes);
  write_metadata(plan, [&](std::string_view bytes) { text += bytes; });
  const double parse =
      seconds_of([&] { (void)parse_metadata(std::as_bytes(std::span(text)), "metadata"); });
  std::printf(
      "\"folder\": \"%s\", \"ranks\": %d, \"shards\": %d, \"tensors\": %zu, \"chunks\": %llu, "
      "\"cut_rule_ms\": %.2f, \"plan_of_a_file_ms\": %.3f, \"chunks_of_a_file\": %zu, "
      "\"file_mb\": [%.1f, %.1f], \"metadata_s\": %.3f, \"metadata_mb\": %.2f, "
      "\"bytes_a_chunk\": %.1f, \"ns_a_chunk\": %.0f, \"peak_rss_mib\": %.1f, \"parse_s\": %.2f, "
      "\"parse_peak_rss_mib\": %.1f}\n",
      folder, ranks, shards, plan.tensors.size(), static_cast<unsigned long long>(chunks),
      rule * 1e3, slowest * 1e3, most, static_cast<double>(least_nbytes) / 1e6,
      static_cast<double>(most_nbytes) / 1e6, metadata, static_cast<double>(nbytes) / 1e6,
      static_cast<double>(nbytes) / static_cast<double>(chunks),
      metadata * 1e9 / static_cast<double>(chunks), planned_mib, parse, peak_mib());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 10'000;
  const int shards = argc > 2 ? std::atoi(argv[2]) : ranks;
  const auto units = llama_70b(argc > 3 ? std::atoi(argv[3]) : 80);
  for (const bool is_model : {true, false}) {
    apart([&] {
      Builder builder;
      if (is_model) {
        builder.add(units, "param", shards);
      } else {
        builder.add(units, "exp_avg", shards);
        builder.add(units, "exp_avg_sq", shards);
        builder.add_steps(units);
      }
      report(is_model ? "model" : "optimizer", std::move(builder), ranks, shards);
    });
  }
}
