/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that fails. "touch MIB" uses that much memory. "segfault" writes to address 0.
   "exit MIB PIPE" uses that much memory, writes its process ID to the pipe and exits with 1; the
   kernel needs some time to end it, because it must free the memory. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "touch") == 0) {
    const size_t size = (size_t)atol(argv[2]) << 20;
    char* memory = malloc(size);
    if (memory != NULL) {
      memset(memory, 1, size);
      printf("touched %d\n", memory[size - 1]);
    }
    return 0;
  }
  if (argc == 4 && strcmp(argv[1], "exit") == 0) {
    const size_t size = (size_t)atol(argv[2]) << 20;
    char* memory = malloc(size);
    const int pipe = open(argv[3], O_WRONLY);
    if (memory != NULL && pipe >= 0) {
      memset(memory, 1, size);
      _exit(dprintf(pipe, "%d\n", (int)getpid()) > 1 && memory[size - 1] == 1 ? 1 : 2);
    }
  }
  if (argc == 2 && strcmp(argv[1], "segfault") == 0) {
    fprintf(stderr, "about to fail\n");
    *(volatile int*)NULL = 1;
  }
  return 2;
}
