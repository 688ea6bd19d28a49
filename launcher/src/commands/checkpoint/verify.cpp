// SPDX-License-Identifier: Apache-2.0
// acclaunch verify: reads all data of a checkpoint and compares it with the stored checksums.
#include "acc/checkpoint/convert/verify.hpp"

#include "acc/base/log.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "commands/checkpoint/shared.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace acc::launcher::commands {
namespace {

namespace conversion = checkpoint::conversion;

std::string in_words(const conversion::Verification& found) {
  std::string text =
      fmt::format("{}, {}, and {} of values and other state: ", count_of(found.tensors, "tensor"),
                  in_decimal_units(found.nbytes), count_of(found.files, "archive"));
  text += found.damaged.empty() ? "nothing is damaged\n"
                                : count_of(found.damaged.size(), "fault") + "\n";
  for (const conversion::Damage& each : found.unreadable) {
    text += "not verified: " + each.reason + "\n";
  }
  if (found.unchecked_tensors != 0) {
    text += fmt::format(
        "{} of {}, {}, could be read but not verified: the checkpoint has no checksums for them\n",
        found.unchecked_tensors, count_of(found.tensors, "tensor"),
        in_decimal_units(found.unchecked_nbytes));
  }
  for (const std::string& reason : found.names_unknown) {
    text += "names unknown: " + reason + "\n";
  }
  return text;
}

}  // namespace

int verify_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "Reads a whole checkpoint and verifies that every file and element is present and that all\n"
      "checksums match. Exits with 1 if anything is damaged, and with 2 if it is not a "
      "checkpoint,\n"
      "or if nothing in it can be read.\n"
      "Dtypes and classes that it cannot read are named, and are no damage.",
      "acclaunch verify");
  std::string path;
  WorkFlags work;
  parser.add_option("path", path, "the checkpoint, in any format").required();
  work.add_threads(parser);
  parser.parse(arguments);
  path = checkpoint::find_checkpoint(path);  // a series' folder stands for its newest checkpoint
  const conversion::Options options = work.options();
  const conversion::Verification found =
      conversion::verify(path, options.num_threads, options.progress);
  for (const conversion::Damage& damage : found.damaged) {
    const std::string tensor = damage.tensor.empty() ? "" : ", " + damage.tensor;
    notice(Component::launcher, LogLevel::critical,
           "damaged: ", damage.file.string() + tensor + ": " + damage.reason);
  }
  if (found.damaged.empty() && found.tensors == 0 && found.files == 0 &&
      !found.unreadable.empty()) {
    throw Error(Errc::not_supported, "nothing can be verified: " + found.unreadable.front().reason);
  }
  if (!work.quiet()) {
    std::fputs((path + ": " + in_words(found)).c_str(), stdout);
  }
  return found.damaged.empty() ? 0 : 1;
}

}  // namespace acc::launcher::commands
