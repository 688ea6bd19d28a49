// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/convert.hpp"

#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/convert/verify.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "convert/outputs.hpp"

#include <algorithm>
#include <set>

namespace acc::checkpoint::conversion {

// The checksums in the output were computed from the bytes that were read and converted. Reading
// all of the output and comparing them detects what the disk or the file system damaged on the way.
std::size_t check_written(const Stored& written, const std::vector<OutputTensor>& tensors,
                          const Options& options) {
  for (const OutputTensor& tensor : tensors) {
    const StoredTensor* const there =
        written.catalog.find(tensor.name, tensor.from->is_weight() ? "param" : tensor.from->kind);
    if (there == nullptr || there->shape != tensor.from->shape || there->dtype != tensor.dtype) {
      throw not_as_written(written.path, tensor.name);
    }
  }
  check_written_bytes(written, options);
  return tensors.size();
}

void check_written_bytes(const Stored& written, const Options& options) {
  Verification found;
  verify_tensors(written, options.num_threads, options.progress, found);
  if (!found.damaged.empty()) {
    throw not_as_written(found.damaged.front().file, found.damaged.front().tensor);
  }
}

// The buffer belongs to the thread and is reused for all its tiles.
void stream(TensorReader& reader, const StoredTensor& tensor, Range range, Dtype dtype,
            ProgressMeter& meter, const torch::Sink& sink) {
  std::vector<Tile> tiles;
  cut_tiles(tensor, 0, range, kTileBytes, tiles);
  thread_local std::vector<std::byte> buffer;
  for (const Tile& tile : tiles) {
    const std::size_t nbytes = static_cast<std::size_t>(tile.numel) * size_of(dtype);
    buffer.resize(std::max(buffer.size(), nbytes));
    reader.read(tensor, tile.begin, tile.numel, dtype, buffer.data());
    sink(std::span(buffer).first(nbytes));
    meter.add(nbytes);
  }
}

void check_sources(const std::vector<const StoredTensor*>& tensors, TensorReader& reader,
                   const Options& options) {
  std::vector<Part> parts;
  std::uint64_t total = 0;
  for (const StoredTensor* const tensor : tensors) {
    if (tensor == nullptr || tensor->rule) {  // with a rule: ours, with block checksums
      continue;
    }
    const bool is_long = std::ranges::any_of(tensor->pieces, [&](const StoredPiece& piece) {
      return Part{tensor, piece}.nbytes() > kTileBytes;
    });
    if (is_long && !reader.checks_parts(*tensor)) {
      for (const StoredPiece& piece : tensor->pieces) {
        total += parts.emplace_back(Part{tensor, piece}).nbytes();
      }
    }
  }
  ProgressMeter meter(options.progress, Component::launcher, "checking what is read,", total);
  for_each_parallel(parts.size(), options.num_threads, [&](std::size_t i, std::size_t) {
    reader.verify(*parts[i].tensor, parts[i].piece);
    meter.add(parts[i].nbytes());
  });
}

Error not_as_written(const std::filesystem::path& path, const std::string& tensor) {
  return {Errc::config, path.string() + ": tensor " + tensor +
                            " does not read back as it was written; nothing was kept"};
}

void check_replaces(const Stored& from, const std::filesystem::path& file, const Options& options) {
  if (!InputPath(file).exists()) {
    return;
  }
  const bool is_source = std::ranges::any_of(from.catalog.files, [&](const InputPath& each) {
    std::error_code ignored;
    return each.path() == file || std::filesystem::equivalent(each.path(), file, ignored);
  });
  if (is_source || !(options.overwrite || options.merge)) {
    throw Error(
        Errc::config,
        file.string() + (is_source ? " is read, and would be replaced" : " already exists") +
            "; choose another folder" + (is_source ? "" : ", or --overwrite to replace it"));
  }
}

namespace {

/// Adds the names, in one line.
void add_left_out(const std::vector<std::string>& names, const std::string& before,
                  Result& result) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + before + names[i];
  }
  if (names.size() > kShown) {
    text += ", … (" + std::to_string(names.size()) + " in all)";
  }
  if (!names.empty()) {
    result.left_out.push_back(text);
  }
}

/// Returns the weights that keep their dtype although another one is asked for. Numbers of 8 bits
/// are not converted, because they belong to scales that only the program knows.
std::vector<std::string> not_converted(const Stored& from, const Options& options) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : from.catalog.tensors) {
    if (options.dtype && tensor.is_weight() && is_trainable(tensor.dtype) &&
        !is_real(tensor.dtype)) {
      names.push_back(tensor.name + " as " + std::string(torch_name(*options.dtype)) +
                      " (it stays " + std::string(torch_name(tensor.dtype)) + ")");
    }
  }
  return names;
}

/// Returns the names of what was read from a folder.
std::set<std::string> names_read(const Stored& from) {
  std::set<std::string> names;
  for (const InputPath& file : from.catalog.files) {
    names.insert(file.path().lexically_relative(from.path).begin()->string());
  }
  return names;
}

}  // namespace

void add_other_files(const InputPath& from, std::set<std::string> read,
                     const std::filesystem::path& out, Result& result) {
  read.insert(kManifestFile);
  if (const auto inside = out.lexically_relative(from.path()); !inside.empty()) {
    read.insert(inside.begin()->string());  // the output itself; ".." if it is elsewhere
  }
  const InputPath written = out;
  std::vector<std::string> names;
  for (const std::string& name : from.names()) {
    if (!read.contains(name) && !name.ends_with(kSafetensorsIndex) && !(written / name).exists()) {
      names.push_back(name);
    }
  }
  add_left_out(names, from.string() + "/", result);
}

// Each writer opens its own reader of the catalog, checks its sources, reads its output back, and
// gives it its name if the sources are unchanged.
Result convert(const Stored& from, const std::filesystem::path& out, const Options& options) {
  if (!has_optimizer(from) && weights_of(from, {}).empty()) {
    throw Error(Errc::not_supported, from.path.string() + " has no tensors to convert");
  }
  Result result = read_unchanged(from.path, [&] {
    switch (options.to) {
      case Target::safetensors: return write_safetensors(from, out, options);
      case Target::bin: return write_bin(from, out, options);
      case Target::dcp: return write_dcp(from, out, options);
      case Target::deepspeed: break;
    }
    return write_deepspeed(from, out, options);
  });
  add_left_out(from.training.unread, "", result);
  add_left_out(not_converted(from, options), "", result);
  if (!options.merge) {
    if (!has_optimizer(from) && !from.training.groups.empty()) {
      result.left_out.emplace_back("the settings of the optimizer, which has no state");
    }
    if (from.format == Format::save_folder || from.format == Format::safetensors_set) {
      add_other_files(from.path, names_read(from), out, result);
    }
  }
  return result;
}

}  // namespace acc::checkpoint::conversion
