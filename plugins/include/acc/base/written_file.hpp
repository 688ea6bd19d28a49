// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <sys/types.h>

#include <filesystem>

// All files that this program writes are opened and named by these functions. A name may be that of
// something else than a file of this program: a symbolic link, a FIFO, a device, a file with other
// names (hard links), a file of another user. None of it is written through or replaced: the
// functions throw Error(config) that says what the name stands for. After the failure of a system
// call errno is that of the call.
namespace acc {

/// Returns the name under which a file is written before it is given the name `path`.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Creates a file. Removes a regular file that a killed process has left under this name. `flags`:
/// O_WRONLY or O_RDWR.
UniqueFd create_file(const std::filesystem::path& path, int flags = O_WRONLY, mode_t mode = 0666);

/// Opens a file to change it where it is, and creates it if it is missing. A character device is
/// accepted. `flags`: O_WRONLY or O_RDWR, with O_APPEND or O_TRUNC.
UniqueFd open_file(const std::filesystem::path& path, int flags);

/// As `open_file`, for a file that only this user can open (mode 0600). Refuses that of another
/// user. Reads and writes.
UniqueFd open_private_file(const std::filesystem::path& path);

/// Throws unless `path` is missing or is a regular file with one name.
void check_replaceable(const std::filesystem::path& path);

/// Creates the file that will replace `path`, under a temporary name. It has the owner, the group,
/// the mode and the access control list of the file at `path`; without one, `mode`.
UniqueFd create_replacement(const std::filesystem::path& path,
                            const std::filesystem::path& temporary, int flags = O_WRONLY,
                            mode_t mode = 0666);

/// Gives the file or folder `replacement`, which will replace that at `path`, its owner, group,
/// mode and access control list. Does nothing if `path` is missing.
void keep_permissions(const std::filesystem::path& replacement, const std::filesystem::path& path);

/// Gives a complete file the name `path`, with the owner, the group, the mode and the access
/// control list of the file that had the name, and flushes the folder. The temporary file stays if
/// this fails.
void replace_file(const std::filesystem::path& temporary, const std::filesystem::path& path);

}  // namespace acc
