// SPDX-License-Identifier: Apache-2.0
// Fuzzes the decoder of store requests with split input: encoding the decoded requests must give
// the input.
#include "acc/base/error.hpp"
#include "input.hpp"
#include "wire/request_decoder.hpp"

#include <string>

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::fuzz::Unread;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Cuts cuts(input);
  const std::string_view stream = input.rest();
  std::string_view to_come = stream;
  Unread unread;
  acc::rendezvous::wire::RequestDecoder decoder;
  std::string again;
  try {
    while (!to_come.empty()) {
      unread.feed(cuts.take_piece(to_come), [&](std::string_view& bytes) {
        const auto request = decoder.next(bytes);
        if (request) {
          encode(request->copy(), again);
        }
        return request.has_value();
      });
    }
  } catch (const acc::Error& error) {
    require(error.code() == acc::Errc::protocol, "bad bytes are a protocol error");
  }
  require(stream.starts_with(again), "encoding the decoded requests gives the input");
  return 0;
}
