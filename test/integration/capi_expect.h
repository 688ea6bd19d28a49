/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ACC_TEST_CAPI_EXPECT_H
#define ACC_TEST_CAPI_EXPECT_H

#include "acc/runtime.h"

#include <stdio.h>
#include <stdlib.h>

/* Prints the condition and exits with 1 if it does not hold. */
#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, \
              acc_last_error());                                                     \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)
#define EXPECT_OK(call) EXPECT((call) == ACC_OK)

#endif
