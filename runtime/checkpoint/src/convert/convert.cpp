#include "acc/checkpoint/convert/convert.hpp"

#include "convert/outputs.hpp"

namespace acc::checkpoint::conversion {

// Each writer opens its own reader of the catalog, checks its sources, and reads its output back.
Result convert(const Stored& from, const std::filesystem::path& out, const Options& options) {
  switch (options.to) {
    case Target::safetensors: return write_safetensors(from, out, options);
    case Target::bin: return write_bin(from, out, options);
    case Target::dcp: return write_dcp(from, out, options);
    case Target::deepspeed: break;
  }
  return write_deepspeed(from, out, options);
}

}  // namespace acc::checkpoint::conversion
