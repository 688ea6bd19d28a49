#pragma once

#include "checkpoint/pickle/value.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace acc::checkpoint::pickle {

/// Whether a pickle may name this global. Nothing is imported or called in any case; a reader
/// accepts what it understands.
using Allows = std::function<bool(std::string_view module, std::string_view name)>;

/// The globals of model, optimizer and scheduler state as torch, Accelerate and DeepSpeed write it:
/// dtypes, storages, _rebuild_tensor_v2/v3, Size, collections, the DCP classes, DeepSpeed's enums
/// and loss scalers, pathlib (checkpoint-formats 1.2, 1.4, 5).
bool is_known_global(std::string_view module, std::string_view name);

/// Reads protocols 0 to 5 as torch's and Python's writers use them: no PERSID text protocol, no
/// extension registry, no out-of-band buffers, no INST/OBJ. Iterative, bounded by the input's size:
/// hostile input can cost neither stack nor memory out of proportion. Throws Error(config): `where`
/// (file, and entry in it), the byte, what was found ("opcode 0x..", "global os.system is not
/// allowed"). Ends at STOP; `consumed`, if not null, gets the bytes up to there.
Document read(std::span<const std::byte> bytes, const std::string& where,
              const Allows& allows = is_known_global, std::size_t* consumed = nullptr);

}  // namespace acc::checkpoint::pickle
