#include "checkpoint/safetensors/file.hpp"

#include "checkpoint/safetensors/header.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

namespace acc::checkpoint {
namespace {

constexpr std::size_t kChunk = 4096;  // elements converted at a time

// From bytes that may lie at any address to `out`, through an aligned buffer where they must be
// converted.
template <typename Element, typename Convert>
void convert_from(const std::byte* from, std::span<float> out, const Convert& convert) {
  std::array<Element, kChunk> buffer;
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), kChunk);
    std::memcpy(buffer.data(), from, count * sizeof(Element));
    convert(buffer.data(), out.data(), count);
    from += count * sizeof(Element);
    out = out.subspan(count);
  }
}

void narrow(const double* from, float* to, std::size_t numel) {
  std::transform(from, from + numel, to, [](double value) { return static_cast<float>(value); });
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  SafetensorsHeader header = parse_header(file_.bytes(), path);
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

void SafetensorsFile::read_slice(std::string_view name, std::int64_t offset,
                                 std::span<float> out) const {
  const TensorEntry& tensor = at(name);
  if (offset < 0 || std::ssize(out) > tensor.numel() - offset) {
    throw Error(Errc::internal, path_.string() + ": elements " + std::to_string(offset) + " to " +
                                    std::to_string(offset + std::ssize(out)) + " asked of '" +
                                    tensor.name + "', which has " + std::to_string(tensor.numel()));
  }
  const std::size_t size = element_size(tensor.dtype).value();
  const std::byte* from =
      file_.bytes().data() + data_begin_ + tensor.begin + static_cast<std::size_t>(offset) * size;
  const auto& table = kernels::kernels();
  if (tensor.dtype == "F32") {
    if (!out.empty()) {
      std::memcpy(out.data(), from, out.size_bytes());
    }
  } else if (tensor.dtype == "BF16") {
    convert_from<std::uint16_t>(from, out, table.bf16_to_f32);
  } else if (tensor.dtype == "F16") {
    convert_from<std::uint16_t>(from, out, table.f16_to_f32);
  } else if (tensor.dtype == "F64") {
    convert_from<double>(from, out, narrow);
  } else {
    throw Error(Errc::config, path_.string() + ": tensor '" + tensor.name +
                                  "': expected F32, F16, BF16 or F64, found " + tensor.dtype);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(std::move(tensors)) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors_) {
    const bool known = tensor.dtype == "F32" || tensor.dtype == "BF16" || tensor.dtype == "F16";
    if (!known || !names.insert(tensor.name).second) {
      throw Error(Errc::internal,
                  path.string() + ": cannot write tensor '" + tensor.name + "'" +
                      (known ? ": its name is there twice"
                             : " as " + tensor.dtype + ": expected F32, BF16 or F16"));
    }
  }
  file_.write(format_header(tensors_, metadata));
  skip_complete();
}

void SafetensorsWriter::skip_complete() noexcept {
  while (current_ < tensors_.size() && written_ == numel_of(tensors_[current_].shape)) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::append(std::span<const float> values) {
  if (values.empty()) {
    return;
  }
  if (current_ == tensors_.size() ||
      std::ssize(values) > numel_of(tensors_[current_].shape) - written_) {
    throw Error(Errc::internal,
                file_.path().string() + ": " + std::to_string(values.size()) +
                    " elements are more than tensor '" +
                    (current_ == tensors_.size() ? "(end)" : tensors_[current_].name) +
                    "' has left");
  }
  written_ += std::ssize(values);
  const std::string& dtype = tensors_[current_].dtype;
  if (dtype == "F32") {
    file_.write(std::as_bytes(values));
  } else {
    const auto convert =
        dtype == "BF16" ? kernels::kernels().f32_to_bf16 : kernels::kernels().f32_to_f16;
    std::array<std::uint16_t, kChunk> buffer;
    while (!values.empty()) {
      const std::size_t count = std::min(values.size(), kChunk);
      convert(values.data(), buffer.data(), count);
      file_.write(std::as_bytes(std::span(buffer).first(count)));
      values = values.subspan(count);
    }
  }
  skip_complete();
}

void SafetensorsWriter::commit() {
  if (current_ != tensors_.size()) {
    throw Error(Errc::internal, file_.path().string() + ": tensor '" + tensors_[current_].name +
                                    "' has only " + std::to_string(written_) + " of its " +
                                    std::to_string(numel_of(tensors_[current_].shape)) +
                                    " elements");
  }
  file_.commit();
}

}  // namespace acc::checkpoint
