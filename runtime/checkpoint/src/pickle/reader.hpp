// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/pickle/value.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace acc::checkpoint::pickle {

/// True if a pickle may name this global. Nothing is imported or called in any case. A reader
/// accepts only the globals that it understands.
using Allows = std::function<bool(std::string_view module, std::string_view name)>;

/// True for the globals of model, optimizer and scheduler state as torch, Accelerate and DeepSpeed
/// write it: dtypes, storages, _rebuild_tensor_v2 and _v3, Size, collections, the DCP classes,
/// DeepSpeed's enums and loss scalers, pathlib (docs/formats/torch_save.md, dcp.md, deepspeed.md).
bool is_known_global(std::string_view module, std::string_view name);

/// True for the function with which Python 3.11.0 to 3.11.3 pickle an enumerator: getattr(class,
/// name). A pickle may call it with the classes of `enumerator` only.
constexpr bool is_getattr(std::string_view module, std::string_view name) {
  return (module == "builtins" || module == "__builtin__") && name == "getattr";
}
/// Returns the number of an enumerator that torch or DeepSpeed pickles; nothing for any other.
std::optional<std::int64_t> enumerator(std::string_view module, std::string_view type,
                                       std::string_view name);

/// Reads a pickle of protocols 0 to 5, with the opcodes that the writers of torch and Python emit
/// for data: no PERSID in text form, no extension registry, no out-of-band buffers, no INST and
/// OBJ. Iterative and bounded by the size of the input: hostile input can exhaust neither the stack
/// nor memory. Ends at STOP; `consumed`, if not null, receives the number of bytes up to there.
/// Throws Error(config) with `where` (the file, and the entry in it), the byte, and what was found
/// ("opcode 0x..", "global os.system is not allowed").
Values read(std::span<const std::byte> bytes, const std::string& where,
            const Allows& allows = is_known_global, std::size_t* consumed = nullptr);

}  // namespace acc::checkpoint::pickle
