#pragma once

#include "checkpoint/files/input_file.hpp"
#include "checkpoint/tensor/box.hpp"
#include "checkpoint/tensor/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

/// The head of a safetensors file (github.com/huggingface/safetensors): u64 length, JSON; the
/// tensors' bytes follow without holes, row-major, little endian.
namespace acc::checkpoint {

/// A tensor as a header lists it.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::uint64_t begin = 0;  ///< of its bytes, counted from the end of the header
  std::uint64_t end = 0;

  [[nodiscard]] std::int64_t numel() const noexcept { return numel_of(shape); }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  ///< where the tensors' bytes begin in the file
};

/// Reads and checks the header of a file of `file_nbytes`, of which `bytes` are the first and hold
/// all of the header, unless the file is too short or its length word too large. Throws
/// Error(config) that names the file, the tensor, what was expected and what was found.
SafetensorsHeader parse_header(std::span<const std::byte> bytes, std::uint64_t file_nbytes,
                               const std::filesystem::path& path);
/// The same, reading no more than the header.
SafetensorsHeader read_header(const InputFile& file);

/// A tensor that is to be written.
struct NamedTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
};

/// A file before its tensors are written, so that any number of threads can write them at once.
struct SafetensorsLayout {
  std::string header;                  ///< the file's first bytes
  std::vector<std::uint64_t> offsets;  ///< in the file, of each tensor's bytes
  std::uint64_t nbytes = 0;            ///< of the file
};
/// Tensors lie in the order of the list; readers that map want those with the largest elements
/// first (plan_safetensors gives that order). Throws Error(internal) for a name that is there
/// twice, Error(config) for one that is not UTF-8.
SafetensorsLayout lay_out_safetensors(std::span<const NamedTensor> tensors,
                                      const std::map<std::string, std::string>& metadata = {});

}  // namespace acc::checkpoint
