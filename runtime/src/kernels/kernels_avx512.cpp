// SPDX-License-Identifier: Apache-2.0
#define ACC_KERNELS_VARIANT avx512
#define ACC_KERNELS_NAME "avx512"
#include "kernels/kernels_body.inc"
