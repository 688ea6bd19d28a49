#pragma once

/// Marks what libacc_runtime.so exports; everything else is compiled with hidden visibility.
#define ACC_API __attribute__((visibility("default")))
