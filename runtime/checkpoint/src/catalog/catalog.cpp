// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/catalog/catalog.hpp"

#include "acc/checkpoint/files/errors.hpp"

#include <algorithm>

namespace acc::checkpoint {
namespace {

/// True if both tensors are stored in the same places of the same files.
bool share_bytes(const StoredTensor& a, const StoredTensor& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.strides == b.strides &&
         std::ranges::equal(a.pieces, b.pieces, [](const StoredPiece& p, const StoredPiece& q) {
           return p.file == q.file && p.offset == q.offset && p.box == q.box;
         });
}

}  // namespace

// Elements of a box lie between its first and its last element in the tensor. A piece whose
// interval does not touch the range is skipped; one whose interval does may still hold none of its
// elements.
void StoredTensor::for_each_piece(std::int64_t begin, std::int64_t end,
                                  const VisitPiece& visit) const {
  if (rule) {
    rule->for_each_piece(number, begin, end, visit);
    return;
  }
  for (const StoredPiece& piece : pieces) {
    const std::int64_t numel = piece.box.numel();
    if (numel > 0 && element_in_tensor(shape, piece.box, 0) < end &&
        element_in_tensor(shape, piece.box, numel - 1) >= begin) {
      visit(piece);
    }
  }
}

std::vector<StoredPiece> StoredTensor::all_pieces() const {
  std::vector<StoredPiece> all = pieces;
  if (rule) {
    for_each_piece(0, numel_of(shape), [&](const StoredPiece& piece) { all.push_back(piece); });
  }
  return all;
}

void TrainingState::count_steps(std::int64_t of_parameter) {
  step = std::max(step.value_or(0), of_parameter);
  fewest_steps = std::min(fewest_steps.value_or(of_parameter), of_parameter);
}

// Each path has one number, so that pieces of one file share an opened InputFile.
std::uint32_t Catalog::file(const InputPath& path, std::optional<std::uint64_t> nbytes) {
  const auto [found, is_new] =
      by_path_.emplace(path.string(), static_cast<std::uint32_t>(files.size()));
  if (is_new) {
    files.push_back(path);
  }
  if (nbytes) {
    expected_nbytes_.resize(std::max<std::size_t>(expected_nbytes_.size(), found->second + 1));
    expected_nbytes_[found->second] = nbytes;
  }
  return found->second;
}

std::optional<std::uint64_t> Catalog::expected_nbytes(std::uint32_t file) const {
  return file < expected_nbytes_.size() ? expected_nbytes_[file] : std::nullopt;
}

void Catalog::index() {
  by_name_.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [found, is_new] = by_name_.emplace(Key{tensors[i].name, tensors[i].kind}, i);
    if (!is_new) {
      throw Unreadable("tensor '" + tensors[i].name + "' (" + tensors[i].kind +
                       ") occurs twice: as '" + tensors[found->second].stored_name + "' and as '" +
                       tensors[i].stored_name + "'");
    }
  }
}

const StoredTensor* Catalog::find(std::string_view name, std::string_view kind) const {
  const auto found = by_name_.find(Key{name, kind});
  return found == by_name_.end() ? nullptr : &tensors[found->second];
}

const StoredTensor& Catalog::at(std::string_view name, std::string_view kind,
                                const std::string& where) const {
  if (const StoredTensor* tensor = find(name, kind)) {
    return *tensor;
  }
  throw Error(Errc::config, where + ": no tensor '" + std::string(name) + "' (" +
                                std::string(kind) + ") among its " +
                                std::to_string(tensors.size()));
}

const StoredTensor* SharedBytes::other(const StoredTensor& tensor) {
  // Tensors without elements share nothing, and those with a rule have places of their own.
  if (tensor.pieces.empty() || numel_of(tensor.shape) == 0) {
    return nullptr;
  }
  const StoredPiece& first = tensor.pieces.front();
  for (auto [it, end] = by_place_.equal_range({first.file, first.offset}); it != end; ++it) {
    if (share_bytes(*it->second, tensor)) {
      return it->second;
    }
  }
  by_place_.emplace(std::pair(first.file, first.offset), &tensor);
  return nullptr;
}

}  // namespace acc::checkpoint
