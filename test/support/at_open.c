/* SPDX-License-Identifier: Apache-2.0 */
// Preloaded library that runs a command at chosen points of a process that reads files: before it
// opens a file or folder under a folder, or relative to an opened one, from a chosen call on.
//   ACC_OPEN_UNDER  the folder, as the process names it
//   ACC_OPEN_AT     the number of the first such call, from 1
//   ACC_OPEN_RUN    the command, for a shell; $1 is the number of its run, from 0
//   ACC_OPEN_HIT    file that is created after the first run
//   ACC_OPEN_RANK   if set: only in the process with this RANK
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int calls;

static void run(int number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  const char* const command = getenv("ACC_OPEN_RUN");
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("LD_PRELOAD");
    execl("/bin/sh", "sh", "-c", command, "sh", text, (char*)NULL);
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    abort();
  }
}

static void count(int folder, const char* path, int flags) {
  const char* const under = getenv("ACC_OPEN_UNDER");
  const char* const at = getenv("ACC_OPEN_AT");
  const char* const chosen = getenv("ACC_OPEN_RANK");
  const char* const rank = getenv("RANK");
  if (chosen != NULL && (rank == NULL || strcmp(chosen, rank) != 0)) {
    return;
  }
  if (under == NULL || at == NULL || (flags & O_ACCMODE) != O_RDONLY) {
    return;
  }
  const int is_relative = folder != AT_FDCWD && path[0] != '/';
  if (!is_relative && strncmp(path, under, strlen(under)) != 0) {
    return;
  }
  const int number = atomic_fetch_add(&calls, 1) + 1 - atoi(at);
  if (number >= 0) {
    run(number);
    const int hit = creat(getenv("ACC_OPEN_HIT"), 0600);
    if (hit >= 0) {
      close(hit);
    }
  }
}

static mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

#define DEFINE_OPEN(name)                                                                \
  int name(const char* path, int flags, ...) {                                           \
    va_list list;                                                                        \
    va_start(list, flags);                                                               \
    const mode_t mode = mode_of(flags, list);                                            \
    va_end(list);                                                                        \
    count(AT_FDCWD, path, flags);                                                        \
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
  }

#define DEFINE_OPENAT(name)                                                                    \
  int name(int folder, const char* path, int flags, ...) {                                     \
    va_list list;                                                                              \
    va_start(list, flags);                                                                     \
    const mode_t mode = mode_of(flags, list);                                                  \
    va_end(list);                                                                              \
    count(folder, path, flags);                                                                \
    return ((int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, #name))(folder, path, flags, \
                                                                          mode);               \
  }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
