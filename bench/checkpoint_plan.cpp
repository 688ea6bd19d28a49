// checkpoint_plan [RANKS [SHARDS [LAYERS]]]: what a rank has to do before it can write its file of
// a torch DCP folder, and rank 0 for all, with the parameters of Llama 2 70B, a unit a layer: the
// plan of a file, and .metadata, written to nowhere; and what reading .metadata costs. RANKS /
// SHARDS ranks hold the same. A line of JSON each for the model's and the optimizer's folder, which
// are measured by processes of their own, so that neither's memory shows in the other's.

#include "checkpoint/dcp/folder_plan.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

/// One kind of state of all units: an array a unit.
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

// Of the processor: nothing here waits.
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

void report(const char* folder, Builder builder, int ranks, int shards) {
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
      "{\"folder\": \"%s\", \"ranks\": %d, \"shards\": %d, \"tensors\": %zu, \"chunks\": %llu, "
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
    const pid_t child = fork();
    if (child == 0) {
      Builder builder;
      if (is_model) {
        builder.add(units, "param", shards);
      } else {
        builder.add(units, "exp_avg", shards);
        builder.add(units, "exp_avg_sq", shards);
        builder.add_steps(units);
      }
      report(is_model ? "model" : "optimizer", std::move(builder), ranks, shards);
      _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
      return 1;
    }
  }
}
