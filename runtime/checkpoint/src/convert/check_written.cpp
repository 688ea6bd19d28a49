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

}  // namespace acc::checkpoint::conversion
