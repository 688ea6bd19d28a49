// SPDX-License-Identifier: Apache-2.0
#include "state_dict/held_values.hpp"

#include "state_dict/device_bytes.hpp"

namespace acc::state_dict {

void HeldValues::read(std::int64_t begin, std::int64_t numel,
                      const std::function<void(std::span<const std::byte> bytes)>& visit) const {
  read_bytes(*device_, values_ + static_cast<std::size_t>(begin - first_) * size_,
             static_cast<std::size_t>(numel) * size_, visit);
}

}  // namespace acc::state_dict
