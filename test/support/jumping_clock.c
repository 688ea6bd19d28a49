/* SPDX-License-Identifier: Apache-2.0 */
// Preloaded library under which the wall clock jumps by a day, forward and back, every time it is
// read. The other clocks are not changed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>

enum { kDay = 24 * 60 * 60 };

static time_t jumped(time_t seconds) {
  static atomic_int reads;
  return seconds + (atomic_fetch_add(&reads, 1) % 3 - 1) * kDay;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == NULL) {
    real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  }
  const int result = real(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) {
    now->tv_sec = jumped(now->tv_sec);
  }
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  (void)zone;
  struct timespec exact;
  const int result = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return result;
}

time_t time(time_t* now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now != NULL) {
    *now = exact.tv_sec;
  }
  return exact.tv_sec;
}
