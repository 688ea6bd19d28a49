// Preloaded: no program can open what a process holds as a descriptor by /proc/PID/fd, as in some
// sandboxes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/types.h>

typedef int (*open_function)(const char*, int, mode_t);

static int is_descriptor(const char* path) {
  int pid = 0;
  int fd = 0;
  return sscanf(path, "/proc/%d/fd/%d", &pid, &fd) == 2 ||
         sscanf(path, "/proc/self/fd/%d", &fd) == 1;
}

static int open_other(const char* name, const char* path, int flags, mode_t mode) {
  if (is_descriptor(path)) {
    errno = EACCES;
    return -1;
  }
  return ((open_function)dlsym(RTLD_NEXT, name))(path, flags, mode);
}

#define DEFINE(name)                             \
  int name(const char* path, int flags, ...) {   \
    va_list more;                                \
    va_start(more, flags);                       \
    const mode_t mode = va_arg(more, mode_t);    \
    va_end(more);                                \
    return open_other(#name, path, flags, mode); \
  }
DEFINE(open)
DEFINE(open64)
