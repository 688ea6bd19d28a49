// SPDX-License-Identifier: Apache-2.0
// Tokens, proofs and TLS without sockets.
#include "acc/base/error.hpp"
#include "secure/secure_link.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

namespace fs = std::filesystem;
using acc::test::TemporaryFolder;
using secure::Admission;
using secure::ClientProof;
using secure::SecureLink;
using secure::ServerProof;
using secure::TlsChannel;

const std::string kToken(32, 't');
const std::string kBinding(32, 'b');
const Admission kAgent{Role::agent, "job"};

std::string error_text(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK((error.code() == Errc::config || error.code() == Errc::protocol ||
           error.code() == Errc::disagreement || error.code() == Errc::not_found));
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

/// The four messages of a handshake.
struct Transcript {
  std::string hello, challenge, proof, result;
};

/// Runs a handshake; returns its error, or "" if both sides accept each other.
std::string handshake(const Tokens& client_tokens, const ServerSecurity& security,
                      const Admission& wanted, const std::string& client_binding = kBinding,
                      Transcript* record = nullptr) {
  Transcript said;
  try {
    ClientProof client(client_tokens, wanted, client_binding);
    ServerProof server(security, kBinding);
    const auto pass = [](auto& side, std::string_view bytes) {
      std::string out;
      const bool has_taken = side.step(bytes, out);  // CHECK would catch its exception
      CHECK(has_taken);
      CHECK(bytes.empty());
      return out;
    };
    said.hello = client.hello();
    said.challenge = pass(server, said.hello);
    said.proof = pass(client, said.challenge);
    said.result = pass(server, said.proof);
    pass(client, said.result);
    CHECK(client.is_over());
    REQUIRE(server.admission().has_value());
    CHECK(*server.admission() == wanted);
  } catch (const Error& error) {
    return error.what();
  }
  if (record != nullptr) {
    *record = said;
  }
  return "";
}

ServerSecurity server_of(std::vector<std::string> tokens,
                         std::optional<std::string> only_job = std::nullopt) {
  return {Tokens(std::move(tokens)), std::move(only_job), nullptr};
}

TEST_CASE("a proof: who is admitted") {
  const std::string other(32, 'o');
  const Tokens own({kToken});
  const Tokens of_job({own.job_token("job")});
  const Tokens of_other_job({own.job_token("other")});
  const Tokens of_readers({own.reader_token()});
  const Admission reader{Role::reader, ""};
  struct Case {
    const char* name;
    Tokens client;
    ServerSecurity server;
    Admission wanted;
    const char* error;  // "": admitted
  };
  const std::vector<Case> cases = {
      {"the token", own, server_of({kToken}), kAgent, ""},
      {"as a store client", own, server_of({kToken}), {Role::store, "job"}, ""},
      {"as an administrator", own, server_of({kToken}), {Role::administrator, ""}, ""},
      {"the previous token", own, server_of({other, kToken}), kAgent, ""},
      {"another token", own, server_of({other}), kAgent, "wrong token proof"},
      {"a job's token", of_job, server_of({kToken}), kAgent, ""},
      {"another job's token", of_other_job, server_of({kToken}), kAgent, "wrong token proof"},
      {"a job's token on both sides", of_job, server_of({of_job.current()}), kAgent, ""},
      {"a job's token as an administrator",
       of_job,
       server_of({kToken}),
       {Role::administrator, ""},
       "for one job only"},
      {"an administrator of a server with a job's token",
       own,
       server_of({of_job.current()}),
       {Role::administrator, ""},
       "wrong token proof"},
      {"a reader", own, server_of({kToken}), reader, ""},
      {"a reader's token", of_readers, server_of({other, kToken}), reader, ""},
      {"a reader's token of another server", of_readers, server_of({other}), reader, "wrong token"},
      {"a reader of a server of one job", of_readers, server_of({kToken}, "job"), reader, ""},
      {"a reader's token as an agent", of_readers, server_of({kToken}), kAgent, "for readers only"},
      {"a reader's token as an administrator",
       of_readers,
       server_of({kToken}),
       {Role::administrator, ""},
       "for readers only"},
      {"a job's token as a reader", of_job, server_of({kToken}), reader, "for one job only"},
      {"the job of a server of one job", own, server_of({kToken}, "job"), kAgent, ""},
      {"another job of it", own, server_of({kToken}, "other"), kAgent, "wrong token proof"},
      {"a long run id", own, server_of({kToken}), {Role::agent, std::string(1024, 'r')}, ""},
      {"too long", own, server_of({kToken}), {Role::agent, std::string(1025, 'r')}, "longer than"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const std::string error = handshake(each.client, each.server, each.wanted);
    if (*each.error == '\0') {
      CHECK(error.empty());
    } else {
      CHECK(contains(error, each.error));
    }
  }
}

TEST_CASE("a proof holds for one channel, role, job and moment") {
  const Tokens tokens({kToken});
  const ServerSecurity security = server_of({kToken});
  CHECK(contains(handshake(tokens, security, kAgent, std::string(32, 'm')), "wrong token proof"));

  Transcript said;
  REQUIRE(handshake(tokens, security, kAgent, kBinding, &said).empty());
  // A man in the middle repeats the messages of a client, some of them changed.
  const auto replayed = [&](const std::string& hello, const std::string& proof) {
    ServerProof server(security, kBinding);
    std::string out;
    std::string_view bytes = hello;
    const std::string error = error_text([&] {
      server.step(bytes, out);
      bytes = proof;
      server.step(bytes, out);
    });
    CHECK(!server.admission());
    return error;
  };
  CHECK(contains(replayed(said.hello, said.proof), "wrong token proof"));  // replay
  std::string as_administrator = said.hello;
  as_administrator[5] = 3;
  CHECK(contains(replayed(as_administrator, said.proof), "wrong token proof"));
  as_administrator[5] = 5;
  CHECK(contains(replayed(as_administrator, said.proof), "unknown role"));
  as_administrator[5] = 0;
  CHECK(contains(replayed(as_administrator, said.proof), "unknown role"));
  std::string downgraded = said.hello;
  downgraded[4] = 0;
  CHECK(contains(replayed(downgraded, said.proof), "not a token proof of this version"));
  // The server's proof is not the client's: it cannot be sent back.
  CHECK(contains(replayed(said.hello, said.result.substr(1)), "wrong token proof"));

  // A server that repeats what another one said, or refuses.
  const auto client_hears = [&](const std::string& challenge, const std::string& result) {
    ClientProof client(tokens, kAgent, kBinding);
    std::string out;
    std::string_view bytes = challenge;
    const std::string error = error_text([&] {
      client.step(bytes, out);
      bytes = result;
      client.step(bytes, out);
    });
    CHECK(!client.is_over());
    return error;
  };
  CHECK(contains(client_hears(said.challenge, said.result), "cannot prove that it has the token"));
  CHECK(contains(client_hears("\1", ""), "the server has no token"));
  CHECK(contains(client_hears(said.challenge, "\1"), "the server refuses the token"));
}

TEST_CASE("a proof that is cut off is neither accepted nor an error") {
  const Tokens tokens({kToken});
  const ServerSecurity security = server_of({kToken});
  ClientProof client(tokens, kAgent, kBinding);
  const std::string hello = client.hello();
  for (std::size_t size = 0; size < hello.size(); ++size) {
    ServerProof server(security, kBinding);
    std::string out;
    std::string_view bytes = std::string_view(hello).substr(0, size);
    CHECK(!server.step(bytes, out));
    CHECK(out.empty());
    CHECK(bytes.size() == size);
  }
  ServerProof server(security, kBinding);
  std::string challenge;
  std::string_view bytes = hello;
  REQUIRE(server.step(bytes, challenge));
  for (std::size_t size = 0; size < challenge.size(); ++size) {
    std::string out;
    bytes = std::string_view(challenge).substr(0, size);
    CHECK(!client.step(bytes, out));
    CHECK(out.empty());
  }
}

TEST_CASE("token files") {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    const std::string path = folder.write("token", text);
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    return Tokens::read(path);
  };
  CHECK(read(kToken).current() == kToken);
  CHECK(read(kToken + "\r\n\n" + std::string(40, 'p') + "\n").contains(std::string(40, 'p')));
  CHECK(!read(kToken).contains(std::string(40, 'p')));
  CHECK(contains(error_text([&] { read(""); }), "token: expected a token in the first line"));
  CHECK(contains(error_text([&] { read(kToken + "\nshort\n"); }),
                 "token:2: expected a token of 32 to 1024 printable characters without blanks, "
                 "found 5 characters"));
  CHECK(contains(error_text([&] { read(std::string(20, 'a') + " " + std::string(20, 'b')); }),
                 "token:1: expected a token"));
  CHECK(contains(error_text([&] { Tokens::read(folder.path() / "none"); }), "none"));
  const Tokens known = read(kToken);
  CHECK(known.contains(known.reader_token()));
  CHECK(!known.contains(known.job_token("job")));
  CHECK(make_token() != make_token());
  CHECK(read(make_token()).current().size() == 64);
}

TEST_CASE("a token file that is read again: rotated, not readable, and former tokens") {
  const TemporaryFolder folder;
  const std::string next(40, 'n');
  const std::string path = folder.write("token", kToken);
  const Tokens tokens = Tokens::follow(path);
  CHECK(tokens.now().current() == kToken);
  folder.write("token", next + "\n" + kToken + "\n");
  CHECK(tokens.now().current() == next);
  CHECK(tokens.now().each().size() == 2);
  CHECK(!tokens.now().was_right(kToken));
  folder.write("token", next);
  CHECK(!tokens.now().contains(kToken));
  CHECK(tokens.now().was_right(kToken));
  folder.write("token", "");  // it is being written
  CHECK(tokens.now().current() == next);
  fs::remove(path);
  CHECK(tokens.now().current() == next);
  folder.write("token", kToken);
  CHECK(tokens.now().contains(kToken));
  CHECK(!tokens.now().was_right(kToken));
  CHECK(tokens.now().was_right(next));

  // A proof of a former token is refused, but is no stranger's.
  const ServerSecurity security{tokens, std::nullopt, nullptr};
  for (const std::string& token : {next, std::string(40, 'x')}) {
    ServerProof server(security, kBinding);
    ClientProof client(Tokens({token}), kAgent, kBinding);
    std::string out;
    const std::string hello = client.hello();
    std::string_view bytes = hello;
    REQUIRE(server.step(bytes, out));
    std::string proof;
    bytes = out;
    REQUIRE(client.step(bytes, proof));
    bytes = proof;
    CHECK(contains(error_text([&] { server.step(bytes, out); }), "wrong token proof"));
    CHECK(server.was_right() == (token == next));
  }
}

/// Connects a client and a server in memory; returns the error of the first side that has one.
std::string connect(const ServerSecurity& server_security,
                    const std::shared_ptr<const ClientSecurity>& client_security,
                    const std::string& host) {
  SecureLink client(client_security, host, kAgent);
  const auto server = TlsChannel::server(*server_security.tls);
  std::optional<ServerProof> proof;
  std::string to_server;
  std::string to_client;
  std::string heard;   // decrypted by the server
  std::string answer;  // of the protocol, decrypted by the client
  client.send("hello", to_server);
  client.start(to_server);
  try {
    for (int turn = 0; turn < 10; ++turn) {
      server->receive(std::exchange(to_server, {}), heard, to_client);
      if (server->is_established() && !proof) {
        proof.emplace(server_security, server->binding());
      }
      if (proof && !heard.empty()) {
        std::string reply;
        std::string_view rest = heard;
        while (proof->step(rest, reply)) {
        }
        heard.erase(0, heard.size() - rest.size());
        server->send(reply, to_client);
      }
      if (heard == "hello") {
        server->send("welcome", to_client);
        heard.clear();
      }
      client.receive(std::exchange(to_client, {}), answer, to_server);
    }
  } catch (const Error& error) {
    return error.what();
  }
  CHECK(client.is_admitted());
  CHECK(answer == "welcome");
  return "";
}

TEST_CASE("TLS: certificates that are accepted and refused") {
  const TemporaryFolder folder;
  const fs::path good = folder.path() / "good";
  const fs::path other = folder.path() / "other";
  make_tls_folder(good, {"node1", "10.0.0.1"}, std::chrono::hours(24));
  make_tls_folder(other, {}, std::chrono::hours(24));
  const fs::path late = folder.path() / "late";
  make_tls_folder(late, {}, std::chrono::hours(-1));
  const Tokens tokens({kToken});
  const auto server = [&](const TlsFiles& files) { return ServerSecurity::make(tokens, files); };
  const TlsFiles identity{good / "server.pem", good / "server.key", {}};
  const TlsFiles strict{good / "server.pem", good / "server.key", good / "ca.pem"};
  struct Case {
    const char* name;
    TlsFiles server;
    TlsFiles client;
    const char* host;
    const char* error;
  };
  const std::vector<Case> cases = {
      {"no certificates", {}, {}, "node1", ""},
      {"a certificate that is not checked", identity, {}, "elsewhere", ""},
      {"checked by name", identity, {{}, {}, good / "ca.pem"}, "node1", ""},
      {"checked by address", identity, {{}, {}, good / "ca.pem"}, "10.0.0.1", ""},
      {"a wrong name", identity, {{}, {}, good / "ca.pem"}, "node2", "hostname mismatch"},
      {"a wrong address", identity, {{}, {}, good / "ca.pem"}, "10.0.0.2", "IP address mismatch"},
      {"a wrong authority",
       identity,
       {{}, {}, other / "ca.pem"},
       "node1",
       "certificate of the other side is refused"},
      {"an own certificate of the server",
       {},
       {{}, {}, good / "ca.pem"},
       "node1",
       "self-signed certificate"},
      {"a client's certificate",
       strict,
       {good / "client.pem", good / "client.key", good / "ca.pem"},
       "node1",
       ""},
      {"none, but one is required", strict, {}, "node1", ""},
      {"a client's certificate of another authority",
       strict,
       {other / "client.pem", other / "client.key", {}},
       "node1",
       "certificate of the other side is refused"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const std::string error =
        connect(*server(each.server), ClientSecurity::make(tokens, each.client), each.host);
    if (std::string(each.name) == "none, but one is required") {
      CHECK(!error.empty());
    } else if (*each.error == '\0') {
      CHECK(error.empty());
    } else {
      CHECK(contains(error, each.error));
    }
  }
  // Another token is found out in the same way.
  CHECK(
      contains(connect(*server({}), ClientSecurity::make(Tokens({std::string(32, 'x')}), {}), "h"),
               "wrong token proof"));

  const auto fault = [&](const TlsFiles& files) {
    return error_text([&] { ServerSecurity::make(tokens, files); });
  };
  CHECK(contains(fault({late / "server.pem", late / "server.key", {}}),
                 "server.pem: the certificate has expired"));
  CHECK(contains(fault({good / "server.pem", {}, {}}), "belong together"));
  CHECK(contains(fault({good / "server.pem", other / "server.key", {}}),
                 "server.key: expected the private key of"));
  CHECK(contains(fault({good / "none.pem", good / "server.key", {}}), "none.pem: cannot open"));
  CHECK(contains(fault({good / "token", good / "server.key", {}}),
                 "token: expected a certificate in PEM format"));
  CHECK(contains(error_text([&] { make_tls_folder(good, {}, std::chrono::hours(1)); }),
                 "exists already"));
  for (const char* name : {"ca.key", "server.key", "client.key", "token"}) {
    CAPTURE(name);
    CHECK(fs::status(good / name).permissions() ==
          (fs::perms::owner_read | fs::perms::owner_write));
  }
}

TEST_CASE("TLS: a channel is made for a whole first message of a size that clients need") {
  const auto hello = [](const std::string& head, std::size_t size) {
    return head + std::string(size, 'x');
  };
  using namespace std::string_literals;
  struct Case {
    const char* name;
    std::string bytes;
    std::optional<bool> is_whole;  // none: refused
  };
  const std::vector<Case> cases = {
      {"one byte", "\x16", false},
      {"the head of a record", "\x16\3\1\0\x80"s, false},
      {"the heads", "\x16\3\1\0\x80\1\0\0\x7c"s, false},
      {"one byte is missing", hello("\x16\3\1\0\x80\1\0\0\x7c"s, 0x7b), false},
      {"whole", hello("\x16\3\1\0\x80\1\0\0\x7c"s, 0x7c), true},
      {"whole and more", hello("\x16\3\1\0\x80\1\0\0\x7c"s, 0x90), true},
      {"the first of several records", hello("\x16\3\1\0\x80\1\0\x3f\xfc"s, 0x7c), true},
      {"the largest", hello("\x16\3\1\x40\0\1\0\x3f\xfc"s, 0x3ffc), true},
      {"a larger message", "\x16\3\1\x40\0\1\0\x3f\xfd"s, std::nullopt},
      {"the largest that OpenSSL takes", "\x16\3\1\x40\0\1\1\xff\xff"s, std::nullopt},
      {"a larger record", "\x16\3\1\x40\1"s, std::nullopt},
      {"an empty record", "\x16\3\1\0\0"s, std::nullopt},
      {"another message", "\x16\3\1\0\x80\2\0\0\x7c"s, std::nullopt},
      {"another version", "\x16\2\1\0\x80"s, std::nullopt},
  };
  for (const Case& each : cases) {
    const std::string name = each.name;
    CAPTURE(name);
    if (each.is_whole) {
      CHECK(secure::has_client_hello(each.bytes) == *each.is_whole);
    } else {
      CHECK(contains(error_text([&] { secure::has_client_hello(each.bytes); }), "of a TLS client"));
    }
  }
}

TEST_CASE("TLS: a server without it, and bytes that are not TLS") {
  const auto security = ClientSecurity::make(Tokens({kToken}), {});
  const auto answered = [&](std::string_view bytes) {
    SecureLink link(security, "host", kAgent);
    std::string out;
    link.start(out);
    std::string plain;
    return error_text([&] { link.receive(bytes, plain, out); });
  };
  CHECK(contains(answered(secure::kTlsRefusal), "the server does not use TLS"));
  CHECK(contains(answered("HTTP/1.1 400 Bad Request\r\n\r\n"), "the server does not use TLS"));
}

}  // namespace
}  // namespace acc::rendezvous
