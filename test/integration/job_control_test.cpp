// SPDX-License-Identifier: Apache-2.0
// acclaunch in an interactive shell on a terminal. Each case runs a program first without acclaunch
// and then with it, and expects the same output.
#include "support/temporary_folder.hpp"
#include "support/terminal_session.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <map>

using namespace acc::test;

namespace {

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlZ = "\x1a";

/// Rank 0 reads the terminal, or the input that another process sends; other ranks wait for its
/// end.
constexpr const char* kPrograms = R"(
[ "${RANK:-0}" = 0 ] || exec sleep 1000
echo begun
case $1 in
  talks) while read line; do echo "got $line"; [ "$line" != end ] || exit 7; done; exit 9 ;;
  waits) read line < "$2/in"; echo "ran $line" | tee "$2/out"; exit 7 ;;
esac
)";

/// One line of input, and the output that must follow.
struct Step {
  std::string keys;
  std::string awaited;
};

/// Words that start with % are replaced: %talks and %waits by the program, %in and %out by the
/// FIFOs of %waits.
struct Case {
  std::string name;
  std::vector<Step> steps;
};

const std::string kPrompt = "READY> ";

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += by.size()) {
    text.replace(at, word.size(), by);
  }
  return text;
}

/// An interactive bash without echo.
class Shell {
 public:
  explicit Shell(const std::string& launcher)
      : session_({"bash", "--norc", "--noprofile", "--noediting", "-i"}), launcher_(launcher) {
    std::ofstream(folder_.path() / "program.sh") << kPrograms;
    for (const char* fifo : {"in", "out"}) {
      REQUIRE(::mkfifo((folder_.path() / fifo).c_str(), 0600) == 0);
    }
    run({"stty -echo -echoctl; PS1='" + kPrompt + "'; PS2=; echo st''arted\n", "started"});
    session_.wait_for(kPrompt);
  }

  void run(const Step& step) {
    const std::string folder = folder_.path().string();
    const std::string program = launcher_ + "/bin/sh " + folder + "/program.sh ";
    std::string keys = replaced(step.keys, "%talks", program + "talks");
    keys = replaced(keys, "%waits", program + "waits " + folder);
    keys = replaced(keys, "%file", folder + "/file");
    keys = replaced(replaced(keys, "%in", folder + "/in"), "%out", folder + "/out");
    session_.type(keys);
    session_.wait_for(step.awaited);
  }

  TerminalSession& session() { return session_; }
  [[nodiscard]] std::string folder() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
  TerminalSession session_;
  std::string launcher_;
};

const std::string kAcclaunch = ACC_BIN_DIR "/acclaunch --cpu --num_processes ";
const std::vector<std::string> kLaunchers = {"", kAcclaunch + "1 ", kAcclaunch + "2 "};

const std::vector<Case> kCases = {
    {"foreground",
     {{"%talks\n", "begun"},
      {"hello\n", "got hello"},
      {"end\n", kPrompt},
      {"echo status=$?\n", "status=7"}}},
    {"the input ends",
     {{"%talks\n", "begun"}, {"\x04", kPrompt}, {"echo status=$?\n", "status=9"}}},
    {"background: a program that reads stops, and goes on in the foreground, and stops",
     {{"set -b; %talks &\n", "Stopped"},
      {"echo al''ive\n", "alive"},
      {"jobs -l\n", "Stopped (tty input)"},
      {"fg\n", "talks"},
      {"hello\n", "got hello"},
      {kCtrlZ, "Stopped"},
      {"fg\n", "talks"},
      {"end\n", kPrompt},
      {"echo status=$?\n", "status=7"}}},
    {"background: a program that does not read runs",
     {{"%waits & pid=$!\n", "begun"},
      {"echo al''ive\n", "alive"},
      {"echo now > %in; cat %out\n", "ran now"},
      {"wait $pid; echo status=$?\n", "status=7"}}},
    {"background: killed as a job",
     {{"%waits &\n", "begun"}, {"pid=$!; kill %1; wait $pid; echo status=$?\n", "status=143"}}},
    {"Ctrl-Z, then foreground, twice",
     {{"%talks\n", "begun"},
      {kCtrlZ, "Stopped"},
      {"echo status=$?\n", "status=148"},
      {"fg\n", "talks"},
      {"hello\n", "got hello"},
      {kCtrlZ, "Stopped"},
      {"fg\n", "talks"},
      {"end\n", kPrompt},
      {"echo status=$?\n", "status=7"}}},
    {"Ctrl-Z, then background",
     {{"%waits\n", "begun"},
      {kCtrlZ, "Stopped"},
      {"set -b; bg\n", kPrompt},
      {"echo now > %in; cat %out\n", "ran now"},
      {"", "Exit 7"}}},
    {"Ctrl-Z, then killed",
     {{"%talks\n", "begun"},
      {kCtrlZ, "Stopped"},
      {"pid=$(jobs -p %1); kill %1; tail --pid=$pid -s 0.05 -f /dev/null; echo go''ne\n", "gone"}}},
    {"Ctrl-C", {{"%talks\n", "begun"}, {kCtrlC, kPrompt}, {"echo status=$?\n", "status=130"}}},
    {"Ctrl-C ends a loop",
     {{"while :; do %talks; done; echo over\n", "begun"},
      {kCtrlC, kPrompt},
      {"echo status=$?\n", "status=130"}}},
    {"Ctrl-C ends a script",
     {{"bash -c 'while :; do %talks; done'\n", "begun"},
      {kCtrlC, kPrompt},
      {"echo status=$?\n", "status=130"}}},
    {"in a script, before another reader",
     {{"sh -c '%talks; read line; echo \"then $line\"'\n", "begun"},
      {"end\n", ""},
      {"more\n", "then more"}}},
    {"in the background of a script, which reads",
     {{"sh -c '%waits < /dev/null & read line; echo \"then $line\"; echo > %in; cat %out; wait'\n",
       "begun"},
      {"more\n", "then more"},
      {"", "ran"},
      {"", kPrompt}}},
    {"in a pipeline, before a program that reads the terminal",
     {{"%waits | sh -c 'read line; read line < /dev/tty; echo \"then $line\"; echo > %in; cat'"
       " & cat %out > /dev/null & fg %1\n",
       "waits"},
      {"more\n", "then more"},
      {"", "ran"},
      {"", kPrompt}}},
    {"in a pipeline, after another program",
     {{"echo end | %talks | cat\n", "got end"}, {"echo ${PIPESTATUS[1]}\n", "7"}}},
    {"in a pipeline, Ctrl-Z",
     {{"%talks | cat\n", "begun"},
      {kCtrlZ, "Stopped"},
      {"fg\n", "talks"},
      {"end\n", "got end"},
      {"", kPrompt}}},
    {"setsid",
     {{"setsid -w %waits & pid=$!; cat %out & echo now > %in\n", "ran now"},
      {"wait $pid; echo status=$?\n", "status=7"}}},
};

}  // namespace

TEST_CASE("job control: a job under nohup outlives its terminal") {
  for (const std::string& launcher : kLaunchers) {
    CAPTURE(launcher);
    Shell shell(launcher);
    shell.run({"nohup %waits > %file 2>&1 &\n", kPrompt});
    shell.run({"tail -F %file | grep -m1 begun\n", "begun"});
    // Exchanges data with the program after the terminal has closed.
    Program friend_of_it(
        {"/bin/sh", "-c", "echo now > " + shell.folder() + "/in; cat " + shell.folder() + "/out"});
    shell.session().hang_up();
    CHECK(friend_of_it.wait() == 0);
    CHECK(friend_of_it.out() == "ran now\n");
  }
}

TEST_CASE("job control: an interrupted job dies of SIGINT, and a shell sees that status") {
  struct Row {
    std::string signal;
    int number;
    int wait_status;
    int compat_wait_status;  ///< that of `accelerate launch`
  };
  for (const Row& row :
       {Row{"INT", SIGINT, SIGINT, SIGINT}, Row{"TERM", SIGTERM, (128 + SIGTERM) << 8, 1 << 8}}) {
    for (const std::string front : {"--cpu", "--compat accelerate --cpu", "torchrun"}) {
      for (const std::string count : {"1", "2"}) {
        const std::string flag = front == "torchrun" ? " --nproc-per-node " : " --num_processes ";
        const std::string no_python = front == "torchrun" ? " --no-python " : " --no_python ";
        const bool is_compat = front.starts_with("--compat");
        CAPTURE(row.signal);
        CAPTURE(front + flag + count);
        TerminalSession session({"/bin/sh", "-c",
                                 "exec " ACC_BIN_DIR "/acclaunch " + front + flag + count +
                                     no_python + " /bin/sh -c 'echo begun; exec sleep 1000'"});
        session.wait_for("begun");
        session.signal(row.number);
        CHECK(session.wait() == (is_compat ? row.compat_wait_status : row.wait_status));
      }
    }
  }
}

TEST_CASE("job control: a failed job restores the terminal's mode") {
  const std::string job = kAcclaunch + "2 /bin/sh -c '[ $RANK = 1 ] || stty -echo; ";
  const std::string shows = "echo mode:$(stty -a | grep -o -- \"-*echo \")";
  TerminalSession failing({"/bin/sh", "-c", job + "kill -9 $$'; " + shows});
  failing.wait();
  CHECK(contains(failing.bytes(), "mode:echo"));
  TerminalSession changing({"/bin/sh", "-c", job + "true'; " + shows});
  changing.wait();
  CHECK(contains(changing.bytes(), "mode:-echo"));
}

TEST_CASE("job control: a debugger on rank 0 of several ranks") {
  TerminalSession session({ACC_BIN_DIR "/acclaunch", "torchrun", "--nproc-per-node", "2",
                           "--no-python", "python3", "-u", "-c",
                           "import os, pdb\n"
                           "value = int(os.environ['RANK']) + 40\n"
                           "if value == 40: pdb.set_trace()\n"
                           "print('value', value)"});
  session.wait_for("(Pdb)");
  session.type("value += 2\n");
  session.wait_for("(Pdb)");
  session.type("c\n");
  session.wait_for("value 42");
  CHECK(session.wait() == 0);
}

TEST_CASE("stdin: one rank reads the launcher's stdin, the others /dev/null") {
  struct Row {
    std::string flags;
    std::string lines;  ///< lines that all ranks have read, sorted
  };
  const std::vector<Row> rows = {
      {"--cpu --num_processes 1", "0:data "},
      {"--cpu --num_processes 1 --stdin none", "0: "},
      {"--cpu --num_processes 3", "0:data 1: 2: "},
      {"--cpu --num_processes 3 --stdin 2", "0: 1: 2:data "},
      {"--cpu --num_processes 3 --stdin none", "0: 1: 2: "},
      {"torchrun --nproc-per-node 2 --no-python", "0:data 1: "},
      {"torchrun --nproc-per-node 2 --stdin 1 --no-python", "0: 1:data "},
      {"deepspeed --num_gpus 2 --no_python --no_local_rank", "0:data 1: "},
  };
  for (const Row& row : rows) {
    CAPTURE(row.flags);
    Program job(
        {"/bin/sh", "-c",
         "echo data | " ACC_BIN_DIR "/acclaunch " + row.flags +
             " /bin/sh -c 'read line; echo rank \"${RANK:-0}:$line\"' | sed 's/.*rank //' | "
             "sort | tr '\\n' ' '"});
    job.wait();
    CHECK(job.out() == row.lines);
  }
}

TEST_CASE("stdin: an invalid rank is an error") {
  for (const auto& [value, expected] : std::map<std::string, std::string>{
           {"2", "--stdin must be below the number of processes, 2, got \"2\""},
           {"-1", "--stdin must be a rank, from 0, or none, got \"-1\""},
           {"", "--stdin must be a rank, from 0, or none, got \"\""},
           {"all", "--stdin must be a rank, from 0, or none, got \"all\""}}) {
    CAPTURE(value);
    Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "2", "--stdin=" + value,
                 "/bin/true"});
    CHECK(job.wait() == 2);
    CHECK(contains(job.err(), expected));
  }
}

TEST_CASE("job control: a program behaves as without acclaunch") {
  for (const Case& row : kCases) {
    for (const std::string& launcher : kLaunchers) {
      CAPTURE(row.name);
      CAPTURE(launcher);
      Shell shell(launcher);
      try {
        for (const Step& step : row.steps) {
          shell.run(step);
        }
      } catch (const std::exception& error) {
        FAIL_CHECK(std::string(error.what()));
      }
    }
  }
}
