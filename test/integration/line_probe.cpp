// SPDX-License-Identifier: Apache-2.0
// Writes a line with each output facility of C++ without flushing it, and waits for a signal.
#include "acc/runtime.hpp"

#include <unistd.h>

#include <cstdio>
#include <iostream>

int main() {
  std::printf("before ");
  const acc::Runtime runtime = acc::Runtime::from_environment();
  std::printf("and after\n");
  std::cout << "by iostream\n";
  std::putchar('c');
  std::putchar('\n');
  for (;;) {
    ::pause();
  }
}
