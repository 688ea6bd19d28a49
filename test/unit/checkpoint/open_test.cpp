// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/open/open.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "support/errors.hpp"
#include "support/safetensors_file.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using acc::test::contains;
using acc::test::file_text;
using acc::test::refusal;
using acc::test::SafetensorsFile;
using acc::test::TemporaryFolder;
using acc::test::write_text;

namespace {

namespace fs = std::filesystem;

const fs::path kGolden = ACC_TEST_DATA "/checkpoints";

std::vector<float> values_of(TensorReader& reader, const StoredTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(numel_of(tensor.shape)));
  reader.read(tensor, 0, std::ssize(values), Dtype::f32, values.data());
  return values;
}

/// Returns the largest difference to a file with the whole tensors, whose names are
/// "<prefix><name>", or "<prefix><name>.<kind>" for moments. 0 means equal bits.
double distance(const Stored& stored, const fs::path& full, const std::string& prefix = "") {
  const SafetensorsFile expected(full);
  TensorReader reader(stored.catalog);
  double most = 0.0;
  for (const TensorEntry& entry : expected.tensors()) {
    CAPTURE(entry.name);
    std::string name = entry.name.substr(prefix.size());
    std::string kind = "param";
    if (!prefix.empty()) {
      kind = name.substr(name.rfind('.') + 1);
      name.resize(name.rfind('.'));
    }
    const StoredTensor& tensor = stored.catalog.at(name, kind, full.string());
    CHECK(tensor.shape == entry.shape);
    std::vector<float> values(static_cast<std::size_t>(entry.numel()));
    expected.read_slice(entry.name, 0, values);
    const std::vector<float> found = values_of(reader, tensor);
    if (std::memcmp(values.data(), found.data(), values.size() * sizeof(float)) == 0) {
      continue;
    }
    most = std::max(most, 1e-30);
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(values[i]) - found[i]));
    }
  }
  return most;
}

void copy_of(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
}

/// Adds a manifest to a folder, as if we had written its files.
Manifest manifest_of(const fs::path& folder) {
  Manifest manifest;
  manifest.writer = "acclaunch 0.1.0";
  manifest.state_dict = "SHARDED_STATE_DICT";
  manifest.world_size = 4;
  manifest.step = 3;
  manifest.skipped_steps = 1;
  manifest.optimizer = "adamw";
  manifest.loss_scaler = {{"scale", 1024.0}};
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      Manifest::File file;
      file.path = entry.path().lexically_relative(folder).generic_string();
      file.nbytes = entry.file_size();
      if (entry.path().extension() != ".distcp") {
        const std::string text = file_text(entry.path());
        file.crc32 = crc32(0, std::as_bytes(std::span(text)));
      }
      manifest.files.push_back(file);
    }
  }
  return manifest;
}

}  // namespace

TEST_CASE("formats are detected by the files in a folder") {
  struct Row {
    const char* path;
    Format format;
    const char* name;
  };
  const Row rows[] = {
      {"fsdp2_w4", Format::save_folder, "folder of a saved training state"},
      {"fsdp2_w4/pytorch_model_fsdp_0", Format::dcp, "torch DCP folder"},
      {"fsdp2_w4/optimizer_0", Format::dcp, "torch DCP folder"},
      {"fsdp2_w4/model_full.safetensors", Format::safetensors, "safetensors file"},
      {"ds_zero2_w3", Format::deepspeed, "DeepSpeed checkpoint"},
      {"ds_zero2_w3/global_step3", Format::deepspeed, "DeepSpeed checkpoint"},
      {"ds_zero3_w3/global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt", Format::torch_file,
       "torch.save file"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.path);
    CHECK(format_of(kGolden / row.path) == row.format);
    CHECK(to_string(row.format) == row.name);
  }
  const TemporaryFolder folder;
  const auto file_in = [&](const char* name, const char* file) {
    fs::create_directories(folder.path() / name);
    write_text(folder.path() / name / file, "");
    return format_of(folder.path() / name);
  };
  CHECK(file_in("a", "model.safetensors") == Format::safetensors_set);
  CHECK(file_in("a", "scheduler.bin") == Format::save_folder);
  CHECK(file_in("b", "x.safetensors.index.json") == Format::safetensors_set);
  CHECK(file_in("c", "shard-00001-model-00001-of-00001.safetensors") == Format::dcp_hugging_face);
  CHECK(file_in("d", "pytorch_model.bin") == Format::save_folder);
  CHECK(file_in("e", kManifestFile) == Format::save_folder);
}

TEST_CASE("a folder that is not a checkpoint is refused with what was looked for and found") {
  const TemporaryFolder folder;
  const fs::path& path = folder.path();
  CHECK(refusal([&] { open_checkpoint(path / "no"); }) ==
        (path / "no").string() + ": no such file or folder");
  std::string message = refusal([&] { open_checkpoint(path); });
  CHECK(message.starts_with(path.string() + ": not a checkpoint: looked for .metadata"));
  CHECK(message.ends_with("found nothing"));
  for (int i = 0; i < 12; ++i) {
    write_text(path / ("__" + std::to_string(i) + "_0.distcp"), "");
  }
  message = refusal([&] { open_checkpoint(path); });
  CHECK(message.ends_with("__5_0.distcp, … (12 in all) (a save that was not completed)"));
  CHECK(contains(refusal([&] { open_checkpoint(path / "__0_0.distcp"); }),
                 "expected a .safetensors, .bin or .pt file, or a folder with a checkpoint"));
  fs::create_directory(path / "state");
  write_text(path / "state/scheduler.bin", "");
  write_text(path / "state/pytorch_model_fsdp_rank0.bin", "");
  CHECK(contains(refusal([&] { open_checkpoint(path / "state"); }),
                 "a rank's part of flat parameters (LOCAL_STATE_DICT)"));
  CHECK(contains(refusal([&] { open_checkpoint(path / "state", Want::weights, 1); }),
                 "no model number 1: looked for pytorch_model_fsdp_1, pytorch_model_fsdp_1.bin"));
  const fs::path one = kGolden / "fsdp2_w4/model_full.safetensors";
  CHECK(contains(refusal([&] { open_checkpoint(one, Want::weights, 1); }),
                 "a safetensors file, which has one model (index 0); model number 1 was"));
}

TEST_CASE("the newest complete checkpoint of a series is opened") {
  const TemporaryFolder folder;
  const fs::path series = folder.path() / "run";
  fs::create_directory(series);
  for (const char* name : {"checkpoint_2", "checkpoint_10"}) {
    copy_of(kGolden / "fsdp2_w4", series / name);
  }
  fs::create_directories(series / "checkpoint_11/optimizer_0");
  write_text(series / "checkpoint_11/optimizer_0/.metadata", "half");
  write_text(series / "log.txt", "");
  CHECK(find_checkpoint(series) == series / "checkpoint_10");  // Accelerate writes no `latest`
  CHECK(open_checkpoint(series, Want::weights).path == series / "checkpoint_10");
  write_text(series / "latest", "checkpoint_2");
  const Stored stored = open_checkpoint(series);
  CHECK(stored.path == series / "checkpoint_2");
  CHECK(distance(stored, kGolden / "fsdp2_w4/model_full.safetensors") == 0.0);
  // A checkpoint, or a path that does not exist, is returned unchanged.
  CHECK(find_checkpoint(series / "checkpoint_2") == series / "checkpoint_2");
  fs::remove_all(series / "checkpoint_2");
  fs::remove_all(series / "checkpoint_10");
  CHECK(find_checkpoint(series) == series);
  CHECK(contains(refusal([&] { open_checkpoint(series); }), "complete checkpoint_<n>"));
}

TEST_CASE("FSDP's golden sets: parameters and moments, whole or in parts") {
  const fs::path model_full = kGolden / "fsdp2_w4/model_full.safetensors";
  const fs::path optimizer_full = kGolden / "fsdp2_w4/optimizer_full.safetensors";
  struct Row {
    const char* path;
    double allowed;  ///< FSDP 1 sums in another order
  };
  for (const Row& row : {Row{"fsdp2_w4", 0.0}, Row{"fsdp1_w4", 1e-6}}) {
    CAPTURE(row.path);
    const fs::path path = kGolden / row.path;
    const Stored both = open_checkpoint(path);
    CHECK(both.format == Format::save_folder);
    CHECK(both.provenance.format == "torch DCP");
    CHECK(both.provenance.world_size == 4);
    CHECK_FALSE(both.manifest);
    CHECK(distance(both, model_full) <= row.allowed);
    CHECK(distance(both, optimizer_full, "optimizer.state.") <= row.allowed);
    CHECK(both.training.step == 3);
    REQUIRE(both.training.groups.size() == 2);
    CHECK(both.training.groups[0].hyper_parameters.at("lr") == 1e-3);
    CHECK(both.training.groups[0].hyper_parameters.at("weight_decay") !=
          both.training.groups[1].hyper_parameters.at("weight_decay"));

    const Stored model = open_checkpoint(path / "pytorch_model_fsdp_0");
    CHECK(distance(model, model_full) <= row.allowed);
    const Stored optimizer = open_checkpoint(path / "optimizer_0");
    CHECK(distance(optimizer, optimizer_full, "optimizer.state.") <= row.allowed);
    const Stored weights = open_checkpoint(path, Want::weights);
    CHECK(weights.catalog.tensors.size() == model.catalog.tensors.size());
    TensorReader reader(both.catalog);
    CHECK(std::ranges::all_of(both.catalog.tensors,
                              [&](const auto& tensor) { return reader.verify(tensor); }));
  }
}

TEST_CASE("DeepSpeed's golden sets: fp32 master weights and moments, by folder and by tag") {
  for (const char* name : {"ds_zero2_w3", "ds_zero3_w3"}) {
    CAPTURE(name);
    const fs::path path = kGolden / name;
    for (const fs::path& opened : {path, path / "global_step3"}) {
      const Stored stored = open_checkpoint(opened);
      CHECK(distance(stored, path / "fp32_full.safetensors") == 0.0);
      CHECK(stored.provenance.world_size == 3);
      CHECK(stored.training.step == 3);
      CHECK(stored.catalog.find("transformer.wte.weight", "exp_avg_sq") != nullptr);
    }
  }
}

TEST_CASE("older names of Accelerate are read") {
  const TemporaryFolder folder;
  copy_of(kGolden / "fsdp2_w4/pytorch_model_fsdp_0", folder.path() / "pytorch_model_0");
  copy_of(kGolden / "fsdp2_w4/optimizer_0", folder.path() / "optimizer_0");
  Stored stored = open_checkpoint(folder.path());
  CHECK(distance(stored, kGolden / "fsdp2_w4/model_full.safetensors") == 0.0);
  CHECK(distance(stored, kGolden / "fsdp2_w4/optimizer_full.safetensors", "optimizer.state.") ==
        0.0);
  // DeepSpeed's plugin: the tag's folder, with `latest` next to it.
  const TemporaryFolder other;
  copy_of(kGolden / "ds_zero2_w3/global_step3", other.path() / "pytorch_model");
  accelerate::write_scheduler(other.path() / "scheduler.bin", {3, {1e-3}, {1e-3}});
  for (const bool has_latest : {false, true}) {
    if (has_latest) {
      write_text(other.path() / "latest", "pytorch_model");
    }
    stored = open_checkpoint(other.path());
    CHECK(stored.format == Format::save_folder);
    CHECK(stored.provenance.format == "DeepSpeed ZeRO 2");
    CHECK(distance(stored, kGolden / "ds_zero2_w3/fp32_full.safetensors") == 0.0);
    CHECK(stored.training.step == 3);
  }
}

TEST_CASE("weights next to a training state are read with it") {
  const TemporaryFolder folder;
  fs::copy(kGolden / "fsdp2_w4/model_full.safetensors", folder.path() / "model.safetensors");
  accelerate::write_scheduler(folder.path() / "scheduler.bin", {7, {1e-3}, {1e-3}});
  accelerate::write_scaler(folder.path() / "scaler.pt", {{"scale", 512.0},
                                                         {"growth_factor", 2.0},
                                                         {"backoff_factor", 0.5},
                                                         {"growth_interval", 2000.0},
                                                         {"good_steps", 5.0}});
  const Stored stored = open_checkpoint(folder.path());
  CHECK(stored.format == Format::save_folder);
  CHECK(stored.provenance.format == "safetensors");
  CHECK(stored.training.step == 7);
  CHECK(stored.training.loss_scaler.at("scale") == 512.0);
  CHECK(distance(stored, kGolden / "fsdp2_w4/model_full.safetensors") == 0.0);
}

// Without split_batches, Accelerate steps the scheduler once per process in each optimizer step.
TEST_CASE("the step of an Accelerate scheduler is divided by the number of processes") {
  struct Case {
    std::int64_t last_epoch;
    int processes;
    std::int64_t step;
  };
  for (const Case& each : {Case{6, 0, 6}, {6, 1, 6}, {6, 3, 2}, {0, 3, 0}, {7, 3, 7}}) {
    CAPTURE(each.last_epoch);
    CAPTURE(each.processes);
    const TemporaryFolder folder;
    fs::copy(kGolden / "fsdp2_w4/model_full.safetensors", folder.path() / "model.safetensors");
    accelerate::write_scheduler(folder.path() / "scheduler.bin", {each.last_epoch, {1e-3}, {1e-3}});
    for (int rank = 0; rank < each.processes; ++rank) {
      write_text(folder.path() / accelerate::random_states_file(rank), "");
    }
    CHECK(open_checkpoint(folder.path()).training.step == each.step);
  }
}

TEST_CASE("a manifest provides what the files cannot store, and checks them") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "state";
  fs::create_directory(path);
  for (const char* part : {"pytorch_model_fsdp_0", "optimizer_0"}) {
    copy_of(kGolden / "fsdp2_w4" / part, path / part);
  }
  write_text(path / kManifestFile, format_manifest(manifest_of(path)));
  const Stored stored = open_checkpoint(path);
  REQUIRE(stored.manifest);
  CHECK(stored.training.skipped_steps == 1);
  CHECK(stored.training.optimizer == "adamw");
  CHECK(stored.training.loss_scaler.at("scale") == 1024.0);
  CHECK(stored.provenance.writer == "acclaunch 0.1.0");
  CHECK(stored.provenance.format == "torch DCP");
  CHECK(distance(stored, kGolden / "fsdp2_w4/model_full.safetensors") == 0.0);

  // Any byte of the files that are read and have no checksums of their own.
  for (const char* name : {"pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata"}) {
    const std::string whole = file_text(path / name);
    for (std::size_t at = 0; at < whole.size(); at += whole.size() / 23) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x04);
      write_text(path / name, damaged);
      const std::string message = refusal([&] { open_checkpoint(path); });
      CAPTURE(message);
      CHECK(message.starts_with((path / name).string() + ": damaged"));
    }
    write_text(path / name, whole);
  }
  const fs::path data = path / "optimizer_0/__2_0.distcp";
  fs::resize_file(data, fs::file_size(data) - 1);
  CHECK(refusal([&] { open_checkpoint(path); }).starts_with(data.string()));
  fs::remove(data);
  CHECK(contains(refusal([&] { open_checkpoint(path); }), data.string()));

  // A save was killed between two renames.
  fs::rename(path, path.string() + ".acc-new");
  CHECK(contains(refusal([&] { open_checkpoint(path); }), "__2_0.distcp"));
}

TEST_CASE("a changed byte of a DCP file is never loaded") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "model";
  copy_of(kGolden / "fsdp2_w4/pytorch_model_fsdp_0", path);
  const fs::path data = path / "__1_0.distcp";
  const std::string whole = file_text(data);
  int found = 0;
  constexpr std::size_t kPlaces = 150;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    const std::size_t at = i * (whole.size() - 1) / (kPlaces - 1);
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    write_text(data, damaged);
    const Stored stored = open_checkpoint(path);
    // At most the tensor with the changed byte is refused.
    int refused = 0;
    TensorReader reader(stored.catalog);
    TensorReader good(stored.catalog);
    for (const StoredTensor& tensor : stored.catalog.tensors) {
      std::vector<float> values;
      const std::string message = refusal([&] { values = values_of(reader, tensor); });
      if (!message.empty()) {
        CAPTURE(message);
        CHECK(message.starts_with(data.string()));
        CHECK(contains(message, tensor.name));
        CHECK(refusal([&] { good.verify(tensor); }) == message);
        ++refused;
      }
    }
    CHECK(refused <= 1);
    found += refused;
    if (refused == 0) {  // padding, or bytes that are not read
      CHECK(distance(stored, kGolden / "fsdp2_w4/model_full.safetensors") == 0.0);
    }
  }
  CHECK(found > static_cast<int>(kPlaces) / 3);
}

TEST_CASE("a changed byte of unchecked metadata gives an Error or correct values") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "model";
  copy_of(kGolden / "fsdp2_w4/pytorch_model_fsdp_0", path);
  const std::string whole = file_text(path / ".metadata");
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += 131) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x11);
    write_text(path / ".metadata", damaged);
    const std::string message = refusal([&] {
      const Stored stored = open_checkpoint(path);
      TensorReader reader(stored.catalog);
      for (const StoredTensor& tensor : stored.catalog.tensors) {
        reader.verify(tensor);
      }
    });
    if (!message.empty()) {
      CAPTURE(message);
      CHECK(message.starts_with(path.string()));
      ++refused;
    }
  }
  CHECK(refused > 0);
}
