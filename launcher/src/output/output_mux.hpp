#pragma once

#include "acc/base/unique_fd.hpp"
#include "gate.hpp"
#include "output/line_assembler.hpp"
#include "output/output_sink.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace acc::launcher {

/// Where one output stream of a worker goes; nowhere is possible too.
struct StreamTarget {
  std::string file;     ///< empty: none
  bool console = true;  ///< the launcher's own stream, with the rank before each line
};

struct WorkerTargets {
  StreamTarget out;
  StreamTarget err;
};

/// Brings the output of several workers onto the launcher's stdout and stderr, line by line. A
/// reader that is slow slows the workers down, and one that has gone is a closed pipe for them too,
/// as if they wrote to it themselves. The loop's thread only.
class OutputMux {
 public:
  struct Options {
    int out = 1;
    int err = 2;
    bool prefix = true;  ///< "[rank] " before each line; else bytes pass as they come
  };

  OutputMux(const boost::asio::any_io_executor& executor, const Options& options);
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
  WorkerEnds add_worker(int rank, const WorkerTargets& targets = {});

  /// Takes what the workers have written until now, unfinished lines included. Does not wait for a
  /// pipe that some stranger still holds open. To be called after all workers have ended; others
  /// may be added then.
  boost::asio::awaitable<void> drain();

  /// Completes when everything has gone out.
  boost::asio::awaitable<void> flushed();

  /// The last lines that `rank` wrote to stderr, oldest first; of its last attempt.
  [[nodiscard]] std::vector<std::string> last_stderr_lines(int rank) const;

  /// Lines of the launcher's own, kept apart from the workers' lines.
  void write_stderr(std::string_view text) { err_->write(text); }

 private:
  struct Stream;

  boost::asio::awaitable<void> pump(Stream& stream);
  UniqueFd add_stream(int rank, bool is_stderr, const StreamTarget& target);
  UniqueFd add_pipe(int rank, bool is_stderr, const StreamTarget& target);
  void write_file(Stream& stream, std::string_view bytes);

  boost::asio::any_io_executor executor_;
  bool prefix_;
  std::shared_ptr<OutputSink> out_;
  std::shared_ptr<OutputSink> err_;  ///< the same as out_ where both are one file
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<int, std::string> stderr_files_;  ///< by rank, where it is on no console
  std::size_t open_streams_ = 0;
  bool draining_ = false;
  Gate all_ended_;
};

}  // namespace acc::launcher
