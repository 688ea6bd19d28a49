// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::cluster {

/// A machine and its slots: the GPUs, or other positions for a worker, that may be used.
struct Host {
  std::string name;
  std::vector<int> slots;  ///< ascending, from 0
  std::string where;       ///< origin, `hostfile:3`; empty: not from a file
  std::string user{};      ///< login name; empty: that of ssh's configuration

  bool operator==(const Host&) const = default;
};

/// Returns the destination for ssh, `[USER@]NAME`.
std::string login_of(const Host& host);

/// Accepted forms of a hostfile's lines.
enum class HostfileForm {
  deepspeed,  ///< `NAME slots=N`
  any,        ///< also NAME, NAME:N and USER@NAME, as in files for mpirun, MPICH and pdsh
};

/// Parses a hostfile. Blank lines, `#` comments and, in DeepSpeed's form, words after the slots are
/// ignored. In the form `any` the words after the name must be `KEY=VALUE`, and a host without a
/// number has no slots. `path` is for messages. Throws Error(config) with every bad line, for a
/// host that is listed twice, and for a file without hosts.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& path,
                                 HostfileForm form = HostfileForm::deepspeed);

/// Return the hosts and slots that `--include` or `--exclude` leaves, in the order of `hosts`.
/// `filter.value` is `HOST[:SLOT,...]` joined by `@`; a host without slots means all its slots; an
/// empty text is no filter. Throws Error(config) that names every host and slot that does not
/// exist.
std::vector<Host> only_included(const std::vector<Host>& hosts, const Sourced<std::string>& filter);
std::vector<Host> without_excluded(const std::vector<Host>& hosts,
                                   const Sourced<std::string>& filter);

}  // namespace acc::launcher::cluster
