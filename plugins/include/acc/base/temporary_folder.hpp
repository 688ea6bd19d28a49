// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

namespace acc {

/// Returns the folder for temporary files if TMPDIR names none: /tmp, or /dev/shm where only that
/// can be written, as in a container with a read-only root file system.
inline const char* default_temporary_folder() {
  const bool is_usable = ::access("/tmp", W_OK) == 0 || ::access("/dev/shm", W_OK) != 0;
  return is_usable ? "/tmp" : "/dev/shm";
}

}  // namespace acc
