/* A process in uninterruptible sleep for as long as it lives: it waits for the child of its vfork(),
 * which lives on. */
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
