#pragma once

#define ACC_API __attribute__((visibility("default")))
