// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/carried_environment.hpp"

#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/plugins/settings_table.hpp"
#include "host/own_variables.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace acc::launcher::remote_launch {
namespace {

/// Variables that are not passed on: those of a host, a login session, a terminal or a desktop, and
/// those in which a job manager identifies this process. A trailing * matches any rest.
constexpr std::string_view kOwn =
    "HOME USER LOGNAME SHELL PWD OLDPWD SHLVL HOSTNAME HOST HOSTTYPE MACHTYPE MAIL TERM TERM_* "
    "TERMINFO COLORTERM COLUMNS LINES WINDOWID DISPLAY TTY XAUTHORITY WAYLAND_* SSH_* XDG_* "
    "DBUS_* GPG_* KRB5CCNAME TMPDIR TMUX* STY LS_COLORS LS_OPTIONS LESS* PS1 PROMPT* HIST* "
    "BASH_FUNC_* _ SUDO_* SLURM* INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET OMPI_COMM_* PMI_* "
    "PMIX_* FLUX_* LOCAL_RANK";
constexpr std::array kOwnElsewhere = {std::string_view(kCudaVisibleVariable),
                                      std::string_view(plugins::kJobSecretVariable),
                                      host::variables.control.name};

bool is_own(std::string_view name) {
  const auto names_it = [name](std::string_view pattern) {
    return plugins::matches(name, pattern);
  };
  return std::ranges::any_of(split(kOwn, ' '), names_it) ||
         std::ranges::any_of(kOwnElsewhere, names_it);
}

}  // namespace

plugins::Environment environment_for_other_machines(const plugins::Environment& own,
                                                    RemoteLaunchPlan::Means means) {
  plugins::Environment carried;
  for (const auto& [name, value] : own) {
    if (means != RemoteLaunchPlan::Means::srun && !is_own(name)) {
      carried.emplace(name, value);
    }
  }
  return carried;
}

}  // namespace acc::launcher::remote_launch
