#pragma once

/// Marks what libacc_runtime.so exports; all else is hidden (C and C++).
#define ACC_API __attribute__((visibility("default")))
