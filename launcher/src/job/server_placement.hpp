// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace acc::launcher::job {

/// The phases of a ServerPlacement.
namespace placement {

/// Another machine or a daemon serves.
struct Elsewhere {};
/// Static ranks: machine 0 serves.
struct AsMachine0 {};
/// c10d: the user says that this machine serves.
struct AsHost {};
/// c10d, before the first round: the address is one of this machine's. A daemon or another launcher
/// on it may serve there already.
struct IfPortIsFree {};
/// The same, after the first round: another process serves, and this one takes over if that ends
/// and does not come back. A daemon that is restarted needs its port, which this launcher must not
/// take.
struct TakesOver {
  /// Time of the first failed connection attempt since the server was lost.
  std::optional<std::chrono::steady_clock::time_point> gone_since{};
};

}  // namespace placement

/// Decides for one machine of a job whether it serves the rendezvous, and at which of its addresses
/// the servers listen. Reads no clock and uses no socket.
class ServerPlacement {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Facts {
    bool ranks_are_given = false;  ///< static ranks
    int machine_rank = 0;
    std::optional<bool> is_host{};            ///< c10d: given by the user
    bool meets_at_daemons = false;            ///< at one of several that replace each other
    std::string address;                      ///< address of the rendezvous for all machines
    bool is_own_address = false;              ///< it is one of this machine's addresses
    std::vector<std::string> server_hosts{};  ///< own addresses for `address`; "*": all
    std::string local_address{};              ///< --local-addr; empty: not given
    std::vector<std::string> local_hosts{};   ///< own addresses for `local_address`
    std::chrono::milliseconds patience{0};    ///< time in which a lost server may come back
  };

  explicit ServerPlacement(Facts facts);

  [[nodiscard]] const Facts& facts() const noexcept { return facts_; }
  /// True if the rendezvous belongs on this machine.
  [[nodiscard]] bool is_here() const {
    return !std::holds_alternative<placement::Elsewhere>(phase_);
  }
  /// True if nobody else may serve, so that a port in use is an error.
  [[nodiscard]] bool must_serve() const {
    return is_machine_0() || std::holds_alternative<placement::AsHost>(phase_);
  }
  [[nodiscard]] bool is_machine_0() const {
    return std::holds_alternative<placement::AsMachine0>(phase_);
  }
  /// True if another machine may also take itself for machine 0: `address` leads elsewhere, or
  /// back to this machine through a gateway.
  [[nodiscard]] bool may_have_rival() const { return is_machine_0() && !facts_.is_own_address; }

  /// Called before a connection attempt, while this machine does not serve. True if it is to
  /// listen.
  bool is_to_listen(Time now);
  /// A round is over, and the machine joins the next one.
  void rejoin();

  /// Returns the address at which this machine connects to its own server. The configured address
  /// may lead elsewhere from here.
  [[nodiscard]] std::string own_server() const;
  /// Returns the host at which this machine joins.
  [[nodiscard]] std::string host_to_join() const {
    return is_machine_0() ? own_server() : facts_.address;
  }
  /// c10d: returns the own addresses on which the workers' store listens. `address` is the one that
  /// the other machines get.
  [[nodiscard]] std::vector<std::string> store_hosts(const std::string& address) const;

 private:
  Facts facts_;
  std::variant<placement::Elsewhere, placement::AsMachine0, placement::AsHost,
               placement::IfPortIsFree, placement::TakesOver>
      phase_;
};

}  // namespace acc::launcher::job
