#pragma once

#include "acc/base/unique_fd.hpp"
#include "output/line_folder.hpp"
#include "output/output_sink.hpp"
#include "output/status_clock.hpp"
#include "output/worker_targets.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <sys/types.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

class LogFile;

struct WorkerOutput {
  int rank = 0;
  std::string prefix = {};  ///< as it stands before each line; empty: bytes pass as they come
  WorkerTargets targets = {};
  bool prompts = false;  ///< it asks the user: a line that stays unfinished is shown as far as it is
  /// Lines go to the console whole, and as this makes them: it gets each with its end and returns
  /// what of it is to be shown. Empty: none such.
  std::function<std::string_view(std::string_view line)> edit = {};
};

/// One of the launcher's own streams cannot be written any more.
struct Lost {
  bool is_stderr = false;  ///< false too where both are one file
  int error = 0;           ///< EPIPE: its reader has gone
};

/// Brings the output of several workers onto the launcher's stdout and stderr, line by line. A
/// reader that is slow slows the workers down, and one that has gone is a closed pipe for them too,
/// as if they wrote to it themselves. A disk that is full, or gone, is named on the other stream,
/// and what does not fit is dropped. The loop's thread only.
class OutputMux {
 public:
  struct Options {
    int out = 1;
    int err = 2;
    bool folds_lines = false;    ///< what several ranks write alike is shown once
    bool status_line = false;    ///< below the output, where stderr is a terminal
    pid_t foreground_group = 0;  ///< no status line while the terminal is another group's; 0: any
    std::function<void(const Lost&)> on_lost = {};  ///< once a stream; called by the loop
  };

  OutputMux(const boost::asio::any_io_executor& executor, Options options);
  OutputMux(const OutputMux&) = delete;
  OutputMux& operator=(const OutputMux&) = delete;
  ~OutputMux();

  /// Descriptors for a new worker's stdout and stderr; close them once it has started. What goes to
  /// a file only is written by the worker itself. Throws Error(config) for a file that cannot be
  /// written.
  struct WorkerEnds {
    UniqueFd out;
    UniqueFd err;
  };
  WorkerEnds add_worker(const WorkerOutput& worker);

  /// Takes what the workers have written until now, unfinished lines included, and waits neither
  /// for a reader nor for a pipe that some stranger still holds open. To be called after all
  /// workers have ended; others may be added then.
  void drain();
  /// The same for one worker that has ended.
  void drain(int rank);

  /// Takes what `rank`, which has ended, has written until now; its streams stay open for what its
  /// children still write.
  void catch_up(int rank);

  /// Something waits for its reader.
  [[nodiscard]] bool is_blocked() const;

  /// Removes the status line and completes when everything has gone out. The end: readers are not
  /// watched any more.
  boost::asio::awaitable<void> flushed();

  /// The last lines that `rank` wrote to stderr, oldest first; of its last attempt.
  [[nodiscard]] std::vector<std::string> last_stderr_lines(int rank) const;

  /// Lines of the launcher's own, kept apart from the workers' lines.
  void write_stderr(std::string_view text);

  /// Shows the status line, with more than one worker, and keeps its clock going.
  void set_status(const JobStatus& status);
  /// Until the next second or `set_status`: before the launcher stops itself.
  void hide_status() { status_.hide(); }

 private:
  struct Console;
  struct Stream;

  std::array<std::unique_ptr<Console>, 2> open_consoles();
  boost::asio::awaitable<void> pump(std::shared_ptr<Stream> stream);
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
  const Stream* prompting_ = nullptr;  ///< whose unfinished line is the last on its console
  std::map<int, std::string> stderr_files_;                     ///< by rank, if on no console
  std::map<std::string, std::weak_ptr<LogFile>> shared_files_;  ///< by path
  /// Bytes of unfinished lines, of all streams.
  std::shared_ptr<std::size_t> held_ = std::make_shared<std::size_t>(0);
  std::string chunk_;     ///< what was just read; of all streams, since the loop is one thread
  std::string block_;     ///< the lines made of it
  std::string filtered_;  ///< those that a filter picked
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  ///< for what the loop still holds
};

}  // namespace acc::launcher
