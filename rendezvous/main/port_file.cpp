// SPDX-License-Identifier: Apache-2.0
#include "port_file.hpp"

#include "acc/base/atomic_file.hpp"

#include <system_error>
#include <utility>

namespace acc::rendezvous {

PortFile::PortFile(std::filesystem::path path) : path_(std::move(path)) {
  remove();
}

void PortFile::write(std::string_view text) {
  if (!path_.empty()) {
    write_file(path_, text, Overwrite::yes);
  }
}

void PortFile::remove() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace acc::rendezvous
