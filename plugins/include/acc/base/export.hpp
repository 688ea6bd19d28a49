// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks the symbols that libacc_runtime.so exports; all others are compiled with hidden
/// visibility.
#define ACC_API __attribute__((visibility("default")))
