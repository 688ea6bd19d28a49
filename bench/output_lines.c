/* SPDX-License-Identifier: Apache-2.0 */
// Writes and checks numbered lines for output.py, to find lines that a launcher loses or damages.
//
// output_lines produce BYTES LINE_SIZE: rank $RANK writes BYTES bytes of numbered lines to stdout,
// and its start time and CPU seconds to the file $FIGURES/RANK.
//
// output_lines check LINES LINE_SIZE: reads the lines of all ranks, each with a launcher's prefix,
// and counts the whole, lost and torn ones. LINES is the number of lines per rank.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { kNumber = 12, kHead = 2 + 1 + kNumber, kMaxRanks = 100, kBuffer = 1 << 20 };

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static void write_all(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t count = write(STDOUT_FILENO, data, size);
    if (count < 0) {
      fail("write");
    }
    data += count;
    size -= (size_t)count;
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void count_up(char* number) {
  for (int digit = kNumber - 1; digit >= 0 && ++number[digit] > '9'; --digit) {
    number[digit] = '0';
  }
}

static void produce(uint64_t bytes, size_t line_size) {
  const int rank = atoi(getenv("RANK"));
  const double start = now();
  char line[4096];
  memset(line, 'x', sizeof line);
  snprintf(line, sizeof line, "%02d %0*d", rank, kNumber, 0);
  line[kHead] = ' ';
  line[line_size - 1] = '\n';
  char* buffer = malloc(kBuffer);
  size_t used = 0;
  for (uint64_t left = bytes / line_size; left > 0; --left) {
    if (used + line_size > kBuffer) {
      write_all(buffer, used);
      used = 0;
    }
    memcpy(buffer + used, line, line_size);
    used += line_size;
    count_up(line + 3);
  }
  write_all(buffer, used);
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", getenv("FIGURES"), rank);
  FILE* figures = fopen(path, "w");
  if (figures == NULL) {
    fail(path);
  }
  fprintf(figures, "%.6f %.6f\n", start, cpu_seconds());
  fclose(figures);
}

struct Count {
  uint64_t next[kMaxRanks];  // number of the next expected line of each rank
  uint64_t whole, lost, torn;
};

/// Checks one line of input. The end of `text` is the line that a rank wrote; the launcher's prefix
/// is before it.
static void check_line(struct Count* count, const char* text, size_t size, size_t line_size) {
  const size_t own = line_size - 1;
  const char* line = text + (size - own);
  char* end = NULL;
  const long rank = size < own ? -1 : strtol(line, &end, 10);
  const char* digits = memchr(text, '[', size);
  digits = digits == NULL ? NULL : digits + strcspn(digits, "0123456789]");
  if (rank < 0 || rank >= kMaxRanks || end != line + 2 || digits == NULL || digits >= line ||
      atol(digits) != rank || size > own + 32) {
    ++count->torn;
    return;
  }
  for (size_t i = kHead + 1; i < own; ++i) {
    if (line[i] != 'x') {
      ++count->torn;
      return;
    }
  }
  const uint64_t number = strtoull(line + 3, NULL, 10);
  if (number < count->next[rank]) {
    ++count->torn;  // duplicated or out of order
    return;
  }
  count->lost += number - count->next[rank];
  count->next[rank] = number + 1;
  ++count->whole;
}

static void check(uint64_t lines, size_t line_size) {
  static struct Count count;
  char* text = NULL;
  size_t capacity = 0;
  for (ssize_t size; (size = getline(&text, &capacity, stdin)) > 0;) {
    check_line(&count, text, (size_t)size - (text[size - 1] == '\n'), line_size);
  }
  for (int rank = 0; rank < kMaxRanks && count.next[rank] > 0; ++rank) {
    count.lost += lines - count.next[rank];
  }
  printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", count.whole, count.lost, count.torn);
}

int main(int argc, char** argv) {
  const uint64_t amount = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
  const size_t line_size = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
  const int produces = argc == 4 && strcmp(argv[1], "produce") == 0;
  const int checks = argc == 4 && strcmp(argv[1], "check") == 0;
  if ((!produces && !checks) || line_size < 20 || line_size > 4096) {
    fprintf(stderr, "usage: output_lines produce BYTES LINE_SIZE | check LINES LINE_SIZE\n");
    return 2;
  }
  if (produces) {
    produce(amount, line_size);
  } else {
    check(amount, line_size);
  }
  return 0;
}
