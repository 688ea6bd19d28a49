// SPDX-License-Identifier: Apache-2.0
// The commands merge-weights, inspect, verify, reshard and convert, on checkpoints that torch and
// DeepSpeed wrote. test/compat compares the results with those of torch's and DeepSpeed's tools.
#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

using namespace acc::test;
using namespace acc::checkpoint;

namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

const fs::path kData = ACC_TEST_DATA "/checkpoints";
const fs::path kFsdp = kData / "fsdp2_w4";
const fs::path kModel = kFsdp / "pytorch_model_fsdp_0";

struct Ended {
  int status = 0;
  std::string out, err;
};

Ended acclaunch(Words words) {
  words.insert(words.begin(), ACC_BIN_DIR "/acclaunch");
  Program program(words);
  const int status = program.wait();
  return {status, program.out(), program.err()};
}

/// Returns the bytes of every tensor, by "name kind dtype shape".
std::map<std::string, std::vector<std::byte>> tensors_of(const fs::path& path, Want want) {
  const Stored stored = open_checkpoint(path, want);
  TensorReader reader(stored.catalog);
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    if (want == Want::weights && tensor.kind != "param") {
      continue;
    }
    auto& bytes = tensors[tensor.name + " " + tensor.kind + " " +
                          std::string(torch_name(tensor.dtype)) + " " + to_string(tensor.shape)];
    const std::int64_t numel = numel_of(tensor.shape);
    bytes.resize(static_cast<std::size_t>(numel) * size_of(tensor.dtype));
    reader.read(tensor, 0, numel, tensor.dtype, bytes.data());
  }
  return tensors;
}

/// Returns the settings of each parameter group.
std::vector<std::map<std::string, double>> groups_of(const fs::path& path) {
  std::vector<std::map<std::string, double>> groups;
  for (const StoredGroup& group : open_checkpoint(path, Want::everything).training.groups) {
    groups.push_back(group.hyper_parameters);
  }
  return groups;
}

fs::path copy_of(const fs::path& source, const TemporaryFolder& folder) {
  const fs::path copy = folder.path() / source.filename();
  fs::copy(source, copy, fs::copy_options::recursive);
  return copy;
}

/// Flips a bit in the middle of a piece of a tensor. Returns the damaged file.
fs::path damage(const fs::path& checkpoint, const std::string& tensor, std::size_t piece) {
  const Stored stored = open_checkpoint(checkpoint);
  const StoredPiece hit = stored.catalog.at(tensor, "param", "test").all_pieces().at(piece);
  const fs::path path = stored.catalog.files[hit.file];
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(hit.offset + hit.nbytes / 2));
  const auto changed = static_cast<char>(file.peek() ^ 1);
  file.seekp(static_cast<std::streamoff>(hit.offset + hit.nbytes / 2));
  file.put(changed);
  return path;
}

/// Creates a sparse safetensors file of zeros, which uses no disk space.
fs::path sparse_weights(const fs::path& path, std::uint64_t numel) {
  std::string header =
      nlohmann::json{
          {"weight", {{"dtype", "F32"}, {"shape", {numel}}, {"data_offsets", {0, 4 * numel}}}}}
          .dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&length), 8) << header;
  fs::resize_file(path, 8 + length + 4 * numel);
  return path;
}

/// Waits until files with certain names appear in a folder.
class FolderWatch {
 public:
  explicit FolderWatch(const fs::path& folder) : fd_(::inotify_init1(IN_CLOEXEC)) {
    REQUIRE(::inotify_add_watch(fd_.get(), folder.c_str(), IN_CREATE) >= 0);
  }
  void await(const std::string& start) {
    while (true) {
      pollfd ready{fd_.get(), POLLIN, 0};
      REQUIRE(::poll(&ready, 1, static_cast<int>(kDeadline.count() * 1000)) == 1);
      alignas(inotify_event) char buffer[4096];
      const ssize_t count = ::read(fd_.get(), buffer, sizeof buffer);
      REQUIRE(count > 0);
      for (const char* at = buffer; at < buffer + count;) {
        const auto* const event = reinterpret_cast<const inotify_event*>(at);
        if (std::string(event->name).starts_with(start)) {
          return;
        }
        at += sizeof(inotify_event) + event->len;
      }
    }
  }

 private:
  acc::UniqueFd fd_;
};

}  // namespace

TEST_CASE("merge-weights: any checkpoint into model.safetensors") {
  struct Case {
    fs::path source, full;
    std::size_t tensors;
  };
  const Case cases[] = {
      {kModel, kFsdp / "model_full.safetensors", 29},
      {kFsdp, kFsdp / "model_full.safetensors", 29},
      {kData / "ds_zero2_w3", kData / "ds_zero2_w3" / "fp32_full.safetensors", 17},
      {kData / "ds_zero3_w3" / "global_step3", kData / "ds_zero3_w3" / "fp32_full.safetensors", 17},
      {kFsdp / "model_full.safetensors", kFsdp / "model_full.safetensors", 29},
  };
  for (const Case& each : cases) {
    CAPTURE(each.source);
    const TemporaryFolder folder;
    const std::string out = folder.path() / "out";
    const Ended merged = acclaunch({"merge-weights", each.source, out, "--num-threads", "3"});
    CAPTURE(merged.err);
    REQUIRE(merged.status == 0);
    CHECK(contains(merged.out, std::to_string(each.tensors) + " tensors"));
    CHECK(contains(merged.out, out + "/model.safetensors\n"));
    CHECK(names_in(out) == std::set<std::string>{"model.safetensors"});
    CHECK(tensors_of(out, Want::weights) == tensors_of(each.full, Want::weights));
    CHECK(acclaunch({"merge-weights", each.source, out, "--quiet"}).out.empty());  // once more
  }
}

TEST_CASE("merge-weights: each error has a message, and nothing is written") {
  const TemporaryFolder folder;
  const std::string out = folder.path() / "out";
  const fs::path copy = copy_of(kFsdp, folder);
  const std::string model = copy / "pytorch_model_fsdp_0";
  fs::create_directory(folder.path() / "taken");
  fs::copy(kFsdp / "model_full.safetensors", folder.path() / "taken" / "model.safetensors");
  struct Case {
    Words words;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {{copy}, {"output_path"}},
      {{folder.path() / "none", out}, {"none"}},
      {{folder.path(), out}, {"not a checkpoint", ".metadata"}},
      {{copy / "optimizer_0", out}, {"optimizer_0", "optimizer's state", "--unsafe_serialization"}},
      {{model, folder.path() / "not" / "there"}, {"not/there"}},
      {{model, out, "--dtype", "int8"}, {"--dtype"}},
      {{model, out, "--max_shard_size", "10 apples"}, {"--max_shard_size", "'10 apples'"}},
      {{model, out, "--max_shard_size", "1GB", "--unsafe_serialization"}, {"--max_shard_size"}},
      {{model, folder.path() / "taken", "--max_shard_size", "1KB"}, {"taken/model.safetensors"}},
      {{model, model + "/out", "--remove_checkpoint_dir"}, {"--remove_checkpoint_dir", "/out"}},
      {{copy, out, "--remove-checkpoint-dir"},
       {"--remove_checkpoint_dir", "more than the merged weights"}},
  };
  for (const Case& each : cases) {
    Words words = {"merge-weights"};
    words.insert(words.end(), each.words.begin(), each.words.end());
    CAPTURE(words);
    const Ended ended = acclaunch(words);
    CAPTURE(ended.err);
    CHECK(ended.status == 2);
    for (const std::string& part : each.said) {
      CHECK(contains(ended.err, part));
    }
    CHECK_FALSE(fs::exists(out));
  }
  CHECK(acclaunch({"verify", copy}).status == 0);
}

TEST_CASE("merge-weights: the checkpoint is removed only after the output was verified") {
  const TemporaryFolder folder;
  const fs::path copy = copy_of(kModel, folder);
  const std::string out = folder.path() / "out";
  const fs::path file = damage(copy, "transformer.h.0.mlp.c_fc.weight", 2);
  const Ended failed = acclaunch({"merge-weights", copy, out, "--remove_checkpoint_dir"});
  CHECK(failed.status == 2);
  CHECK(contains(failed.err, file));
  CHECK(contains(failed.err, "transformer.h.0.mlp.c_fc.weight"));
  CHECK(contains(failed.err, "damaged"));
  CHECK_FALSE(fs::exists(out));
  CHECK(fs::exists(copy / ".metadata"));

  damage(copy, "transformer.h.0.mlp.c_fc.weight", 2);  // restores the bit
  CHECK(acclaunch({"merge-weights", copy, out, "--remove_checkpoint_dir"}).status == 0);
  CHECK_FALSE(fs::exists(copy));
  CHECK(tensors_of(out, Want::weights) ==
        tensors_of(kFsdp / "model_full.safetensors", Want::weights));
}

TEST_CASE("the folder of a series stands for its newest checkpoint, and is never removed") {
  const TemporaryFolder folder;
  const fs::path series = folder.path() / "series";
  for (const char* name : {"checkpoint_0", "checkpoint_1"}) {
    fs::create_directories(series / name);
    fs::copy(kFsdp / "model_full.safetensors", series / name / "model.safetensors");
  }
  const std::string newest = (series / "checkpoint_1").string() + ": ";
  CHECK(acclaunch({"inspect", series}).out.starts_with(newest));
  CHECK(acclaunch({"verify", series}).out.starts_with(newest));
  const std::string out = folder.path() / "out";
  const Ended refused = acclaunch({"merge-weights", series, out, "--remove_checkpoint_dir"});
  CHECK(refused.status == 2);
  CHECK(contains(refused.err, "more than the merged weights"));
  CHECK(fs::exists(series / "checkpoint_0/model.safetensors"));
  CHECK(acclaunch({"merge-weights", series, out}).status == 0);
  CHECK(tensors_of(out, Want::weights) == tensors_of(series / "checkpoint_1", Want::weights));
}

TEST_CASE("inspect: text and JSON list what the checkpoint contains") {
  const Ended told = acclaunch({"inspect", kFsdp});
  REQUIRE(told.status == 0);
  for (const char* part :
       {"torch DCP", "ranks:       4\n", "step:        3\n", "lr 0.001", "[30, 32]",
        "  transformer.wpe.weight\n", "exp_avg_sq", "total: 113 tensors"}) {
    CAPTURE(part);
    CHECK(contains(told.out, part));
  }
  const Ended of_zero = acclaunch({"inspect", kData / "ds_zero3_w3"});
  CHECK(contains(of_zero.out, "DeepSpeed"));
  CHECK(contains(of_zero.out, "ranks:       3\n"));

  const auto json = nlohmann::json::parse(acclaunch({"inspect", kModel, "--json"}).out);
  CHECK(json["world_size"] == 4);
  CHECK(json["tensors"].size() == 29);
  CHECK(json["total_bytes"] == 122112);
  const auto wpe =
      std::find_if(json["tensors"].begin(), json["tensors"].end(),
                   [](const auto& each) { return each["name"] == "transformer.wpe.weight"; });
  REQUIRE(wpe != json["tensors"].end());
  CHECK((*wpe)["dtype"] == "float32");
  CHECK((*wpe)["pieces"].size() == 4);
  CHECK((*wpe)["pieces"][3]["offsets"] == std::vector{24, 0});
  CHECK((*wpe)["pieces"][3]["sizes"] == std::vector{6, 32});
  CHECK(acclaunch({"inspect", kData}).status == 2);
}

TEST_CASE("verify: names every damaged file and tensor") {
  for (const char* name : {"fsdp1_w4", "fsdp2_w4", "ds_zero2_w3", "ds_zero3_w3"}) {
    const Ended whole = acclaunch({"verify", kData / name});
    CAPTURE(whole.err);
    CHECK(whole.status == 0);
    CHECK(contains(whole.out, "nothing is damaged"));
  }
  const Ended plain = acclaunch({"verify", kFsdp / "model_full.safetensors"});
  CHECK(plain.status == 0);
  CHECK(contains(plain.out, "29 of 29 tensors"));
  CHECK(contains(plain.out, "no checksums"));
  CHECK(acclaunch({"verify", kData}).status == 2);

  const TemporaryFolder folder;
  const fs::path copy = copy_of(kFsdp, folder);
  const fs::path files[] = {damage(copy, "transformer.h.0.mlp.c_fc.weight", 0),
                            damage(copy, "transformer.h.0.mlp.c_fc.weight", 3),
                            damage(copy, "transformer.wte.weight", 1)};
  const Ended found = acclaunch({"verify", copy});
  CHECK(found.status == 1);
  CHECK(contains(found.out, "3 faults"));
  for (const fs::path& file : files) {
    CHECK(contains(found.err, "damaged: " + file.string() + ", model.transformer."));
  }

  const fs::path lost = copy / "optimizer_0" / "__2_0.distcp";
  fs::remove(lost);
  const Ended without = acclaunch({"verify", copy});
  CHECK(without.status == 1);
  CHECK(contains(without.err, "__2_0.distcp"));
  CHECK(contains(without.err, "damaged: " + files[2].string() + ", model.transformer.wte.weight"));

  const fs::path metadata = copy / "optimizer_0" / ".metadata";
  std::ofstream(metadata) << "PK";
  const Ended nothing = acclaunch({"verify", copy / "optimizer_0"});
  CHECK(nothing.status == 2);
  CHECK(contains(nothing.err, "nothing can be verified: " + metadata.string()));
}

TEST_CASE("a FIFO in place of any file is an error that names it, and does not block") {
  const TemporaryFolder folder;
  const auto replace_by_pipe = [](const fs::path& path) {
    fs::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  };
  const fs::path zero = copy_of(kData / "ds_zero2_w3", folder);
  replace_by_pipe(zero / "latest");
  const std::string out = folder.path() / "out";
  for (const Words& command :
       {Words{"inspect", zero}, Words{"verify", zero}, Words{"merge-weights", zero, out},
        Words{"convert", zero, out, "--to", "safetensors"},
        Words{"reshard", zero, out, "--num_processes", "2"}}) {
    CAPTURE(command[0]);
    const Ended refused = acclaunch(command);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(contains(refused.err, (zero / "latest").string() + ": not a regular file"));
  }

  for (const char* name : {"fsdp2_w4", "ds_zero2_w3"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kData / name)) {
      const fs::path path = entry.path().lexically_relative(kData);
      if (!entry.is_regular_file()) {
        continue;
      }
      CAPTURE(path.string());
      const fs::path copy = folder.path() / "copies" / path.begin()->string();
      fs::remove_all(folder.path() / "copies");
      fs::create_directory(folder.path() / "copies");
      fs::copy(kData / name, copy, fs::copy_options::recursive);
      replace_by_pipe(folder.path() / "copies" / path);
      const Ended verified = acclaunch({"verify", copy});
      CAPTURE(verified.err);
      // The reference values next to a checkpoint are not part of it and are not read.
      const bool is_read = path.extension() != ".safetensors";
      CHECK((verified.status == 0) == !is_read);
      CHECK(contains(verified.err, path.filename().string()) == is_read);
    }
  }
  const fs::path weights = folder.path() / "model.safetensors";
  replace_by_pipe(weights);
  for (const char* command : {"inspect", "verify", "estimate-memory"}) {
    const Ended refused = acclaunch({command, weights});
    CAPTURE(command);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(contains(refused.err, weights.string() + ": not a regular file"));
  }
}

TEST_CASE("reshard and convert: a round trip keeps weights and optimizer state") {
  const TemporaryFolder folder;
  const fs::path frozen_bf16 = kData / "ds_bf16_w2";
  struct Case {
    Words words;  ///< the second one is the source
    Want same;
  };
  const Case cases[] = {
      {{"reshard", kFsdp, "--num_processes", "3"}, Want::everything},
      {{"reshard", frozen_bf16, "--num_processes", "3"}, Want::everything},
      {{"convert", frozen_bf16, "--to", "deepspeed", "--zero_stage", "3"}, Want::everything},
      {{"convert", kFsdp, "--to", "dcp", "--num_processes", "5"}, Want::everything},
      {{"convert", kFsdp, "--to", "bin"}, Want::weights},
      {{"convert", kFsdp, "--to", "safetensors", "--max_shard_size", "20KB"}, Want::weights},
      {{"convert", kFsdp, "--to", "deepspeed", "--zero_stage", "3", "--num_processes", "3"},
       Want::weights},
  };
  for (const Case& each : cases) {
    CAPTURE(each.words);
    const fs::path out = folder.path() / "out", back = folder.path() / "back";
    const fs::path source = each.words[1];
    Words words = each.words;
    words.insert(words.begin() + 2, out);
    const Ended ended = acclaunch(words);
    CAPTURE(ended.err);
    REQUIRE(ended.status == 0);
    CHECK(tensors_of(out, each.same) == tensors_of(source, each.same));
    if (!fs::exists(out / "model.safetensors.index.json")) {
      const fs::path bin = out / "optimizer.bin";
      CHECK(groups_of(fs::exists(bin) ? bin : out) == groups_of(source));
    }
    CHECK(acclaunch({"verify", out}).status == 0);
    CHECK(acclaunch({"merge-weights", out, back}).status == 0);
    CHECK(tensors_of(back, Want::weights) == tensors_of(source, Want::weights));
    fs::remove_all(out);
    fs::remove_all(back);
  }
}

TEST_CASE("reshard and convert: other files of a save folder are copied") {
  const TemporaryFolder folder;
  const fs::path copy = copy_of(kFsdp, folder);
  for (const char* name :
       {"scheduler.bin", "random_states_0.pkl", "random_states_3.pkl", "x.txt"}) {
    std::ofstream(copy / name) << name;
  }
  for (const Words& words : {Words{"reshard"}, Words{"convert", "--to", "dcp"}}) {
    const fs::path out = folder.path() / words.front();
    Words all = words;
    all.insert(all.end(), {copy, out, "--num_processes", "2"});
    const Ended ended = acclaunch(all);
    REQUIRE(ended.status == 0);
    CHECK(contains(ended.out, "left out: " + copy.string() + "/model_full.safetensors"));
    CHECK(contains(ended.out, copy.string() + "/random_states_3.pkl"));
    CHECK(contains(ended.out, copy.string() + "/x.txt"));
    CHECK(names_in(out) == std::set<std::string>{"acc_checkpoint.json", "optimizer_0",
                                                 "pytorch_model_fsdp_0", "random_states_0.pkl",
                                                 "scheduler.bin"});
    CHECK(file_text(out / "scheduler.bin") == "scheduler.bin");
  }
}

TEST_CASE("reshard and convert: a folder is replaced only with --overwrite, other files never") {
  const TemporaryFolder folder;
  const std::string out = folder.path() / "out";
  const auto to = [&](const char* ranks, const Words& flags = {}) {
    Words words = {"reshard", kModel, out, "--num_processes", ranks};
    words.insert(words.end(), flags.begin(), flags.end());
    return acclaunch(words);
  };
  CHECK(to("2").status == 0);
  const Ended refused = to("3");
  CHECK(refused.status == 2);
  CHECK(contains(refused.err, "--overwrite"));
  CHECK(names_in(out) == std::set<std::string>{".metadata", "__0_0.distcp", "__1_0.distcp"});
  CHECK(to("3", {"--overwrite"}).status == 0);
  CHECK(names_in(out).contains("__2_0.distcp"));
  std::ofstream(fs::path(out) / "notes.txt") << "mine";
  CHECK(contains(to("2", {"--overwrite"}).err, "notes.txt"));
  CHECK(names_in(folder.path()) == std::set<std::string>{"out"});

  const fs::path zero = folder.path() / "zero";
  const Words convert = {"convert",         "--to", "deepspeed",  kModel, zero,
                         "--num_processes", "2",    "--overwrite"};
  CHECK(acclaunch(convert).status == 0);
  CHECK(acclaunch(convert).status == 0);
  std::ofstream(zero / "Makefile") << "mine";
  CHECK(contains(acclaunch(convert).err, "Makefile"));
  CHECK(file_text(zero / "Makefile") == "mine");

  const Ended same =
      acclaunch({"reshard", kFsdp / "model_full.safetensors", out + "2", "--num_processes", "2"});
  CHECK(same.status == 2);
  CHECK(contains(same.err, "any number of ranks"));
}

TEST_CASE("a killed command leaves no partial output, and nothing that disturbs the next one") {
  const TemporaryFolder folder;
  const fs::path source = sparse_weights(folder.path() / "large.safetensors", 16 << 20);
  const fs::path out = folder.path() / "out";
  struct Case {
    Words words;
    fs::path watched;
    std::string first_sign;
    fs::path result;
  };
  fs::create_directory(out);
  const Case cases[] = {
      {{"merge-weights", source, out}, out, "model.safetensors.acc-tmp", out / "model.safetensors"},
      {{"convert", source, folder.path() / "dcp", "--to", "dcp"},
       folder.path(),
       "dcp.acc-tmp",
       folder.path() / "dcp"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.words);
    Words words = each.words;
    words.insert(words.begin(), ACC_BIN_DIR "/acclaunch");
    FolderWatch watch(each.watched);
    Program program(words);
    watch.await(each.first_sign);
    program.signal(SIGKILL);
    program.wait();
    if (fs::exists(each.result)) {  // the command ended before the kill
      CHECK(acclaunch({"verify", each.result}).status == 0);
      fs::remove_all(each.result);
    }
    CHECK(acclaunch(each.words).status == 0);
    CHECK(open_checkpoint(each.result).catalog.tensors.size() == 1);
  }
  CHECK(names_in(out) == std::set<std::string>{"model.safetensors"});
  CHECK(names_in(folder.path()) == std::set<std::string>{"large.safetensors", "out", "dcp"});
}

// Sanitizers need more address space than the limit of this test.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("merge-weights: a checkpoint larger than the memory it may take") {
  const TemporaryFolder folder;
  const fs::path source = sparse_weights(folder.path() / "large.safetensors", 48 << 20);
  Program merge({"/bin/sh", "-c",
                 "ulimit -v 131072; exec " ACC_BIN_DIR
                 "/acclaunch merge-weights \"$0\" \"$1\" --dtype bf16 --num_threads 4",
                 source, folder.path() / "out"});
  const int status = merge.wait();
  CAPTURE(merge.err());
  CHECK(status == 0);
  CHECK(open_checkpoint(folder.path() / "out").catalog.at("weight", "param", "test").dtype ==
        Dtype::bf16);
}
#endif
