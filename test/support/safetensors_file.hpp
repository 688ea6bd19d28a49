// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/atomic_file.hpp"
#include "acc/checkpoint/safetensors/header.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Reader and writer (streaming) of one safetensors file.
namespace acc::test {

/// A file in memory. The constructor checks the whole header. Every fault throws Error(config) with
/// the file, the tensor, what was expected and what was found.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path) : path_(path) {
    const checkpoint::InputFile file(path);
    bytes_.resize(file.nbytes());
    file.read(0, bytes_);
    header_ = checkpoint::parse_header(bytes_, bytes_.size(), path);
  }

  /// Tensors in the order of their bytes.
  [[nodiscard]] const std::vector<checkpoint::TensorEntry>& tensors() const noexcept {
    return header_.tensors;
  }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return header_.metadata;
  }
  [[nodiscard]] const checkpoint::TensorEntry* find(std::string_view name) const {
    const auto found = std::ranges::find(tensors(), name, &checkpoint::TensorEntry::name);
    return found == tensors().end() ? nullptr : &*found;
  }
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }
  /// Throws Error(config) if the file has no such tensor.
  [[nodiscard]] const checkpoint::TensorEntry& at(std::string_view name) const {
    if (const checkpoint::TensorEntry* const found = find(name)) {
      return *found;
    }
    throw Error(Errc::config, path_.string() + ": no tensor '" + std::string(name) +
                                  "' among its " + std::to_string(tensors().size()));
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Reads elements [offset, offset + out.size()) of a tensor with dtype F32, F16, BF16 or F64, as
  /// fp32.
  void read_slice(std::string_view name, std::int64_t offset, std::span<float> out) const {
    const checkpoint::TensorEntry& tensor = at(name);
    if (offset < 0 || std::ssize(out) > tensor.numel() - offset) {
      throw Error(Errc::internal, path_.string() + ": elements " + std::to_string(offset) + " to " +
                                      std::to_string(offset + std::ssize(out)) + " asked of '" +
                                      tensor.name + "', which has " +
                                      std::to_string(tensor.numel()));
    }
    if (!is_real(tensor.dtype)) {
      throw Error(Errc::config, path_.string() + ": tensor '" + tensor.name +
                                    "': expected F32, F16, BF16 or F64, found " +
                                    std::string(safetensors_name(tensor.dtype)));
    }
    const std::byte* const from = bytes_.data() + header_.data_begin + tensor.begin +
                                  static_cast<std::size_t>(offset) * size_of(tensor.dtype);
    convert(from, tensor.dtype, out.data(), checkpoint::Dtype::f32, out.size());
  }

 private:
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
  checkpoint::SafetensorsHeader header_;
};

/// Writes a file as a stream: first the header, then the tensors in the order of the list. The file
/// is complete or absent (AtomicFile).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<checkpoint::NamedTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {})
      : file_(path), tensors_(std::move(tensors)) {
    file_.write(checkpoint::lay_out_safetensors(tensors_, metadata).header);
    skip_complete();
  }

  /// Appends the next elements of the current tensor, converted to its dtype. Throws Error(config)
  /// if that dtype is not real, and Error(internal) if the elements do not fit into the tensor.
  void append(std::span<const float> values) {
    const checkpoint::Dtype dtype =
        current_ == tensors_.size() ? checkpoint::Dtype::f32 : tensors_[current_].dtype;
    check_room(values.size() * size_of(dtype));
    std::vector<std::byte> bytes(values.size() * size_of(dtype));
    convert(values.data(), checkpoint::Dtype::f32, bytes.data(), dtype, values.size());
    append(bytes);
  }
  /// Appends bytes in the tensor's own dtype.
  void append(std::span<const std::byte> bytes) {
    check_room(bytes.size());
    file_.write(bytes);
    written_ += bytes.size();
    skip_complete();
  }
  /// Completes the file. Throws Error(internal) if elements are missing.
  void commit() {
    if (current_ != tensors_.size()) {
      throw Error(Errc::internal, file_.path().string() + ": tensor '" + tensors_[current_].name +
                                      "' has only " + std::to_string(written_) + " of its " +
                                      std::to_string(current_nbytes()) + " bytes");
    }
    file_.commit();
  }

 private:
  [[nodiscard]] std::uint64_t current_nbytes() const noexcept {
    const checkpoint::NamedTensor& tensor = tensors_[current_];
    return static_cast<std::uint64_t>(checkpoint::numel_of(tensor.shape)) * size_of(tensor.dtype);
  }
  /// Tensors without elements are complete as soon as they are reached.
  void skip_complete() noexcept {
    while (current_ < tensors_.size() && written_ == current_nbytes()) {
      ++current_;
      written_ = 0;
    }
  }
  void check_room(std::uint64_t nbytes) const {
    const std::uint64_t left = current_ == tensors_.size() ? 0 : current_nbytes() - written_;
    if (nbytes > left) {
      throw Error(Errc::internal,
                  file_.path().string() + ": " + std::to_string(nbytes) +
                      " bytes are more than the " + std::to_string(left) + " that tensor '" +
                      (current_ == tensors_.size() ? "(end)" : tensors_[current_].name) +
                      "' has left");
    }
  }

  AtomicFile file_;
  std::vector<checkpoint::NamedTensor> tensors_;
  std::size_t current_ = 0;
  std::uint64_t written_ = 0;  ///< bytes written of the current tensor
};

}  // namespace acc::test
