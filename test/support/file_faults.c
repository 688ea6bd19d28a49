/* SPDX-License-Identifier: Apache-2.0 */
// Preloaded library that injects a fault. It numbers the calls with which a process changes files
// under a folder, from 1, and makes one of them fail.
//   ACC_FAULT_UNDER  the folder, an absolute path without symbolic links
//   ACC_FAULT_AT     the number of the call
//   ACC_FAULT        the fault:
//                    "kill": the process is killed before the call, or in the middle of a write.
//                    "ENOSPC", "EDQUOT": this call and all later calls that need disk space fail
//                    with the errno, a write after half of its bytes. Only such calls are counted.
//                    "EIO": only this write or flush fails. Only writes and flushes are counted.
//                    "EXDEV", "EPERM", "EBUSY", "ENOTEMPTY": this call and all later calls that
//                    move a file or folder away (EXDEV, EPERM) or remove it (all except EXDEV)
//                    fail with the errno. Only such calls are counted.
//   ACC_FAULT_HIT    file that is created at the fault, with the name and path of the call
//   ACC_FAULT_LOG    file for a log of all counted calls, one line each
//   ACC_NO_EXCHANGE  errno, EINVAL or EXDEV, with which every exchange of two folders fails, as on
//                    some file systems. With EXDEV, as on an overlayfs, a folder cannot be renamed
//                    either, unless it is a temporary one (".acc-")
//   ACC_FAULT_RANK   if set: only the process with this RANK fails
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum Kind {
  kOther = 0,
  kTakesRoom = 1,
  kFlushes = 2,
  kWrites = kTakesRoom | kFlushes,
  kRemoves = 4,
  kMovesAway = 8,
};

static atomic_int calls;

static int number_of(const char* name) {
  static const struct {
    const char* name;
    int number;
  } kErrors[] = {{"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT},       {"EXDEV", EXDEV},  {"EPERM", EPERM},
                 {"EBUSY", EBUSY},   {"ENOTEMPTY", ENOTEMPTY}, {"EINVAL", EINVAL}};
  for (size_t i = 0; i < sizeof kErrors / sizeof kErrors[0]; ++i) {
    if (strcmp(name, kErrors[i].name) == 0) {
      return kErrors[i].number;
    }
  }
  return EIO;
}

static int fault_error(void) {
  const char* fault = getenv("ACC_FAULT");
  return fault == NULL || strcmp(fault, "kill") == 0 ? 0 : number_of(fault);
}

static int is_chosen_rank(void) {
  const char* chosen = getenv("ACC_FAULT_RANK");
  const char* rank = getenv("RANK");
  return chosen == NULL || (rank != NULL && strcmp(chosen, rank) == 0);
}

static int is_counted(enum Kind kind) {
  switch (fault_error()) {
    case 0: return kind != kMovesAway;  // the call is counted by its new name
    case EIO: return (kind & kFlushes) != 0;
    case EXDEV: return kind == kMovesAway;
    case EPERM: return kind == kMovesAway || kind == kRemoves;
    case EBUSY:
    case ENOTEMPTY: return kind == kRemoves;
    default: return (kind & kTakesRoom) != 0;
  }
}

static void add_line(const char* variable, const char* call, const char* path) {
  const char* file = getenv(variable);
  char text[2 * PATH_MAX + 64];
  if (file == NULL) {
    return;
  }
  const int length = snprintf(text, sizeof text, "%s %s\n", call, path);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND, 0666);
  syscall(SYS_write, fd, text, (size_t)length);
  syscall(SYS_close, fd);
}

// Stores the path of the folder to which a relative path refers. Returns 0 on failure.
static int folder_path(int folder, char* out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  const ssize_t length = readlink(folder == AT_FDCWD ? "/proc/self/cwd" : link, out, PATH_MAX - 1);
  out[length > 0 ? length : 0] = '\0';
  return length > 0;
}

enum Turn { kGoOn, kFail, kHalf };

// Returns what this call must do. Kills the process if that is the fault of this call; for a write
// it returns kHalf instead, and the caller writes half of the bytes first.
static enum Turn turn_at(const char* call, const char* path, enum Kind kind, int may_half) {
  const char* under = getenv("ACC_FAULT_UNDER");
  const char* at = getenv("ACC_FAULT_AT");
  if (under == NULL || at == NULL || strncmp(path, under, strlen(under)) != 0 ||
      !is_chosen_rank() || !is_counted(kind)) {
    return kGoOn;
  }
  add_line("ACC_FAULT_LOG", call, path);
  const int number = atomic_fetch_add(&calls, 1) + 1;
  if (number < atoi(at)) {
    return kGoOn;
  }
  if (number > atoi(at)) {
    return fault_error() == EIO ? kGoOn : kFail;
  }
  add_line("ACC_FAULT_HIT", call, path);
  if (may_half) {
    return kHalf;
  }
  if (fault_error() == 0) {
    kill(getpid(), SIGKILL);
  }
  return kFail;
}

static enum Turn turn_in(const char* call, int folder, const char* name, enum Kind kind) {
  char path[2 * PATH_MAX] = "";
  if (name[0] != '/' && folder_path(folder, path)) {
    strcat(path, "/");
  }
  strncat(path, name, PATH_MAX - 1);
  return turn_at(call, path, kind, 0);
}

static enum Turn turn_of_fd(const char* call, int fd, enum Kind kind, int may_half) {
  char path[PATH_MAX];
  return folder_path(fd, path) ? turn_at(call, path, kind, may_half) : kGoOn;
}

static int failed(void) {
  errno = fault_error();
  return -1;
}

#define ORIGINAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// True if the call may create or truncate the file. Other calls change nothing.
static int opens_for_change(int flags) {
  return (flags & (O_CREAT | O_TRUNC)) != 0;
}

#define DEFINE_OPEN(name)                                                                 \
  int name(const char* path, int flags, ...) {                                            \
    va_list more;                                                                         \
    va_start(more, flags);                                                                \
    const mode_t mode = (mode_t)va_arg(more, unsigned);                                   \
    va_end(more);                                                                         \
    if (opens_for_change(flags) && turn_in(#name, AT_FDCWD, path, kTakesRoom) == kFail) { \
      return failed();                                                                    \
    }                                                                                     \
    return ORIGINAL(name)(path, flags, mode);                                             \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                                             \
  int name(int folder, const char* path, int flags, ...) {                              \
    va_list more;                                                                       \
    va_start(more, flags);                                                              \
    const mode_t mode = (mode_t)va_arg(more, unsigned);                                 \
    va_end(more);                                                                       \
    if (opens_for_change(flags) && turn_in(#name, folder, path, kTakesRoom) == kFail) { \
      return failed();                                                                  \
    }                                                                                   \
    return ORIGINAL(name)(folder, path, flags, mode);                                   \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

// Half of the bytes are written before the fault, as on a full disk and possibly before a kill.
#define DEFINE_WRITE(name, parameters, whole, half)                    \
  ssize_t name parameters {                                            \
    const enum Turn turn = turn_of_fd(#name, fd, kWrites, nbytes > 1); \
    if (turn == kFail) {                                               \
      return failed();                                                 \
    }                                                                  \
    if (turn == kHalf) {                                               \
      const ssize_t done = ORIGINAL(name) half;                        \
      if (fault_error() == 0) {                                        \
        kill(getpid(), SIGKILL);                                       \
      }                                                                \
      return fault_error() == EIO ? failed() : done;                   \
    }                                                                  \
    return ORIGINAL(name) whole;                                       \
  }
DEFINE_WRITE(write, (int fd, const void* bytes, size_t nbytes), (fd, bytes, nbytes),
             (fd, bytes, nbytes / 2))
DEFINE_WRITE(pwrite, (int fd, const void* bytes, size_t nbytes, off_t offset),
             (fd, bytes, nbytes, offset), (fd, bytes, nbytes / 2, offset))
DEFINE_WRITE(pwrite64, (int fd, const void* bytes, size_t nbytes, off64_t offset),
             (fd, bytes, nbytes, offset), (fd, bytes, nbytes / 2, offset))

ssize_t writev(int fd, const struct iovec* parts, int count) {
  return turn_of_fd("writev", fd, kWrites, 0) == kFail ? failed()
                                                       : ORIGINAL(writev)(fd, parts, count);
}

#define DEFINE_ON_FD(name, kind, parameters, arguments)                                   \
  int name parameters {                                                                   \
    return turn_of_fd(#name, fd, kind, 0) == kFail ? failed() : ORIGINAL(name) arguments; \
  }
DEFINE_ON_FD(fsync, kFlushes, (int fd), (fd))
DEFINE_ON_FD(fdatasync, kFlushes, (int fd), (fd))
DEFINE_ON_FD(ftruncate, kOther, (int fd, off_t nbytes), (fd, nbytes))
DEFINE_ON_FD(ftruncate64, kOther, (int fd, off64_t nbytes), (fd, nbytes))
DEFINE_ON_FD(fallocate, kTakesRoom, (int fd, int mode, off_t offset, off_t nbytes),
             (fd, mode, offset, nbytes))
DEFINE_ON_FD(fallocate64, kTakesRoom, (int fd, int mode, off64_t offset, off64_t nbytes),
             (fd, mode, offset, nbytes))
DEFINE_ON_FD(close, kOther, (int fd), (fd))

#define DEFINE_ON_PATH(name, kind, folder, path, parameters, arguments)                       \
  int name parameters {                                                                       \
    return turn_in(#name, folder, path, kind) == kFail ? failed() : ORIGINAL(name) arguments; \
  }
DEFINE_ON_PATH(mkdir, kTakesRoom, AT_FDCWD, path, (const char* path, mode_t mode), (path, mode))
DEFINE_ON_PATH(mkdirat, kTakesRoom, at, path, (int at, const char* path, mode_t mode),
               (at, path, mode))
DEFINE_ON_PATH(unlink, kRemoves, AT_FDCWD, path, (const char* path), (path))
DEFINE_ON_PATH(unlinkat, kRemoves, at, path, (int at, const char* path, int flags),
               (at, path, flags))
DEFINE_ON_PATH(rmdir, kRemoves, AT_FDCWD, path, (const char* path), (path))

static int no_exchange_error(void) {
  const char* name = getenv("ACC_NO_EXCHANGE");
  return name == NULL ? 0 : number_of(name);
}

static int is_lower_folder(const char* path) {
  struct stat status;
  return no_exchange_error() == EXDEV && strstr(path, ".acc-") == NULL &&
         lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

int rename(const char* from, const char* to) {
  if (is_lower_folder(from)) {
    errno = EXDEV;
    return -1;
  }
  if (turn_in("rename", AT_FDCWD, to, kTakesRoom) == kFail ||
      turn_in("rename", AT_FDCWD, from, kMovesAway) == kFail) {
    return failed();
  }
  return ORIGINAL(rename)(from, to);
}
DEFINE_ON_PATH(renameat, kTakesRoom, to_at, to,
               (int from_at, const char* from, int to_at, const char* to),
               (from_at, from, to_at, to))

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  if (no_exchange_error() != 0 && flags != 0) {
    errno = no_exchange_error();
    return -1;
  }
  return turn_in("renameat2", to_at, to, kTakesRoom) == kFail
             ? failed()
             : ORIGINAL(renameat2)(from_at, from, to_at, to, flags);
}
