#pragma once

#include "acc/base/export.hpp"
