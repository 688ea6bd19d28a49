// SPDX-License-Identifier: Apache-2.0
#include "daemon.hpp"
#include "support/text.hpp"

namespace acc::rendezvous {
namespace {

using test::contains;
using test::Outcome;
using test::run_daemon;
using test::Variables;

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) { std::ofstream(path()) << text; }
  [[nodiscard]] std::string path() const { return (folder_.path() / "c.yaml").string(); }

 private:
  acc::test::TemporaryFolder folder_;
};

/// Returns the line of --print_config for a key.
std::string shown(const std::string& key, std::vector<std::string> flags,
                  const Variables& variables = {}) {
  flags.emplace_back("--print_config");
  const Outcome outcome = run_daemon(std::move(flags), variables);
  CHECK_MESSAGE(outcome.status == 0, outcome.err);
  const auto begin = outcome.out.find(key + ":");
  REQUIRE(begin != std::string::npos);
  std::string line = outcome.out.substr(begin, outcome.out.find('\n', begin) - begin);
  const auto blanks = line.find("  ");
  return line.substr(0, blanks) + " " + line.substr(line.find('#'));
}

std::string without_comments(const std::string& text) {
  std::string values;
  bool in_comment = false;
  for (const char c : text) {
    in_comment = c == '#' || (in_comment && c != '\n');
    values += in_comment ? "" : std::string(1, c);
  }
  return values;
}

TEST_CASE("precedence of settings: flag, variable, file, default") {
  const ConfigFile file("port: 1\nmax_keys: 5\n");
  const Variables variable = {{"ACC_RENDEZVOUS_PORT", "2"}};
  CHECK(shown("port", {}) == "port: 29500 # default");
  CHECK(shown("port", {"-c", file.path()}) == "port: 1 # " + file.path() + ":1");
  CHECK(shown("max_keys", {"-c", file.path()}) == "max_keys: 5 # " + file.path() + ":2");
  CHECK(shown("port", {"-c", file.path()}, variable) ==
        "port: 2 # environment ACC_RENDEZVOUS_PORT");
  CHECK(shown("port", {"-c", file.path(), "--port", "3"}, variable) == "port: 3 # --port");
  CHECK(shown("port", {}, {{"ACC_RENDEZVOUS_CONFIG_FILE", file.path()}}) ==
        "port: 1 # " + file.path() + ":1");
  CHECK(shown("port", {}, {{"ACC_RENDEZVOUS_PORT", ""}}) == "port: 29500 # default");
}

TEST_CASE("flags may be spelled with - or _, and values follow = or a blank") {
  for (const auto& flags :
       std::vector<std::vector<std::string>>{{"--max-bytes", "64MiB"},
                                             {"--max_bytes", "64MiB"},
                                             {"--max-bytes=64MiB"},
                                             {"--max_bytes", "1GiB", "--max_bytes=64MiB"}}) {
    CHECK(contains(shown("max_bytes", flags), "max_bytes: 64MiB # --max"));
  }
}

TEST_CASE("hosts may be given as a list, a text or several flags") {
  const ConfigFile list("host: [127.0.0.1, \"[::1]\"]\n");
  CHECK(contains(shown("host", {"-c", list.path()}), "host: 127.0.0.1,[::1] #"));
  const ConfigFile all("host: \"*\"\n");
  CHECK(contains(shown("host", {"-c", all.path()}), "host: \"*\" #"));
  CHECK(contains(shown("host", {"--host", "a", "--host", "b,c"}), "host: a,b,c # --host"));
}

TEST_CASE("--print_config prints an equivalent settings file") {
  const Outcome first =
      run_daemon({"--host", "*", "--port=7", "--idle_timeout", "90s", "--log_level", "debug",
                  "--port_file", "a b", "--print_config"});
  const ConfigFile file(first.out);
  const Outcome second = run_daemon({"-c", file.path(), "--print-config"});
  CHECK_MESSAGE(second.status == 0, second.err);
  CHECK(without_comments(first.out) == without_comments(second.out));
}

TEST_CASE("bad input ends with status 2, and the error has its place and the expected values") {
  struct Case {
    std::string yaml;
    std::vector<std::string> flags;
    Variables variables;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"", {"--prot", "1"}, {}, "unknown flag --prot; did you mean --port?"},
      {"", {"stray"}, {}, "unexpected word \"stray\""},
      {"", {"--port"}, {}, "--port needs a value: an integer 0..65535"},
      {"", {"--port="}, {}, "--port needs a value"},
      {"", {"--print_config=1"}, {}, "--print_config takes no value, got \"1\""},
      {"", {"--port", "70000"}, {}, "--port must be an integer 0..65535, got \"70000\""},
      {"", {"--port", "-1"}, {}, "--port must be an integer 0..65535, got \"-1\""},
      {"", {"--port", "x"}, {}, "--port must be an integer 0..65535, got \"x\""},
      {"", {"--max-keys", "0"}, {}, "--max-keys must be an integer of at least 1, got \"0\""},
      {"", {"--max_bytes", "64MB"}, {}, "--max_bytes must be a size (such as 64MiB)"},
      {"", {"--max_frame_bytes", "1"}, {}, "--max_frame_bytes must be a size"},
      {"", {"--idle_timeout", "5"}, {}, "--idle_timeout must be a time (such as 500ms or 2h)"},
      {"", {"--stop_timeout", "2h"}, {}, "0..1h, got \"2h\""},
      {"", {"--log_level", "inof"}, {}, "got \"inof\"; did you mean \"info\"?"},
      {"", {"--host", "0.0.0.0:29500"}, {}, "use `port` for the port"},
      {"", {"--host", "*,127.0.0.1"}, {}, "\"*\" is every interface already"},
      {"", {"--host", "unix:"}, {}, "expected a path of 1..107 bytes after unix:"},
      {"", {"--host", ","}, {}, "host must name at least one"},
      {"",
       {},
       {{"ACC_RENDEZVOUS_PORT", "tcp://10.0.0.1:1"}},
       "ACC_RENDEZVOUS_PORT must be an integer 0..65535, got \"tcp://10.0.0.1:1\""},
      {"", {"-c", "/nowhere/c.yaml"}, {}, "cannot read /nowhere/c.yaml: No such file"},
      {"port: 1\nprot: 2\n", {}, {}, "c.yaml:2: unknown key \"prot\"; did you mean \"port\"?"},
      {"port: 1\nport: 2\n", {}, {}, "c.yaml:2: key \"port\" is given twice"},
      {"port: x\n", {}, {}, "c.yaml:1: port must be an integer 0..65535, got \"x\""},
      {"port: [1]\n", {}, {}, "c.yaml:1: port must be an integer 0..65535, got a list"},
      {"host: {a: b}\n", {}, {}, "c.yaml:1: host must be names joined by commas, got a block"},
      {"host: [[a]]\n", {}, {}, "host must be a list of words"},
      {"config_file: x\n", {}, {}, "c.yaml:1: config_file is not allowed in a file"},
      {"port: {\n", {}, {}, "not valid YAML"},
      {"- port\n", {}, {}, "c.yaml:1: expected lines of \"key: value\""},
  };
  for (const Case& each : cases) {
    const ConfigFile file(each.yaml);
    std::vector<std::string> flags = each.flags;
    if (!each.yaml.empty()) {
      flags.insert(flags.end(), {"-c", file.path()});
    }
    const Outcome outcome = run_daemon(flags, each.variables);
    CAPTURE(each.message);
    CHECK(outcome.status == 2);
    CHECK_MESSAGE(contains(outcome.err, each.message), outcome.err);
    CHECK(outcome.out.empty());
  }
}

TEST_CASE("all errors are reported at once") {
  const ConfigFile file("prot: 1\nmax_keys: none\n");
  const Outcome outcome = run_daemon({"--colour", "red", "-c", file.path(), "--port", "x"},
                                     {{"ACC_RENDEZVOUS_STOP_TIMEOUT", "soon"}});
  CHECK(outcome.status == 2);
  for (const std::string part : {"--colour", "prot", "max_keys", "--port", "STOP_TIMEOUT"}) {
    CHECK_MESSAGE(contains(outcome.err, part), outcome.err);
  }
  CHECK_FALSE(contains(outcome.err, "red\";"));
}

TEST_CASE("a variable that is not a setting causes a warning") {
  test::Daemon daemon({"--port", "0"}, {{"ACC_RENDEZVOUS_SERVICE_HOST", "10.0.0.1"}});
  daemon.port();
  daemon.wait_for_text("ACC_RENDEZVOUS_SERVICE_HOST is not a setting");
}

TEST_CASE("--help and docs/rendezvous.md contain every setting") {
  const std::string document = acc::test::file_text(ACC_SOURCE_DIR "/docs/rendezvous.md");
  const std::string table = run_daemon({"--print_settings_table"}).out;
  CHECK(contains(table, "| `port` |"));
  CHECK_MESSAGE(contains(document, table), "docs/rendezvous.md must contain:\n", table);
  const std::string help = run_daemon({"--help"}).out;
  const std::string config = run_daemon({"--print_config"}).out;
  for (std::size_t at = 0; at < config.size(); at = config.find('\n', at) + 1) {
    const std::string key = config.substr(at, config.find(':', at) - at);
    CHECK(contains(help, "--" + key + (key == "insecure" ? "" : " VALUE")));  // a flag alone
  }
  CHECK(run_daemon({"--version"}).out.starts_with("acc-rendezvous "));
}

TEST_CASE("the example file contains every setting with its default") {
  const std::string path = ACC_SOURCE_DIR "/rendezvous/service/rendezvous.yaml";
  const Outcome example = run_daemon({"-c", path, "--print_config"});
  CHECK_MESSAGE(example.status == 0, example.err);
  CHECK(without_comments(example.out) == without_comments(run_daemon({"--print_config"}).out));
}

}  // namespace
}  // namespace acc::rendezvous
