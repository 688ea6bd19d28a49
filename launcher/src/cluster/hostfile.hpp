#pragma once

#include "plan/given.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A machine and which of its GPUs, or other places for a worker, may be used.
struct Host {
  std::string name;
  std::vector<int> slots;  ///< rising, from 0
  std::string where;       ///< `hostfile:3`; empty: no file says it
  std::string user{};      ///< to log in as; empty: as ssh is configured

  bool operator==(const Host&) const = default;
};

/// `[USER@]NAME`, as ssh takes it.
std::string login_of(const Host& host);

enum class HostfileForm {
  deepspeed,  ///< `NAME slots=N`
  any,        ///< also NAME, NAME:N and USER@NAME, as mpirun, MPICH and pdsh have them
};

/// A hostfile: `NAME slots=N` a line; blank lines and `#` comments don't count, nor does what
/// follows the slots. In the form `any` what follows must be `KEY=VALUE`, and a host whose slots
/// are not said has none. `path` is for messages. Throws Error(config) with every bad line, a host
/// that is named twice, and a file without any.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& path,
                                 HostfileForm form = HostfileForm::deepspeed);

/// What `--include` or `--exclude` leaves of the hosts, in their order. `filter.text` is
/// `HOST[:SLOT,...]` joined by `@`; without slots it means the whole host, empty text: no filter.
/// Throws Error(config) that names every host and slot that is not there.
std::vector<Host> only_included(const std::vector<Host>& hosts, const Given& filter);
std::vector<Host> without_excluded(const std::vector<Host>& hosts, const Given& filter);

}  // namespace acc::launcher
