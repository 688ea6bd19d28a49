// SPDX-License-Identifier: Apache-2.0
#define ACC_KERNELS_VARIANT avx2
#define ACC_KERNELS_NAME "avx2"
#include "kernels/kernels_body.inc"
