// SPDX-License-Identifier: Apache-2.0
#include "output/output_mux.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/variables.hpp"
#include "output/last_lines.hpp"
#include "output/line_assembler.hpp"
#include "output/line_prefix.hpp"
#include "output/worker_targets.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace acc::launcher::output {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {

/// A line of a worker with `prompts` that stays unfinished for this time is shown as a prompt.
constexpr std::chrono::milliseconds kPromptPause{50};

constexpr std::size_t kChunk = std::size_t{64} << 10;  // default capacity of a pipe (pipe(7))

bool same_file(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

/// Wraps the prefix in an ANSI colour that depends on the rank.
std::string coloured(const std::string& prefix, int rank) {
  constexpr std::array<int, 6> kColours = {36, 33, 32, 35, 34, 31};
  const int colour = kColours[static_cast<std::size_t>(rank) % kColours.size()];
  return "\033[" + std::to_string(colour) + "m" + prefix + "\033[0m";
}

}  // namespace

/// One of the launcher's own streams, stdout or stderr.
struct OutputMux::Console {
  Console(const asio::any_io_executor& executor, bool of_stderr, std::shared_ptr<OutputSink> to)
      : is_stderr(of_stderr), sink(std::move(to)), fold_clock(executor) {}

  bool is_stderr;
  std::shared_ptr<OutputSink> sink;
  LineFolder folder;
  std::map<int, std::string> prefixes;  ///< by rank, for lines that only this rank has written
  asio::steady_timer fold_clock;        ///< expires when the folder's first line is due
  bool clock_runs = false;
};

/// One output stream of a worker that the mux reads. A coroutine (`pump`) shares its ownership, and
/// ends when the pipe is closed.
struct OutputMux::Stream {
  int rank;
  Console& console;
  asio::posix::stream_descriptor pipe;
  std::string prefix;                    ///< prefix on the console, with colour
  std::shared_ptr<LogFile> file;         ///< gets a copy of the bytes; may be null
  std::vector<std::string> words;        ///< words of the filter
  std::shared_ptr<LogFile> filter_file;  ///< gets the lines that contain one of the words
  std::string filter_prefix;
  LineAssembler lines;
  bool is_shown = true;   ///< goes to the console
  bool is_whole = false;  ///< output is split into lines: it has a prefix or is edited
  std::function<std::string_view(std::string_view)> edit = {};
  std::optional<asio::steady_timer> prompt_clock = {};  ///< set if the worker may prompt the user
  std::size_t prompted = 0;  ///< bytes of the unfinished line that are already on the console
  LastLines last = {};
  std::optional<Clock::time_point> first_read = {};

  /// True if some destination still accepts the bytes. Otherwise the pipe is closed, so that the
  /// worker gets SIGPIPE.
  [[nodiscard]] bool is_wanted() const {
    return (is_shown && !console.sink->is_closed()) || file != nullptr || filter_file != nullptr;
  }
};

OutputMux::OutputMux(const asio::any_io_executor& executor, Options options)
    : executor_(executor),
      options_(std::move(options)),
      consoles_(open_consoles()),
      status_(executor, consoles_[1]->sink, options_.foreground_group),
      chunk_(kChunk, '\0') {}

OutputMux::~OutputMux() {
  for (const auto& stream : streams_) {
    stream->pipe.close();
  }
  status_.end();
  for (const auto& console : consoles_) {
    console->sink->close();
  }
}

/// Opens stdout and stderr. They share one sink if they are the same file (2>&1), so that blocks of
/// both do not overtake each other.
std::array<std::unique_ptr<OutputMux::Console>, 2> OutputMux::open_consoles() {
  const auto opened = [this](int fd, bool is_stderr) {
    const auto on_error = [this, is_stderr](int error) { on_lost({is_stderr, error}); };
    auto sink = std::make_shared<OutputSink>(executor_, fd, on_error);
    sink->watch();
    return sink;
  };
  const auto out = opened(options_.out, false);
  const auto err = same_file(options_.out, options_.err) ? out : opened(options_.err, true);
  return {std::make_unique<Console>(executor_, false, out),
          std::make_unique<Console>(executor_, true, err)};
}

// A stream that goes to a file alone is read here too: a worker that wrote the file itself would
// fail when the disk is full. The streams of an ended attempt are kept until the worker starts
// again, so that the report can show its last lines.
OutputMux::WorkerEnds OutputMux::add_worker(const WorkerOutput& worker) {
  prompting_ = nullptr;
  std::erase_if(streams_, [&worker](const auto& stream) {  // streams of its earlier attempt
    return stream->rank == worker.rank && !stream->pipe.is_open();
  });
  return {add_stream(worker, *consoles_[0], worker.targets.out),
          add_stream(worker, *consoles_[1], worker.targets.err)};
}

UniqueFd OutputMux::add_stream(const WorkerOutput& worker, Console& console,
                               const StreamTarget& target) {
  if (!target.console && target.file.empty()) {
    return UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  }
  return add_pipe(worker, console, target);
}

UniqueFd OutputMux::add_pipe(const WorkerOutput& worker, Console& console,
                             const StreamTarget& target) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(Errc::process, std::string("cannot create a pipe for the output of rank ") +
                                   std::to_string(worker.rank) + ": " + std::strerror(errno));
  }
  UniqueFd write_end(ends[1]);
  const auto stream = std::make_shared<Stream>(Stream{
      worker.rank, console, asio::posix::stream_descriptor(executor_, ends[0]), worker.prefix,
      target.file.empty() ? nullptr : std::make_shared<LogFile>(target.file), target.filter.words,
      target.filter.words.empty() || !target.console ? nullptr : shared_file(target.filter.file),
      worker.prefix, LineAssembler(held_)});
  stream->pipe.non_blocking(true);
  if (!target.console) {
    stream->is_shown = false;
    streams_.push_back(stream);
    asio::co_spawn(executor_, pump(stream), asio::detached);
    return write_end;
  }
  stream->is_whole = !worker.prefix.empty() || worker.edit;
  stream->edit = worker.edit;
  if (worker.prompts && !worker.prefix.empty()) {
    stream->prompt_clock.emplace(executor_);
  }
  set_prefix(*stream, worker.prefix);
  streams_.push_back(stream);
  asio::co_spawn(executor_, pump(stream), asio::detached);
  return write_end;
}

/// Sets the prefix of lines on the console, for the rank of the stream.
void OutputMux::set_prefix(Stream& stream, const std::string& prefix) {
  if (prefix.empty()) {
    return;
  }
  Console& console = stream.console;
  const bool coloured_here = console.sink->is_terminal() && allows_colours();
  stream.prefix = coloured_here ? coloured(prefix, stream.rank) : prefix;
  if (options_.folds_lines) {
    console.folder.join(stream.rank);
    console.prefixes[stream.rank] = stream.prefix;
  }
}

void OutputMux::rename(int rank, int to, const std::string& prefix) {
  for (const auto& stream : streams_) {
    if (stream->rank != rank) {
      continue;
    }
    take_all(*stream);
    stream->console.folder.leave(rank);
    stream->rank = to;
    stream->filter_prefix = prefix;
    if (stream->is_shown && stream->pipe.is_open()) {
      set_prefix(*stream, prefix);
    }
  }
}

std::shared_ptr<LogFile> OutputMux::shared_file(const std::string& path) {
  std::shared_ptr<LogFile> file = shared_files_[path].lock();
  if (!file) {
    file = std::make_shared<LogFile>(path);
    shared_files_[path] = file;
  }
  return file;
}

/// Reads a stream until its pipe is closed: one chunk per iteration of the event loop, so that no
/// stream starves the others. After each co_await the pipe must be checked first, because the
/// mux closes it in its destructor and may not exist any more.
asio::awaitable<void> OutputMux::pump(std::shared_ptr<Stream> stream) {
  while (stream->pipe.is_open()) {
    if (stream->is_shown) {
      co_await stream->console.sink->room();
    }
    if (!stream->pipe.is_open()) {
      co_return;
    }
    co_await stream->pipe.async_wait(asio::posix::stream_descriptor::wait_read,
                                     asio::as_tuple(asio::use_awaitable));
    if (stream->pipe.is_open()) {
      take(*stream);
    }
  }
}

/// Reads one chunk. False if no more data is available at present, or if the stream has ended.
bool OutputMux::take(Stream& stream) {
  const ssize_t count = ::read(stream.pipe.native_handle(), chunk_.data(), chunk_.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return errno == EINTR;
  }
  if (count > 0) {
    if (!stream.first_read) {
      stream.first_read = Clock::now();
    }
    pass_on(stream, std::string_view(chunk_.data(), static_cast<std::size_t>(count)));
  }
  if (count <= 0 || !stream.is_wanted()) {
    end(stream);
    return false;
  }
  return static_cast<std::size_t>(count) == chunk_.size();
}

/// Passes bytes on to all destinations of a stream. Only a stream with a prefix, an editor or a
/// filter is split into lines; others are copied.
void OutputMux::pass_on(Stream& stream, std::string_view bytes) {
  if (stream.console.is_stderr) {
    stream.last.feed(bytes);
  }
  if (stream.file) {
    write_file(*stream.file, bytes);
  }
  if (stream.is_shown && !stream.is_whole) {
    show(*stream.console.sink, bytes);
  }
  if (stream.is_whole || stream.filter_file) {
    stream.lines.feed(bytes, [&](std::string_view line) { add_line(stream, line); });
    write_blocks(stream);
  }
  if (stream.prompt_clock) {
    await_prompt(stream);
  }
}

/// Restarts the timer that shows an unfinished line as a prompt.
void OutputMux::await_prompt(Stream& stream) {
  stream.prompt_clock->cancel();
  if (stream.lines.unfinished().size() > stream.prompted) {
    stream.prompt_clock->expires_after(kPromptPause);
    stream.prompt_clock->async_wait([this, &stream, lives = std::weak_ptr(lives_)](auto error) {
      if (!error && !lives.expired()) {
        show_prompt(stream);
      }
    });
  }
}

void OutputMux::show_prompt(Stream& stream) {
  if (stream.lines.unfinished().size() <= stream.prompted) {
    return;  // the line was completed after the timer had expired
  }
  if (prompting_ != &stream) {
    block_ = stream.prefix;
  }
  block_.append(stream.lines.unfinished().substr(stream.prompted));
  stream.prompted = stream.lines.unfinished().size();
  if (prompting_ == &stream) {
    prompting_ = nullptr;  // continues the line: `show` must not end it
  }
  show(*stream.console.sink, std::exchange(block_, {}));
  prompting_ = &stream;
}

/// Writes a block to the console. If the last line there is an unfinished prompt, ends it first.
void OutputMux::show(OutputSink& sink, std::string_view block) {
  if (prompting_ != nullptr && prompting_->console.sink.get() == &sink && !block.empty()) {
    prompting_ = nullptr;
    sink.write("\n");
  }
  sink.write(block);
}

/// Adds a complete line to the console's block or folder, and to the filter's block.
void OutputMux::add_line(Stream& stream, std::string_view line) {
  if (stream.edit) {
    line = stream.edit(line);
  }
  const bool is_bare = options_.shows_json_bare && is_json_diagnostic(line);
  if (stream.prompted != 0) {
    block_.append(prompting_ == &stream ? "" : stream.prefix).append(line.substr(stream.prompted));
    prompting_ = prompting_ == &stream ? nullptr : prompting_;
    stream.prompted = 0;
  } else if (options_.folds_lines && !stream.prefix.empty() && !is_bare) {
    stream.console.folder.add(stream.rank, line, Clock::now());
  } else if (stream.is_whole && !line.empty()) {
    block_.append(is_bare ? "" : stream.prefix).append(line);
  }
  if (stream.filter_file && std::ranges::any_of(stream.words, [line](const std::string& word) {
        return line.find(word) != std::string_view::npos;
      })) {
    filtered_.append(stream.filter_prefix).append(line);
  }
}

void OutputMux::write_blocks(Stream& stream) {
  show(*stream.console.sink, block_);
  block_.clear();
  if (!filtered_.empty()) {
    write_file(*stream.filter_file, filtered_);
    filtered_.clear();
  }
  if (options_.folds_lines) {
    write_folded(stream.console);
  }
}

/// Writes the folder's lines that are ready, and waits for the next one to become ready.
void OutputMux::write_folded(Console& console) {
  while (const auto line = console.folder.take(Clock::now())) {
    const int first = *line->ranks.begin();
    block_.append(line->ranks.size() == 1
                      ? console.prefixes[first]
                      : prefix_of_ranks({line->ranks.begin(), line->ranks.end()}));
    block_.append(line->text);
  }
  show(*console.sink, block_);
  block_.clear();
  if (const auto due = console.folder.due(); due && !std::exchange(console.clock_runs, true)) {
    console.fold_clock.expires_at(*due);
    console.fold_clock.async_wait([this, &console, lives = std::weak_ptr(lives_)](auto error) {
      if (!error && !lives.expired()) {
        console.clock_runs = false;
        write_folded(console);
      }
    });
  }
}

/// Ends a stream: completes its last line with "\n", and closes pipe and files.
void OutputMux::end(Stream& stream) {
  stream.prompt_clock.reset();
  if (stream.is_shown) {
    stream.lines.finish([&](std::string_view line) { add_line(stream, line); });
    stream.console.folder.leave(stream.rank);
    write_blocks(stream);
  }
  stream.pipe.close();
  stream.file.reset();
  stream.filter_file.reset();
}

void OutputMux::write_file(LogFile& file, std::string_view bytes) {
  if (const int error = file.write(bytes); error != 0) {
    write_stderr(notice_text(Component::launcher, LogLevel::err, "acclaunch: ",
                             "cannot write " + file.path() + ": " + std::strerror(error) +
                                 "; this file gets no further output"));
  }
}

// Called from within a sink's write. The handler is posted, since it may write or end the job.
void OutputMux::on_lost(const Lost& lost) {
  asio::post(executor_, [this, lost, lives = std::weak_ptr(lives_)] {
    if (lives.expired()) {
      return;
    }
    if (lost.error != EPIPE) {
      consoles_[lost.is_stderr ? 0 : 1]->sink->write(
          notice_text(Component::launcher, LogLevel::err, "acclaunch: ",
                      std::string("cannot write to ") + (lost.is_stderr ? "stderr: " : "stdout: ") +
                          std::strerror(lost.error) + "; its further output is dropped"));
    }
    if (options_.on_lost) {
      options_.on_lost(lost);
    }
  });
}

void OutputMux::drain() {
  for (const auto& stream : streams_) {
    drain(*stream);
  }
}

void OutputMux::drain(int rank) {
  for (const auto& stream : streams_) {
    if (stream->rank == rank) {
      drain(*stream);
    }
  }
}

void OutputMux::catch_up(int rank) {
  for (const auto& stream : streams_) {
    if (stream->rank == rank) {
      take_all(*stream);
    }
  }
}

/// Reads what is in the pipe. A process that outlives the worker may write continuously, so no more
/// than the capacity of the pipe is read.
void OutputMux::take_all(Stream& stream) {
  const int size = stream.pipe.is_open() ? ::fcntl(stream.pipe.native_handle(), F_GETPIPE_SZ) : 0;
  for (std::size_t taken = 0; taken < static_cast<std::size_t>(size); taken += chunk_.size()) {
    if (!take(stream)) {
      break;
    }
  }
}

void OutputMux::drain(Stream& stream) {
  take_all(stream);
  if (stream.pipe.is_open()) {
    end(stream);
  }
}

bool OutputMux::is_blocked() const {
  return std::ranges::any_of(consoles_,
                             [](const auto& console) { return console->sink->is_waiting(); });
}

asio::awaitable<void> OutputMux::flushed() {
  status_.end();
  for (const auto& console : consoles_) {
    co_await console->sink->flushed();
  }
  for (const auto& console : consoles_) {
    console->sink->stop_watching();
  }
}

void OutputMux::write_stderr(std::string_view text) {
  show(*consoles_[1]->sink, text);
}

std::vector<std::string> OutputMux::last_stderr_lines(int rank) const {
  for (const auto& stream : streams_) {
    if (stream->rank == rank && stream->console.is_stderr) {
      return stream->last.lines();
    }
  }
  return {};
}

std::optional<Clock::time_point> OutputMux::first_output(int rank) const {
  std::optional<Clock::time_point> first;
  for (const auto& stream : streams_) {
    if (stream->rank == rank && stream->first_read) {
      first = std::min(first.value_or(*stream->first_read), *stream->first_read);
    }
  }
  return first;
}

void OutputMux::set_status(const JobStatus& status) {
  if (options_.status_line && status.workers > 1) {
    status_.set(status);
  }
}

StatusClock::StatusClock(const boost::asio::any_io_executor& executor,
                         std::shared_ptr<OutputSink> sink, pid_t foreground_group)
    : sink_(std::move(sink)),
      foreground_group_(foreground_group),
      can_draw_(sink_->is_terminal() && has_cursor()),
      clock_(executor) {}

void StatusClock::set(const JobStatus& status) {
  if (can_draw_) {
    status_ = status;
    tick();
  }
}

void StatusClock::tick() {
  const auto now = std::chrono::steady_clock::now();
  sink_->show_status(status_text(*status_, now), foreground_group_);
  clock_.expires_at(now + std::chrono::seconds(1));  // cancels the wait of the previous tick
  // A handler that is already queued runs even if the timer is cancelled or destroyed.
  clock_.async_wait([this, lives = std::weak_ptr(lives_)](const boost::system::error_code& error) {
    if (!error && !lives.expired() && status_) {
      tick();
    }
  });
}

void StatusClock::hide() {
  if (status_) {
    sink_->show_status("", foreground_group_);
  }
}

void StatusClock::end() {
  hide();
  status_.reset();
  clock_.cancel();
}

}  // namespace acc::launcher::output
