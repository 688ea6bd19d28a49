// SPDX-License-Identifier: Apache-2.0
#include "safetensors/file.hpp"

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace acc::checkpoint {
namespace {

constexpr std::size_t kChunk = 4096;  // elements converted at a time

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for its writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw file_error("open", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(Errc::config, "cannot read " + path.string() + ": not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  // mmap refuses a length of 0.
  if (size_ == 0) {
    return;
  }
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    throw file_error("map", path, errno);
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  SafetensorsHeader header = parse_header(file_.bytes(), file_.bytes().size(), path);
  data_begin_ = header.data_begin;
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    by_name_.emplace(tensors_[i].name, i);
  }
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    throw Error(Errc::config, path_.string() + ": no tensor '" + std::string(name) +
                                  "' among its " + std::to_string(tensors_.size()));
  }
  return tensors_[found->second];
}

// The kernel reads only the pages of the mapping that the conversion touches.
void SafetensorsFile::read_slice(std::string_view name, std::int64_t offset,
                                 std::span<float> out) const {
  const TensorEntry& tensor = at(name);
  if (offset < 0 || std::ssize(out) > tensor.numel() - offset) {
    throw Error(Errc::internal, path_.string() + ": elements " + std::to_string(offset) + " to " +
                                    std::to_string(offset + std::ssize(out)) + " asked of '" +
                                    tensor.name + "', which has " + std::to_string(tensor.numel()));
  }
  if (!is_real(tensor.dtype)) {
    throw Error(Errc::config, path_.string() + ": tensor '" + tensor.name +
                                  "': expected F32, F16, BF16 or F64, found " +
                                  std::string(safetensors_name(tensor.dtype)));
  }
  const std::byte* from = file_.bytes().data() + data_begin_ + tensor.begin +
                          static_cast<std::size_t>(offset) * size_of(tensor.dtype);
  convert(from, tensor.dtype, out.data(), Dtype::f32, out.size());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<NamedTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(std::move(tensors)) {
  file_.write(lay_out_safetensors(tensors_, metadata).header);
  skip_complete();
}

std::uint64_t SafetensorsWriter::current_nbytes() const noexcept {
  const NamedTensor& tensor = tensors_[current_];
  return static_cast<std::uint64_t>(numel_of(tensor.shape)) * size_of(tensor.dtype);
}

// Tensors without elements are complete as soon as they are reached.
void SafetensorsWriter::skip_complete() noexcept {
  while (current_ < tensors_.size() && written_ == current_nbytes()) {
    ++current_;
    written_ = 0;
  }
}

// Refuses bytes beyond the current tensor: they would silently become elements of the next one.
void SafetensorsWriter::check_room(std::uint64_t nbytes) const {
  const std::uint64_t left = current_ == tensors_.size() ? 0 : current_nbytes() - written_;
  if (nbytes > left) {
    throw Error(Errc::internal,
                file_.path().string() + ": " + std::to_string(nbytes) +
                    " bytes are more than the " + std::to_string(left) + " that tensor '" +
                    (current_ == tensors_.size() ? "(end)" : tensors_[current_].name) +
                    "' has left");
  }
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (!bytes.empty()) {
    check_room(bytes.size());
    file_.write(bytes);
    written_ += bytes.size();
    skip_complete();
  }
}

// Converts in chunks, so that a call of any size needs only a small buffer.
void SafetensorsWriter::append(std::span<const float> values) {
  if (values.empty()) {
    return;
  }
  const Dtype dtype = current_ == tensors_.size() ? Dtype::f32 : tensors_[current_].dtype;
  if (dtype == Dtype::f32) {
    append(std::as_bytes(values));
    return;
  }
  check_room(values.size() * size_of(dtype));
  std::array<std::byte, kChunk * sizeof(double)> buffer;
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kChunk);
    convert(values.data(), Dtype::f32, buffer.data(), dtype, count);
    append(std::span(buffer).first(count * size_of(dtype)));
    values = values.subspan(count);
  }
}

// An incomplete file never gets its name: without the commit AtomicFile removes it.
void SafetensorsWriter::commit() {
  if (current_ != tensors_.size()) {
    throw Error(Errc::internal, file_.path().string() + ": tensor '" + tensors_[current_].name +
                                    "' has only " + std::to_string(written_) + " of its " +
                                    std::to_string(current_nbytes()) + " bytes");
  }
  file_.commit();
}

}  // namespace acc::checkpoint
