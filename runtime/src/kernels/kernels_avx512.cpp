// SPDX-License-Identifier: Apache-2.0
#define ACC_KERNELS_VARIANT avx512
#define ACC_KERNELS_NAME "avx512"
// False warnings of GCC 12 about its own intrinsics (gcc.gnu.org/PR105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "kernels/kernels_body.inc"
