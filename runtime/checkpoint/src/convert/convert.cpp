// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/convert.hpp"

#include "acc/checkpoint/convert/verify.hpp"
#include "convert/outputs.hpp"

namespace acc::checkpoint::conversion {

// The checksums in the output were computed from the bytes that were read and converted. Reading
// all of the output and comparing them detects what the disk or the file system damaged on the way.
std::size_t check_written(const Stored& written, const std::vector<OutputTensor>& tensors,
                          const Options& options) {
  for (const OutputTensor& tensor : tensors) {
    const StoredTensor* const there = written.catalog.find(tensor.name, tensor.from->kind);
    if (there == nullptr || there->shape != tensor.from->shape || there->dtype != tensor.dtype) {
      throw not_as_written(written.path, tensor.name);
    }
  }
  Verification found;
  verify_tensors(written, options.num_threads, options.progress, found);
  if (!found.damaged.empty()) {
    throw not_as_written(found.damaged.front().file, found.damaged.front().tensor);
  }
  return tensors.size();
}

// Each writer opens its own reader of the catalog, checks its sources, reads its output back, and
// gives it its name if the sources are unchanged.
Result convert(const Stored& from, const std::filesystem::path& out, const Options& options) {
  return read_unchanged(from.path, [&] {
    switch (options.to) {
      case Target::safetensors: return write_safetensors(from, out, options);
      case Target::bin: return write_bin(from, out, options);
      case Target::dcp: return write_dcp(from, out, options);
      case Target::deepspeed: break;
    }
    return write_deepspeed(from, out, options);
  });
}

}  // namespace acc::checkpoint::conversion
