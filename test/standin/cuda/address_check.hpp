// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sanitizer/asan_interface.h>

#include <cstddef>

/// Tells the address sanitizer which memory kernels may access, if the process has one: programs
/// whose kernels are compiled with it (ADDRESS of acc_add_standin_cuda). No effect elsewhere.
#pragma weak __asan_poison_memory_region
#pragma weak __asan_unpoison_memory_region

namespace standin {

inline void forbid(const volatile void* begin, std::size_t nbytes) {
  if (&__asan_poison_memory_region != nullptr) {
    __asan_poison_memory_region(begin, nbytes);
  }
}
inline void allow(const volatile void* begin, std::size_t nbytes) {
  if (&__asan_unpoison_memory_region != nullptr) {
    __asan_unpoison_memory_region(begin, nbytes);
  }
}

}  // namespace standin
