#include "checkpoint/catalog/catalog.hpp"

#include "acc/base/error.hpp"

namespace acc::checkpoint {

std::uint32_t Catalog::file(const std::filesystem::path& path) {
  const auto [found, is_new] = by_path_.emplace(path, static_cast<std::uint32_t>(files.size()));
  if (is_new) {
    files.push_back(path);
  }
  return found->second;
}

void Catalog::index() {
  by_name_.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [found, is_new] = by_name_.emplace(Key{tensors[i].name, tensors[i].kind}, i);
    if (!is_new) {
      throw Error(Errc::config, "tensor '" + tensors[i].name + "' (" + tensors[i].kind +
                                    ") is there twice: as '" + tensors[found->second].stored_name +
                                    "' and as '" + tensors[i].stored_name + "'");
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

}  // namespace acc::checkpoint
