#include "checkpoint/sharded_checkpoint.hpp"

#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using acc::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

const std::vector<CheckpointTensor> kTensors = {
    {"wte.weight", {37, 5}, {"exp_avg", "param"}},
    {"a/b.bias", {1}, {"param"}},
    {"h.0.w", {13, 7}, {"exp_avg", "param"}},
    {"none", {0, 3}, {"param"}},
};

// A value that tells its tensor, kind, element and the save it belongs to.
float value_of(std::size_t tensor, const std::string& kind, std::int64_t i, int save) {
  return static_cast<float>(static_cast<std::int64_t>(tensor) * 100'000 +
                            (kind == "param" ? 50'000 : 0) + save * 1000 + i);
}

OldManifest manifest_of(int world_size, int save) {
  return {.world_size = world_size,
          .strategy = "full_shard",
          .step = save,
          .program = {{"epoch", 3}, {"position", std::int64_t{1} << 40}},
          .optimizer = "adamw",
          .hyper_parameters = {{"lr", 1e-3}, {"eps", 1e-8}},
          .groups = {{"head", {{"lr", 0.5}}, {"wte.weight", "h.0.w"}}, {"rest", {}, {}}},
          .skipped_steps = 5,
          .loss_scaler = {{"scale", 65536.0}, {"last_overflow", -1.0}},
          .tensors = kTensors,
          .aliases = {{"lm_head.weight", "wte.weight"}}};
}

// Cuts every tensor at random places and deals the pieces to the ranks.
std::vector<std::vector<Piece>> random_layout(int world_size, std::mt19937& generator,
                                              const std::vector<std::vector<float>>& values) {
  std::vector<std::vector<Piece>> ranks(static_cast<std::size_t>(world_size));
  std::size_t source = 0;
  for (const CheckpointTensor& tensor : kTensors) {
    for (const std::string& kind : tensor.kinds) {
      const std::span<const float> all = values[source++];
      for (std::size_t begin = 0; begin < all.size();) {
        const std::size_t count = std::min<std::size_t>(all.size() - begin, generator() % 60);
        ranks[generator() % ranks.size()].push_back(
            {tensor.name, kind, static_cast<std::int64_t>(begin), all.subspan(begin, count)});
        begin += count;
      }
    }
  }
  return ranks;
}

std::vector<std::vector<float>> values_of_save(int save) {
  std::vector<std::vector<float>> values;
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    for (const std::string& kind : kTensors[t].kinds) {
      auto& all = values.emplace_back();
      for (std::int64_t i = 0; i < numel_of(kTensors[t].shape); ++i) {
        all.push_back(value_of(t, kind, i, save));
      }
    }
  }
  return values;
}

void save_checkpoint(const fs::path& folder, int world_size, int save, unsigned seed = 1) {
  std::mt19937 generator(seed);
  const auto values = values_of_save(save);
  const auto ranks = random_layout(world_size, generator, values);
  const auto id = static_cast<std::uint32_t>(save);
  CheckpointWriter(folder, id).begin();
  for (int rank = 0; rank < world_size; ++rank) {
    CheckpointWriter(folder, id).write_rank_file(rank, ranks[static_cast<std::size_t>(rank)]);
  }
  CheckpointWriter(folder, id).commit(manifest_of(world_size, save));
}

// Whether the folder holds a save, whole: all values belong to the save that the manifest tells.
int whole_save(const fs::path& folder) {
  ShardedCheckpoint checkpoint(folder);
  const auto save = static_cast<int>(checkpoint.manifest().step);
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    for (const std::string& kind : kTensors[t].kinds) {
      std::vector<float> all(static_cast<std::size_t>(numel_of(kTensors[t].shape)));
      checkpoint.read(kTensors[t].name, kind, 0, all);
      for (std::size_t i = 0; i < all.size(); ++i) {
        REQUIRE(all[i] == value_of(t, kind, static_cast<std::int64_t>(i), save));
      }
    }
  }
  return save;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const acc::Error& error) {
    return error.what();
  }
  return "no error";
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void replace_text(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_text(path);
  const auto place = text.find(from);
  REQUIRE(place != std::string::npos);
  std::ofstream(path, std::ios::binary) << text.replace(place, from.size(), to);
}

}  // namespace

TEST_CASE("any layout reads what any other wrote") {
  const TemporaryFolder folder;
  std::mt19937 generator(5);
  for (unsigned round = 0; round < 20; ++round) {
    const int world_size = 1 + static_cast<int>(round % 5);
    const fs::path path = folder.path() / "checkpoint";
    save_checkpoint(path, world_size, static_cast<int>(round), round);
    CHECK(whole_save(path) == static_cast<int>(round));
    ShardedCheckpoint checkpoint(path);
    CHECK(checkpoint.manifest() == manifest_of(world_size, static_cast<int>(round)));
    for (int request = 0; request < 30; ++request) {
      const std::int64_t numel = 37 * 5;
      const std::int64_t offset = generator() % numel;
      std::vector<float> slice(generator() % static_cast<unsigned>(numel - offset + 1));
      checkpoint.read(request % 2 == 0 ? "wte.weight" : "lm_head.weight", "exp_avg", offset, slice);
      for (std::size_t i = 0; i < slice.size(); ++i) {
        REQUIRE(slice[i] == value_of(0, "exp_avg", offset + static_cast<std::int64_t>(i),
                                     static_cast<int>(round)));
      }
    }
  }
}

TEST_CASE("the reader tells what is stored") {
  const TemporaryFolder folder;
  save_checkpoint(folder.path() / "c", 2, 1);
  const ShardedCheckpoint checkpoint(folder.path() / "c");
  CHECK(checkpoint.contains("lm_head.weight", "exp_avg"));
  CHECK(checkpoint.contains("none", "param"));
  CHECK_FALSE(checkpoint.contains("a/b.bias", "exp_avg"));
  CHECK_FALSE(checkpoint.contains("other", "param"));
  checkpoint.expect("h.0.w", {13, 7});
  CHECK(error_of([&] {
          checkpoint.expect("h.0.w", {7, 13});
        }).find("'h.0.w': expected shape [7, 13], found [13, 7]") != std::string::npos);
  CHECK(error_of([&] { checkpoint.expect("other", {1}); }).find("no tensor 'other'") !=
        std::string::npos);
}

TEST_CASE("relative names, a slash at the end and links lead to the same folder") {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "real");
  fs::create_directory_symlink("real", folder.path() / "link");
  save_checkpoint(folder.path() / "link" / "", 2, 1);
  save_checkpoint(folder.path() / "link" / "." / "", 1, 2);
  CHECK(fs::is_symlink(folder.path() / "link"));
  CHECK(whole_save(folder.path() / "real") == 2);
  save_checkpoint(folder.path() / "not" / "there" / "yet", 1, 3);
  CHECK(whole_save(folder.path() / "not" / "there" / "yet") == 3);
}

TEST_CASE("a folder with other files is never replaced") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "c";
  save_checkpoint(path, 1, 1);
  std::ofstream(path / "thesis.tex") << "years of work";
  CHECK(error_of([&] { save_checkpoint(path, 1, 2); }).find("it holds 'thesis.tex'") !=
        std::string::npos);
  CHECK(read_text(path / "thesis.tex") == "years of work");
  CHECK(whole_save(path) == 1);
  std::ofstream(folder.path() / "file") << "x";
  CHECK(error_of([&] {
          save_checkpoint(folder.path() / "file", 1, 2);
        }).find("a file of that name is there") != std::string::npos);
}

TEST_CASE("a commit without all pieces is refused and leaves the older checkpoint") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "c";
  save_checkpoint(path, 2, 1);
  const auto values = values_of_save(2);
  const auto attempt = [&](const std::vector<Piece>& pieces, int world_size) {
    return error_of([&] {
      CheckpointWriter writer(path, 1);
      writer.begin();
      writer.write_rank_file(0, pieces);
      writer.commit(manifest_of(world_size, 2));
    });
  };
  std::mt19937 generator(1);
  const auto pieces = random_layout(1, generator, values)[0];
  struct Row {
    std::function<void(std::vector<Piece>&)> change;
    int world_size;
    const char* message;
  };
  const Row rows[] = {
      {[](auto&) {}, 2, "rank 1 wrote no file"},
      {[](auto& all) { all.pop_back(); }, 1, "are in no piece"},
      {[](auto& all) { all.erase(all.begin()); }, 1, "are in no piece"},
      {[](auto& all) {
         all.push_back({"extra", "param", 0, all[0].data});
       },
       1, "'extra', param was written but is not in the list"},
      {[&](auto& all) {
         all.push_back({"a/b.bias", "param", 1, all[0].data});
       },
       1, "'a/b.bias', param: a piece ends at element"},
      {[&](auto& all) {
         all.push_back({"h.0.w", "param", 1, values[3]});
       },
       1, "are in more than one piece"},
  };
  for (const Row& row : rows) {
    auto changed = pieces;
    row.change(changed);
    const std::string message = attempt(changed, row.world_size);
    CAPTURE(message);
    CHECK(message.find(row.message) != std::string::npos);
    CHECK(whole_save(path) == 1);
  }
  CHECK(attempt(pieces, 1) == "no error");
  CHECK(whole_save(path) == 2);
}

TEST_CASE("a rank that does not see the folder is named") {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.path() / "c", 1);
  const std::string message = error_of([&] { writer.write_rank_file(3, {}); });
  CHECK(message.find("rank 3 does not see the folder") != std::string::npos);
}

TEST_CASE("a save that sleeps while another is made fails when it wakes, wherever it was") {
  const auto values = values_of_save(1);
  std::mt19937 generator(1);
  const auto pieces = random_layout(1, generator, values)[0];
  const std::function<void(CheckpointWriter&)> steps[] = {
      [](CheckpointWriter& writer) { writer.begin(); },
      [&](CheckpointWriter& writer) { writer.write_rank_file(0, pieces); },
      [](CheckpointWriter& writer) { writer.commit(manifest_of(1, 1)); },
  };
  for (const std::size_t asleep_after : {1, 2}) {
    for (const std::size_t awake_after : {1, 2, 3}) {
      CAPTURE(asleep_after);
      CAPTURE(awake_after);
      const TemporaryFolder folder;
      CheckpointWriter sleeper(folder.path() / "c", 1);
      CheckpointWriter writer(folder.path() / "c", 2);
      for (std::size_t i = 0; i < asleep_after; ++i) {
        steps[i](sleeper);
      }
      for (std::size_t i = 0; i < awake_after; ++i) {
        steps[i](writer);
      }
      CHECK(error_of([&] { steps[asleep_after](sleeper); }) != "no error");
      for (std::size_t i = awake_after; i < std::size(steps); ++i) {
        steps[i](writer);
      }
      CHECK(whole_save(folder.path() / "c") == 1);
      CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
    }
  }
}

TEST_CASE("damaged checkpoints are refused with what is wrong") {
  struct Row {
    std::function<void(const fs::path&)> damage;
    const char* message;
  };
  const auto edit = [](const char* from, const char* to) {
    return [=](const fs::path& path) { replace_text(path / "metadata.json", from, to); };
  };
  const auto rank1 = [](const fs::path& path) { return path / "rank_00001.safetensors"; };
  const Row rows[] = {
      {[](const fs::path& path) { fs::remove_all(path); }, "no checkpoint in"},
      {[](const fs::path& path) { fs::remove(path / "metadata.json"); }, "has no metadata.json"},
      {[](const fs::path& path) { fs::resize_file(path / "metadata.json", 300); },
       "damaged checkpoint metadata"},
      {[](const fs::path& path) { fs::resize_file(path / "metadata.json", 0); },
       "damaged checkpoint metadata"},
      {edit("\"version\": 1", "\"version\": 9"), "version 9, this build reads version 1"},
      {edit("acclaunch sharded checkpoint", "other"), "expected \"format\""},
      {edit("\"world_size\": 2", "\"world_size\": 0"), "a world_size of at least 1, found 0"},
      {edit("\"step\"", "\"stop\""), "damaged checkpoint metadata"},
      {edit("37,", "-37,"), "'wte.weight': impossible shape"},
      {edit("37,", "38,"), "are in no piece"},
      {edit("37,", "36,"), "the tensor has 180"},
      {[&](const fs::path& path) { fs::remove(rank1(path)); }, "rank_00001.safetensors"},
      {[&](const fs::path& path) { fs::resize_file(rank1(path), fs::file_size(rank1(path)) - 1); },
       "rank_00001.safetensors: tensor"},
      {[&](const fs::path& path) { fs::resize_file(rank1(path), 20); }, "truncated"},
      {[&](const fs::path& path) {
         fs::copy_file(path / "rank_00000.safetensors", rank1(path),
                       fs::copy_options::overwrite_existing);
       },
       "rank_00001.safetensors: no tensor"},
  };
  for (const Row& row : rows) {
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "c";
    save_checkpoint(path, 2, 1);
    row.damage(path);
    const std::string message = error_of([&] { whole_save(path); });
    CAPTURE(message);
    CHECK(message.find(row.message) != std::string::npos);
    CHECK(message.find(path.string()) != std::string::npos);
  }
}

namespace {

// Runs a save in a child that is killed when it enters its system call number `fatal`. Tells
// whether the child got that far.
bool save_killed_at(const fs::path& folder, int save, int fatal) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    try {
      save_checkpoint(folder, 2, save);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  // A stop at the entry and one at the exit of each call: two a call.
  for (int stops = 0; WIFSTOPPED(status) && stops < 2 * fatal; ++stops) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
  }
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return true;
  }
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  return false;
}

}  // namespace

TEST_CASE("killed at any system call, a save leaves the older checkpoint or the new one, whole") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "c";
  save_checkpoint(path, 3, 0);
  int saved = 0;
  int killed = 0;
  bool got_there = true;
  for (int call = 1; got_there; ++call) {
    got_there = save_killed_at(path, saved + 1, call);
    killed += got_there ? 1 : 0;
    const int found = whole_save(path);
    REQUIRE((found == saved || found == saved + 1));
    saved = found;
  }
  CHECK(killed > 30);
  // The last save ran to its end and removed what the killed ones had left.
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("without an exchange, the older folder is found between the two renames") {
  const TemporaryFolder folder;
  save_checkpoint(folder.path() / "c", 2, 1);
  fs::rename(folder.path() / "c", folder.path() / "c.acc-old");
  CHECK(whole_save(folder.path() / "c") == 1);
  save_checkpoint(folder.path() / "c", 2, 2);
  CHECK(whole_save(folder.path() / "c") == 2);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}
