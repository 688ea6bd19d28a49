// SPDX-License-Identifier: Apache-2.0
#define ACC_KERNELS_VARIANT generic
#define ACC_KERNELS_NAME "generic"
#include "kernels/kernels_body.inc"
