// Store requests, cut anywhere: what is decoded, encoded again, is what came.
#include "acc/base/error.hpp"
#include "input.hpp"
#include "wire/request_decoder.hpp"

#include <string>

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Cuts cuts(input);
  const std::string_view stream = input.rest();
  std::string_view unread = stream;
  acc::rendezvous::wire::RequestDecoder decoder;
  std::string again;
  try {
    while (!unread.empty()) {
      decoder.feed(cuts.take_piece(unread));
      while (const auto request = decoder.next()) {
        encode(*request, again);
      }
    }
  } catch (const acc::Error& error) {
    require(error.code() == acc::Errc::protocol, "bad bytes are a protocol error");
  }
  require(stream.starts_with(again), "decoded requests are the bytes that came");
  return 0;
}
