/* SPDX-License-Identifier: Apache-2.0 */
// fork_on KIND LIMIT: exits with 1 and leaves processes behind that fork without end, at most LIMIT
// at a time (RLIMIT_NPROC of the user nobody, if it runs as root):
//   chain       each forks one and exits
//   hop         as chain, and each starts a session of its own
//   bomb        each forks as often as it can
//   hop-bomb    as bomb, and each starts a session of its own
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: fork_on KIND LIMIT\n");
    return 2;
  }
  const int hops = strncmp(argv[1], "hop", 3) == 0;
  const int is_bomb = strstr(argv[1], "bomb") != NULL;
  const struct rlimit limit = {strtoul(argv[2], NULL, 10), strtoul(argv[2], NULL, 10)};
  if ((getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) ||
      setrlimit(RLIMIT_NPROC, &limit) != 0) {
    perror("fork_on");
    return 77;
  }
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGCHLD, SIG_IGN);
  if (fork() != 0) {
    return 1;
  }
  for (;;) {
    const pid_t child = fork();
    if (child == 0 && hops) {
      setsid();
    } else if (child > 0 && !is_bomb) {
      _exit(0);
    }
  }
}
