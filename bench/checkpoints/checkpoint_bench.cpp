// SPDX-License-Identifier: Apache-2.0
// Saves and loads a sharded state with several processes, using the same functions as Runtime::save
// and Runtime::load. The state consists of fp32 tensors with 1024 columns, sharded by rows.
//
//     checkpoint_bench DIR BYTES PROCESSES REPETITIONS [keep]
//
// keep: do not delete the last folder, DIR/checkpoint.
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "checkpoints/team.hpp"

#include <cstring>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;
using namespace acc::checkpoint;

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kColumns = 1024;

struct State {
  dcp::FolderPlan plan;
  std::vector<dcp::PlannedChunk> chunks;
  std::vector<std::vector<float>> values;  ///< one vector per chunk

  State(std::uint64_t nbytes, int rank, int ranks) {
    const std::uint64_t count = std::max<std::uint64_t>(nbytes / (4 * kRows * kColumns), 1);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string name = "t" + std::to_string(i) + ".weight";
      plan.tensors.push_back({.name = "model." + name,
                              .path = {std::string("model"), name},
                              .dtype = Dtype::f32,
                              .shape = {kRows, kColumns}});
    }
    plan.world_size = ranks;
    plan.rule = dcp::cut_by_rows(plan.tensors, ranks);
    chunks = plan.rule->chunks(rank);
    for (const dcp::PlannedChunk& chunk : chunks) {
      values.emplace_back(static_cast<std::size_t>(chunk.box.numel()),
                          static_cast<float>(chunk.tensor + 1));
    }
  }
  [[nodiscard]] std::uint64_t nbytes() const { return plan.tensors.size() * 4 * kRows * kColumns; }
};

std::string name_of(const dcp::PlannedTensor& tensor) {
  return tensor.name.substr(std::strlen("model."));
}

/// Returns a field of /proc/self/status in bytes: VmHWM is the peak of resident memory since the
/// last reset, VmRSS its current value.
double status_of(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == key) {
      double kib = 0;
      status >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

double extra_memory(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const double before = status_of("VmRSS:");
  work();
  return status_of("VmHWM:") - before;
}

void save(const acc::bench::Team& team, const State& state, int rank, const fs::path& target,
          std::uint32_t id) {
  AtomicFolder folder(
      target, [](const std::string&) { return true; }, id);
  if (rank == 0) {
    folder.begin();
  }
  folder.make();
  std::size_t next = 0;
  dcp::write_rank_file(folder.temporary(), state.plan, rank,
                       [&](const dcp::PlannedChunk&, const torch::Sink& sink) {
                         sink(std::as_bytes(std::span(state.values[next++])));
                       });
  if (rank == 0) {
    dcp::write_metadata_file(folder.temporary(), state.plan);
  }
  team.wait();
  if (rank == 0) {
    folder.commit();
  }
}

void load(State& state, const fs::path& target) {
  const Stored stored = open_checkpoint(target);
  TensorReader reader(stored.catalog);
  for (std::size_t i = 0; i < state.chunks.size(); ++i) {
    const dcp::PlannedChunk& chunk = state.chunks[i];
    const StoredTensor& tensor =
        stored.catalog.at(name_of(state.plan.tensors[chunk.tensor]), "param", target.string());
    reader.read(tensor, chunk.box, Dtype::f32, state.values[i].data());
  }
}

struct Samples {
  std::vector<double> seconds, cpu, extra;

  void add(acc::bench::Team::Time time) {
    seconds.push_back(time.wall);
    cpu.push_back(time.cpu);
  }
};

void report(const char* what, const State& state, const Samples& samples) {
  const double seconds = acc::bench::median(samples.seconds);
  std::printf(
      "{\"impl\": \"acclaunch\", \"what\": \"%s\", \"bytes\": %llu, \"seconds\": %.4f, "
      "\"cpu_s\": %.4f, \"gb_per_s\": %.3f, \"extra_mib\": %.1f}\n",
      what, static_cast<unsigned long long>(state.nbytes()), seconds,
      acc::bench::median(samples.cpu), static_cast<double>(state.nbytes()) / seconds / 1e9,
      acc::bench::median(samples.extra) / 1048576);
}

void check(const State& state) {
  for (std::size_t i = 0; i < state.chunks.size(); ++i) {
    const auto expected = static_cast<float>(state.chunks[i].tensor + 1);
    if (!std::all_of(state.values[i].begin(), state.values[i].end(),
                     [&](float value) { return value == expected; })) {
      throw std::runtime_error("loaded values are wrong");
    }
  }
}

void measure(const acc::bench::Team& team, int rank, const fs::path& folder, std::uint64_t nbytes,
             int repetitions) {
  State state(nbytes, rank, team.size());
  Samples saves, loads;
  const fs::path target = folder / "checkpoint";
  for (int i = 0; i < repetitions; ++i) {
    if (rank == 0) {
      fs::remove_all(target);
    }
    saves.extra.push_back(extra_memory([&] {
      saves.add(
          team.timed([&] { save(team, state, rank, target, static_cast<std::uint32_t>(i)); }));
    }));
    for (std::vector<float>& values : state.values) {
      std::fill(values.begin(), values.end(), 0.0F);
    }
    loads.extra.push_back(
        extra_memory([&] { loads.add(team.timed([&] { load(state, target); })); }));
    check(state);
  }
  if (rank == 0) {
    report("save", state, saves);
    report("load", state, loads);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool keep = argc == 6 && std::string(argv[5]) == "keep";
  if (argc != 5 && !keep) {
    std::fprintf(stderr, "usage: checkpoint_bench DIR BYTES PROCESSES REPETITIONS [keep]\n");
    return 2;
  }
  const acc::bench::Team team(std::atoi(argv[3]));
  const bool good = team.run([&](int rank) {
    measure(team, rank, argv[1], std::strtoull(argv[2], nullptr, 10), std::atoi(argv[4]));
  });
  if (!keep) {
    fs::remove_all(fs::path(argv[1]) / "checkpoint");
  }
  return good ? 0 : 1;
}
