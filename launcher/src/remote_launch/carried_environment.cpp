// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/carried_environment.hpp"

#include "acc/base/variables.hpp"
#include "host/own_variables.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace acc::launcher::remote_launch {
namespace {

/// Variables that are not passed on: those of a host, a login session, a terminal or a desktop, and
/// those in which a job manager identifies this process. A trailing * matches any rest.
constexpr auto kOwn = std::to_array<std::string_view>({"HOME",
                                                       "USER",
                                                       "LOGNAME",
                                                       "SHELL",
                                                       "PWD",
                                                       "OLDPWD",
                                                       "SHLVL",
                                                       "HOSTNAME",
                                                       "HOST",
                                                       "HOSTTYPE",
                                                       "MACHTYPE",
                                                       "MAIL",
                                                       "TERM",
                                                       "TERM_*",
                                                       "TERMINFO",
                                                       "COLORTERM",
                                                       "COLUMNS",
                                                       "LINES",
                                                       "WINDOWID",
                                                       "DISPLAY",
                                                       "TTY",
                                                       "XAUTHORITY",
                                                       "WAYLAND_*",
                                                       "SSH_*",
                                                       "XDG_*",
                                                       "DBUS_*",
                                                       "GPG_*",
                                                       "KRB5CCNAME",
                                                       "TMPDIR",
                                                       "TMUX*",
                                                       "STY",
                                                       "LS_COLORS",
                                                       "LS_OPTIONS",
                                                       "LESS*",
                                                       "PS1",
                                                       "PROMPT*",
                                                       "HIST*",
                                                       "BASH_FUNC_*",
                                                       "_",
                                                       "SUDO_*",
                                                       "SLURM*",
                                                       "INVOCATION_ID",
                                                       "JOURNAL_STREAM",
                                                       "NOTIFY_SOCKET",
                                                       "OMPI_COMM_*",
                                                       "PMI_*",
                                                       "PMIX_*",
                                                       "FLUX_*",
                                                       "LOCAL_RANK",
                                                       kCudaVisibleVariable,
                                                       plugins::kJobSecretVariable,
                                                       host::variables::control.name});

bool is_in(std::span<const std::string_view> patterns, std::string_view name) {
  return std::ranges::any_of(patterns, [name](std::string_view pattern) {
    return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                  : name == pattern;
  });
}

}  // namespace

plugins::Environment environment_for_other_machines(const plugins::Environment& own,
                                                    RemoteLaunchPlan::Means means) {
  plugins::Environment carried;
  for (const auto& [name, value] : own) {
    if (means != RemoteLaunchPlan::Means::srun && !is_in(kOwn, name)) {
      carried.emplace(name, value);
    }
  }
  return carried;
}

}  // namespace acc::launcher::remote_launch
