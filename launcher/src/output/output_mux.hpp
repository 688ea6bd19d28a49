// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "output/line_folder.hpp"
#include "output/output_sink.hpp"
#include "output/status_line.hpp"
#include "output/worker_targets.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::output {

/// Updates the status line of a terminal once per second while a status is set. Use it in the event
/// loop's thread only.
class StatusClock {
 public:
  /// Shows nothing if `sink` is not a terminal, or if TERM is "dumb", or while a process group
  /// other than `foreground_group` has the terminal (0: any group may have it).
  StatusClock(const boost::asio::any_io_executor& executor, std::shared_ptr<OutputSink> sink,
              pid_t foreground_group);

  void set(const JobStatus& status);
  /// Hides the line until the next second or `set`.
  void hide();
  /// Removes the line and stops the timer.
  void end();

 private:
  void tick();

  std::shared_ptr<OutputSink> sink_;
  pid_t foreground_group_;
  bool can_draw_;
  std::optional<JobStatus> status_;
  boost::asio::steady_timer clock_;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  ///< lets handlers detect the end
};

class LogFile;

/// Parameters for the output of one worker.
struct WorkerOutput {
  int rank = 0;
  std::string prefix = {};  ///< prefix of each line; empty: bytes are copied without splitting
  WorkerTargets targets = {};
  bool prompts = false;  ///< the worker may prompt the user: shows lines that stay unfinished
  /// Edits the lines for the console: gets each complete line with its end, and returns the part to
  /// show. Empty: lines are shown unchanged.
  std::function<std::string_view(std::string_view line)> edit = {};
};

/// Reports that one of the launcher's own streams cannot be written any more.
struct Lost {
  bool is_stderr = false;  ///< false also if stdout and stderr are the same file
  int error = 0;           ///< errno value; EPIPE if the reader has gone
};

/// Merges the output of several workers into the launcher's stdout and stderr, line by line. A slow
/// reader slows the workers down. If the reader has gone, the workers get SIGPIPE, as if they wrote
/// to it directly. If the disk is full, a message is written to the other stream, and further
/// output is dropped. Use it in the event loop's thread only.
class OutputMux {
 public:
  struct Options {
    int out = 1;
    int err = 2;
    bool folds_lines = false;      ///< merges equal lines of several ranks
    bool status_line = false;      ///< shows a status line below the output if stderr is a terminal
    bool shows_json_bare = false;  ///< no prefix before JSON diagnostics, which name their rank
    pid_t foreground_group = 0;    ///< hides the status line while another group has the terminal
    std::function<void(const Lost&)> on_lost = {};  ///< called by the loop, at most once per stream
  };

  OutputMux(const boost::asio::any_io_executor& executor, Options options);
  OutputMux(const OutputMux&) = delete;
  OutputMux& operator=(const OutputMux&) = delete;
  ~OutputMux();

  /// Descriptors to pass to a new worker as stdout and stderr. Close them once it has started. A
  /// stream that goes only to a file is written by the worker directly.
  struct WorkerEnds {
    UniqueFd out;
    UniqueFd err;
  };
  /// Adds a worker before its start. Throws Error(config) if a file cannot be opened for writing,
  /// and Error(process) if a pipe cannot be created.
  WorkerEnds add_worker(const WorkerOutput& worker);

  /// Gives a worker another rank and prefix, which its next lines have.
  void rename(int rank, int to, const std::string& prefix);

  /// Reads what the workers have written until now, including unfinished lines, and closes their
  /// pipes. Does not wait for the reader of the console, nor for processes that still hold a pipe
  /// open. Call it after all workers have ended; new workers may be added afterwards.
  void drain();
  /// Does the same for one worker that has ended.
  void drain(int rank);

  /// Reads what worker `rank`, which has ended, has written until now. Its streams stay open for
  /// its children.
  void catch_up(int rank);

  /// True if some output is waiting for a slow reader.
  [[nodiscard]] bool is_blocked() const;

  /// Removes the status line, and completes when all output is written. Also stops watching the
  /// readers, so that the event loop can end.
  boost::asio::awaitable<void> flushed();

  /// Returns the last lines that `rank` wrote to stderr in its last attempt, oldest first.
  [[nodiscard]] std::vector<std::string> last_stderr_lines(int rank) const;

  /// Returns the time at which `rank` wrote its first bytes in its last attempt; nothing if it has
  /// written none, or only to files.
  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> first_output(int rank) const;

  /// Writes lines of the launcher itself. They are not mixed into a worker's unfinished line.
  void write_stderr(std::string_view text);

  /// Shows the status line, if there is more than one worker, and updates it every second.
  void set_status(const JobStatus& status);
  /// Hides the status line until the next second or `set_status`. Used before the launcher stops
  /// itself (Ctrl-Z).
  void hide_status() { status_.hide(); }

 private:
  struct Console;
  struct Stream;

  std::array<std::unique_ptr<Console>, 2> open_consoles();
  boost::asio::awaitable<void> pump(std::shared_ptr<Stream> stream);
  void set_prefix(Stream& stream, const std::string& prefix);
  UniqueFd add_stream(const WorkerOutput& worker, Console& console, const StreamTarget& target);
  UniqueFd add_pipe(const WorkerOutput& worker, Console& console, const StreamTarget& target);
  std::shared_ptr<LogFile> shared_file(const std::string& path);
  bool take(Stream& stream);
  void take_all(Stream& stream);
  void drain(Stream& stream);
  void pass_on(Stream& stream, std::string_view bytes);
  void add_line(Stream& stream, std::string_view line);
  void end(Stream& stream);
  void await_prompt(Stream& stream);
  void show_prompt(Stream& stream);
  void show(OutputSink& sink, std::string_view block);
  void write_blocks(Stream& stream);
  void write_folded(Console& console);
  void write_file(LogFile& file, std::string_view bytes);
  void on_lost(const Lost& lost);

  boost::asio::any_io_executor executor_;
  Options options_;
  std::array<std::unique_ptr<Console>, 2> consoles_;  ///< stdout, stderr
  StatusClock status_;
  std::vector<std::shared_ptr<Stream>> streams_;
  const Stream* prompting_ = nullptr;  ///< stream whose prompt is the last line on its console
  std::map<std::string, std::weak_ptr<LogFile>> shared_files_;  ///< by path
  /// Number of bytes in unfinished lines of all streams; see LineAssembler.
  std::shared_ptr<std::size_t> held_ = std::make_shared<std::size_t>(0);
  std::string chunk_;     ///< read buffer, shared by all streams since they use one thread
  std::string block_;     ///< lines for the console, built from `chunk_`
  std::string filtered_;  ///< lines that matched a filter
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  ///< expires with this object; lets
                                                                ///< queued handlers detect that
};

}  // namespace acc::launcher::output
