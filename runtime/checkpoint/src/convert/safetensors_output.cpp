// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/safetensors/header.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "convert/output_set.hpp"
#include "convert/outputs.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

// Works in two parallel passes over tiles. The first reads, converts and writes each tile, and
// keeps the CRC of its bytes. The second reads each tile back from the file and compares the CRC,
// because safetensors files have no checksums. Only then do the files get their names.
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kFormatKey = "format";

/// Destination of a tensor's elements.
struct Place {
  std::size_t file = 0;
  std::uint64_t offset = 0;
};

/// Readers of a folder prefer model.safetensors if there is also a set of shards.
void check_no_other_form(const fs::path& folder, bool is_set) {
  const fs::path other = folder / kOneFile;
  if (is_set && InputPath(other).exists()) {
    throw Error(Errc::config, "will not write shards next to " + other.string() +
                                  ", which readers would take instead; remove it, or choose "
                                  "another folder");
  }
}

class SafetensorsJob {
 public:
  SafetensorsJob(const Stored& stored, const fs::path& folder, const Options& options)
      : options_(options),
        stored_(stored),
        tensors_(weights_of(stored, options.dtype)),
        reader_(stored.catalog),
        files_(folder),
        places_(tensors_.size()) {
    if (!options.merge || stored.provenance.world_size == 0) {
      take_aliases();
    }
    lay_out(folder);
  }

  Result run() {
    check_sources(sources_of(tensors_), reader_, options_);
    tiles_ = cut_tiles(tensors_);
    crcs_.resize(tiles_.size());
    for_each_tile("writing", [this](std::size_t i, std::span<std::byte> bytes) {
      const Tile& tile = tiles_[i];
      const OutputTensor& tensor = tensors_[tile.tensor];
      reader_.read(*tensor.from, tile.begin, tile.numel, tensor.dtype, bytes.data());
      crcs_[i] = crc32(0, bytes);
      files_.write(places_[tile.tensor].file, offset_of(tile), bytes);
    });
    for_each_tile("checking", [this](std::size_t i, std::span<std::byte> bytes) {
      const Tile& tile = tiles_[i];
      files_.read(places_[tile.tensor].file, offset_of(tile), bytes);
      if (crc32(0, bytes) != crcs_[i]) {
        throw not_as_written(files_.temporary(places_[tile.tensor].file),
                             tensors_[tile.tensor].name);
      }
    });
    return {
        files_.commit(stored_.path), tensors_.size() + aliases_.size(), nbytes_of(tensors_), {}};
  }

 private:
  // Names that share bytes are written as save_model of safetensors does it: one tensor, and the
  // others as metadata. load_model refuses files with a tensor for each. A merge of what several
  // ranks wrote gives each name a tensor of its own, as the tools of Accelerate and DeepSpeed do.
  void take_aliases() {
    for (const OutputTensor& tensor : tensors_) {
      if (!tensor.same_as.empty() && tensor.name != kFormatKey) {
        aliases_.emplace(tensor.name, tensor.same_as);
      }
    }
    std::erase_if(tensors_, [&](const OutputTensor& each) { return aliases_.contains(each.name); });
  }

  // Creates all files in their final size and writes the headers, so that tiles can be written in
  // any order.
  void lay_out(const fs::path& folder) {
    std::vector<NamedTensor> named;
    std::map<std::string_view, std::size_t> number;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      named.push_back({tensors_[i].name, tensors_[i].dtype, tensors_[i].from->shape});
      number[tensors_[i].name] = i;
    }
    const SafetensorsPlan plan = plan_safetensors(std::move(named), options_.max_shard_nbytes);
    check_no_other_form(folder, !plan.index.empty());
    for (const SafetensorsPlan::File& file : plan.files) {
      check_replaces(stored_, folder / file.name, options_);
      add_file(file, number);
    }
    if (!plan.index.empty()) {
      check_replaces(stored_, folder / kIndex, options_);
      files_.write(files_.add(kIndex, plan.index.size()), 0, std::as_bytes(std::span(plan.index)));
    }
  }

  void add_file(const SafetensorsPlan::File& file,
                const std::map<std::string_view, std::size_t>& number) {
    std::set<std::string_view> names;
    for (const NamedTensor& tensor : file.tensors) {
      names.insert(tensor.name);
    }
    std::map<std::string, std::string> metadata = {{kFormatKey, "pt"}};
    std::ranges::copy_if(aliases_, std::inserter(metadata, metadata.end()),
                         [&](const auto& alias) { return names.contains(alias.second); });
    const SafetensorsLayout layout = lay_out_safetensors(file.tensors, metadata);
    const std::size_t added = files_.add(file.name, layout.nbytes);
    files_.write(added, 0, std::as_bytes(std::span(layout.header)));
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      places_[number.at(file.tensors[i].name)] = {added, layout.offsets[i]};
    }
  }

  [[nodiscard]] std::uint64_t offset_of(const Tile& tile) const {
    return places_[tile.tensor].offset +
           static_cast<std::uint64_t>(tile.begin) * size_of(tensors_[tile.tensor].dtype);
  }

  template <typename Body>
  void for_each_tile(const char* what, const Body& body) {
    ProgressMeter meter(options_.progress, Component::launcher, what, nbytes_of(tensors_));
    std::vector<std::vector<std::byte>> buffers(
        static_cast<std::size_t>(std::max(options_.num_threads, 1)));
    for_each_parallel(tiles_.size(), options_.num_threads,
                      [&](std::size_t index, std::size_t worker) {
                        const std::size_t nbytes = static_cast<std::size_t>(tiles_[index].numel) *
                                                   size_of(tensors_[tiles_[index].tensor].dtype);
                        std::vector<std::byte>& buffer = buffers[worker];
                        buffer.resize(std::max(buffer.size(), nbytes));
                        body(index, std::span(buffer).first(nbytes));
                        meter.add(nbytes);
                      });
  }

  const Options& options_;
  const Stored& stored_;
  std::vector<OutputTensor> tensors_;
  std::map<std::string, std::string> aliases_;  ///< second name -> name of its tensor
  TensorReader reader_;
  OutputSet files_;
  std::vector<Place> places_;
  std::vector<Tile> tiles_;
  std::vector<std::uint32_t> crcs_;  ///< of the bytes written per tile
};

}  // namespace

Result write_safetensors(const Stored& stored, const fs::path& folder, const Options& options) {
  if (weights_of(stored, {}).empty()) {
    throw Error(Errc::not_supported,
                stored.path.string() +
                    " holds an optimizer's state and no weights, and safetensors "
                    "cannot store that; write it as a .bin file "
                    "(--unsafe_serialization, or convert --to bin)");
  }
  Result result = SafetensorsJob(stored, folder, options).run();
  if (has_optimizer(stored) && !options.merge) {
    result.left_out.emplace_back("the optimizer's state, which safetensors cannot store");
  }
  return result;
}

}  // namespace acc::checkpoint::conversion
