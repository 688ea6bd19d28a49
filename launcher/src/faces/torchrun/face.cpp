#include "acc/launcher/face.hpp"

#include "faces/torchrun/planner.hpp"
#include "faces/torchrun/table.hpp"

#include <array>

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch torchrun starts the workers of a distributed training program with torchrun's "
    "flags.\n\n"
    "  acclaunch torchrun [flags] PROGRAM [arguments of the program]\n\n"
    "PROGRAM runs under Python unless it is a binary, or --no-python says so. Flags come before\n"
    "PROGRAM, may be spelled with - or _ and abbreviated; PET_<FLAG> in the environment stands in\n"
    "for one that is not given, 1 or 0 for those without a value. ${local_rank} in an argument\n"
    "is replaced. acclaunch exits with the status of the worker that failed.\n";

constexpr std::array kShortFlags = {ShortFlag{'m', "module"}, ShortFlag{'r', "redirects"},
                                    ShortFlag{'t', "tee"}};

constexpr std::array kRefused = {
    RefusedFlag{"logs_specs", "it names a Python object; use --log-dir, --redirects and --tee"},
};

}  // namespace

const Face& torchrun_face() noexcept {
  static const Face kFace{.name = "torchrun",
                          .usage = kUsage,
                          .table = torchrun_table(),
                          .short_flags = kShortFlags,
                          .refused = kRefused,
                          .separator = '-',
                          .abbreviates = true,
                          .plan = plan_torchrun};
  return kFace;
}

}  // namespace acc::launcher
