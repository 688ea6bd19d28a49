#pragma once

#include "acc/base/unique_fd.hpp"
#include "gate.hpp"
#include "output/line_assembler.hpp"
#include "output/output_sink.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::launcher {

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

  /// Write ends for a new worker's stdout and stderr; close them once it has started.
  struct WorkerEnds {
    UniqueFd out;
    UniqueFd err;
  };
  WorkerEnds add_worker(int rank);

  /// Takes what the workers have written until now, unfinished lines included. Does not wait for a
  /// pipe that some stranger still holds open. To be called once, after the workers have ended.
  boost::asio::awaitable<void> drain();

  /// Completes when everything has gone out.
  boost::asio::awaitable<void> flushed();

  /// The last lines that `rank` wrote to stderr, oldest first.
  [[nodiscard]] std::vector<std::string> last_stderr_lines(int rank) const;

  /// Lines of the launcher's own, kept apart from the workers' lines.
  void write_stderr(std::string_view text) { err_->write(text); }

 private:
  struct Stream;

  boost::asio::awaitable<void> pump(Stream& stream);
  UniqueFd add_stream(int rank, bool is_stderr);

  boost::asio::any_io_executor executor_;
  bool prefix_;
  std::shared_ptr<OutputSink> out_;
  std::shared_ptr<OutputSink> err_;  ///< the same as out_ where both are one file
  std::vector<std::unique_ptr<Stream>> streams_;
  std::size_t open_streams_ = 0;
  bool draining_ = false;
  Gate all_ended_;
};

}  // namespace acc::launcher
