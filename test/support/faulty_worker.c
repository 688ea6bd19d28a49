/* A worker that goes wrong: "touch MIB" uses that much memory, "segfault" writes to address 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  if (argc == 2 && strcmp(argv[1], "segfault") == 0) {
    fprintf(stderr, "about to fail\n");
    *(volatile int*)NULL = 1;
  }
  return 2;
}
