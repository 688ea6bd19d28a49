// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/tensor/box.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

/// Header of a safetensors file: a u64 length and a JSON object. The bytes of the tensors follow
/// without holes, row-major and little-endian. See docs/formats/safetensors.md.
namespace acc::checkpoint {

/// An entry of the header.
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
  std::uint64_t data_begin = 0;  ///< offset in the file of the first byte after the header
};

/// Parses and checks the header of a file of `file_nbytes`. `bytes` are the first bytes of the file
/// and must include all of the header, unless the file is too short or its length field too large.
/// Throws Error(config) with the file, the tensor, what was expected and what was found.
SafetensorsHeader parse_header(std::span<const std::byte> bytes, std::uint64_t file_nbytes,
                               const std::filesystem::path& path);
/// The same for an opened file. Reads no more than the header.
SafetensorsHeader read_header(const InputFile& file);

/// A tensor to be written.
struct NamedTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
};

/// The layout of a file whose tensors are not written yet, so that several threads can write them.
struct SafetensorsLayout {
  std::string header;                  ///< the file's first bytes
  std::vector<std::uint64_t> offsets;  ///< offset in the file of each tensor's first byte
  std::uint64_t nbytes = 0;            ///< size of the file
};
/// Lays tensors out in the order of the list. Readers that map the file want tensors with the
/// largest elements first, so that all are aligned; plan_safetensors returns them in that order.
/// Throws Error(internal) if a name occurs twice, Error(not_supported) if one is not UTF-8 or if
/// safetensors has no name for a dtype.
SafetensorsLayout lay_out_safetensors(std::span<const NamedTensor> tensors,
                                      const std::map<std::string, std::string>& metadata = {});

}  // namespace acc::checkpoint
