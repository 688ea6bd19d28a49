/* SPDX-License-Identifier: Apache-2.0 */
// without_syscalls NAME[,NAME…] PROGRAM [ARGUMENT…]: runs PROGRAM as on a kernel, or in a sandbox,
// without these system calls: they fail with ENOSYS, also in all its descendants (seccomp).
// NAME:EPERM fails with EPERM, as in Docker.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL(name) \
  { #name, SYS_##name }
static const struct {
  const char* name;
  int number;
} kCalls[] = {
    CALL(pidfd_open),
    CALL(pidfd_send_signal),
    CALL(clone3),
    CALL(futex_waitv),
    CALL(io_uring_setup),
    CALL(close_range),
    CALL(set_mempolicy),
    CALL(sched_setaffinity),
    CALL(sched_getaffinity),
    CALL(io_uring_enter),
    CALL(io_uring_register),
    CALL(get_mempolicy),
    CALL(mbind),
    CALL(move_pages),
    CALL(keyctl),
    CALL(add_key),
    CALL(userfaultfd),
    CALL(unshare),
    CALL(setns),
    CALL(mount),
    CALL(umount2),
    CALL(bpf),
    CALL(perf_event_open),
    CALL(pidfd_getfd),
    CALL(flock),
};

static int number_of(const char* name) {
  for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; ++i) {
    if (strcmp(kCalls[i].name, name) == 0) {
      return kCalls[i].number;
    }
  }
  return -1;
}

static int forbid(int number, unsigned error) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: without_syscalls NAME[,NAME...] PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    perror("without_syscalls: PR_SET_NO_NEW_PRIVS");
    return 77;
  }
  for (char* name = strtok(argv[1], ","); name != NULL; name = strtok(NULL, ",")) {
    char* colon = strchr(name, ':');
    if (colon != NULL) {
      *colon = '\0';
      if (strcmp(colon + 1, "EPERM") != 0) {
        fprintf(stderr, "without_syscalls: unknown error: %s, expected EPERM\n", colon + 1);
        return 2;
      }
    }
    const int number = number_of(name);
    if (number < 0) {
      fprintf(stderr, "without_syscalls: unknown system call (add it to kCalls): %s\n", name);
      return 2;
    }
    if (forbid(number, colon != NULL ? EPERM : ENOSYS) != 0) {
      perror("without_syscalls: PR_SET_SECCOMP");
      return 77;
    }
  }
  execv(argv[2], argv + 2);
  perror(argv[2]);
  return 127;
}
