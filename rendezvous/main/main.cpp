#include "acc/base/error.hpp"
#include "acc/rendezvous/server.hpp"

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <string>

namespace {

int serve(const std::string& host, std::uint16_t port) {
  boost::asio::io_context io(1);
  acc::rendezvous::Server server(io, host, port);
  boost::asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&server](const boost::system::error_code& error, int) {
    if (!error) {
      server.stop();
    }
  });
  fmt::print("listening on {}:{}\n", host.empty() ? "*" : host, server.port());
  std::fflush(stdout);
  io.run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string host = "127.0.0.1";
  std::uint16_t port = 29500;
  CLI::App app("Serves the store through which the ranks of a job find each other",
               "acc-rendezvous");
  app.add_option("--host", host, "Address or name to listen on; \"\" for all interfaces")
      ->capture_default_str();
  app.add_option("--port", port, "Port to listen on; 0 takes a free one")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return serve(host, port);
  } catch (const acc::Error& error) {
    fmt::print(stderr, "acc-rendezvous: {}\n", error.what());
    return acc::exit_status(error);
  }
}
