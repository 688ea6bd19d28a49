/* SPDX-License-Identifier: Apache-2.0 */
/* A process that stays in uninterruptible sleep: the parent of a vfork() waits until the child
 * exits or calls exec, and this child does neither. */
#include <unistd.h>

int main(void) {
  if (vfork() == 0) {
    static const char up[] = "asleep\n";
    if (write(1, up, sizeof up - 1) < 0) {
      _exit(1);
    }
    for (;;) {
      pause();
    }
  }
  return 0;
}
