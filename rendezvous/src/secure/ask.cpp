// SPDX-License-Identifier: Apache-2.0
#include "secure/ask.hpp"

#include "acc/base/text.hpp"
#include "net/socket_stream.hpp"
#include "secure/secure_link.hpp"

#include <optional>
#include <utility>
#include <vector>

namespace acc::rendezvous::secure {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

}  // namespace

std::string ask(const Server& server, const std::shared_ptr<const ClientSecurity>& security,
                Role role, const std::string& request, std::chrono::steady_clock::time_point until,
                const std::function<bool(const std::string& answer)>& is_complete) {
  const std::string host = without_brackets(server.host);
  std::vector<char> buffer(kBufferBytes);
  const auto exchange = [&](SecureLink* link) {
    const StoppablePoll poll{std::stop_token()};
    SocketStream stream(poll);
    stream.connect(host, server.port, until);
    std::string out = request;
    if (link != nullptr) {
      out.clear();
      link->start(out);
      link->send(request, out);
    }
    std::string answer;
    while (!is_complete(answer) && (link == nullptr || !link->is_finished())) {
      stream.write(std::exchange(out, {}), until);
      const std::size_t count = stream.read_some(buffer.data(), buffer.size(), until);
      if (count == 0) {
        break;
      }
      if (link != nullptr) {
        link->receive({buffer.data(), count}, answer, out);
      } else {
        answer.append(buffer.data(), count);
      }
    }
    return answer;
  };
  if (!security) {
    return exchange(nullptr);
  }
  std::string refusal;
  for (const Tokens& token : security->tokens.now().each()) {
    try {
      SecureLink link(security, host, {role, ""}, token);
      return exchange(&link);
    } catch (const TokenRefused& refused) {
      refusal = refused.what();  // the next token may be the one that the server has
    }
  }
  throw Error(Errc::disagreement, refusal);
}

}  // namespace acc::rendezvous::secure
