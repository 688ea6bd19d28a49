#include "support.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::RawClient;
using test::ServerThread;
using test::validate;

/// acc-rendezvous as a child process; stdout and stderr in one pipe.
class Program {
 public:
  explicit Program(std::vector<std::string> flags) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    flags.insert(flags.begin(), ACC_BIN_DIR "/acc-rendezvous");
    std::vector<char*> argv;
    for (std::string& flag : flags) {
      argv.push_back(flag.data());
    }
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
    fclose(output_);
  }

  std::string line() {
    std::string text;
    for (int c = fgetc(output_); c != EOF && c != '\n'; c = fgetc(output_)) {
      text.push_back(static_cast<char>(c));
    }
    return text;
  }
  void signal(int number) const { kill(pid_, number); }
  /// The exit status, or 128 + the signal.
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  FILE* output_ = nullptr;
};

TEST_CASE("acc-rendezvous serves until a signal ends it") {
  for (const int number : {SIGTERM, SIGINT}) {
    Program program({"--host", "127.0.0.1", "--port", "0"});
    const std::string line = program.line();
    REQUIRE(contains(line, "listening on 127.0.0.1:"));
    RawClient client(static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1))));
    client.send(validate());
    CHECK(client.replies(0).empty());
    program.signal(number);
    CHECK(program.wait() == 0);
    CHECK(client.read_to_end().empty());
  }
}

TEST_CASE("acc-rendezvous refuses bad flags with status 2") {
  for (const auto& flags : std::vector<std::vector<std::string>>{
           {"--unknown"}, {"--port", "70000"}, {"--port", "-1"}, {"--port", "x"}, {"stray"}}) {
    CHECK(Program(flags).wait() == 2);
  }
}

TEST_CASE("acc-rendezvous names who holds its port") {
  ServerThread server;
  Program program({"--port", std::to_string(server.port())});
  CHECK(contains(program.line(), "rendezvous_test (pid " + std::to_string(getpid()) + ")"));
  CHECK(program.wait() == 1);
}

}  // namespace
}  // namespace acc::rendezvous
