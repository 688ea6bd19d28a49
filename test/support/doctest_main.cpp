// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#ifdef __SANITIZE_THREAD__
/// Races that the thread sanitizer must not report. std::regex fills a cache of the locale without
/// synchronization; all threads write the same values (GCC bug 77704). The threads of oneDNN meet
/// in libgomp's barriers, which the sanitizer cannot see.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:std::ctype<char>::narrow\nrace:libdnnl\n";
}
#endif
