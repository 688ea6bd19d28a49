#include "output/output_mux.hpp"

#include "acc/base/error.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace acc::launcher {
namespace asio = boost::asio;

namespace {

constexpr std::size_t kChunk = std::size_t{64} << 10;  // what a pipe holds by default

bool same_file(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

std::string prefix_of(int rank, bool coloured) {
  const std::string plain = "[" + std::to_string(rank) + "] ";
  constexpr std::array<int, 6> kColours = {36, 33, 32, 35, 34, 31};
  if (!coloured) {
    return plain;
  }
  const int colour = kColours[static_cast<std::size_t>(rank) % kColours.size()];
  return "\033[" + std::to_string(colour) + "m" + plain + "\033[0m";
}

/// The end of a file that a worker wrote by itself.
LastLines last_lines_of(const std::string& path) {
  constexpr std::streamoff kEnough = std::streamoff{64} << 10;
  LastLines last;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kEnough));
  last.feed(std::string(std::istreambuf_iterator<char>(file), {}));
  return last;
}

UniqueFd open_for_writing(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file) {
    throw Error(Errc::config, "cannot write " + path + ": " + std::strerror(errno));
  }
  return file;
}

}  // namespace

struct OutputMux::Stream {
  int rank;
  bool is_stderr;
  OutputSink& sink;
  asio::posix::stream_descriptor pipe;
  LineAssembler lines;
  std::string path;  ///< of `file`
  UniqueFd file;     ///< gets a copy, if there is one
  LastLines last = {};
};

OutputMux::OutputMux(const asio::any_io_executor& executor, const Options& options)
    : executor_(executor),
      prefix_(options.prefix),
      out_(std::make_shared<OutputSink>(executor, options.out)),
      err_(same_file(options.out, options.err)
               ? out_
               : std::make_shared<OutputSink>(executor, options.err)),
      all_ended_(executor) {}

OutputMux::~OutputMux() = default;

OutputMux::WorkerEnds OutputMux::add_worker(int rank, const WorkerTargets& targets) {
  std::erase_if(streams_, [rank](const auto& stream) {  // of its earlier attempt
    return stream->rank == rank && !stream->pipe.is_open();
  });
  stderr_files_.erase(rank);
  return {add_stream(rank, false, targets.out), add_stream(rank, true, targets.err)};
}

UniqueFd OutputMux::add_stream(int rank, bool is_stderr, const StreamTarget& target) {
  if (target.console) {
    return add_pipe(rank, is_stderr, target);
  }
  if (target.file.empty()) {
    return UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  }
  if (is_stderr) {
    stderr_files_[rank] = target.file;
  }
  return open_for_writing(target.file);
}

UniqueFd OutputMux::add_pipe(int rank, bool is_stderr, const StreamTarget& target) {
  UniqueFd file = target.file.empty() ? UniqueFd() : open_for_writing(target.file);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(Errc::process, std::string("cannot make a pipe for the output of rank ") +
                                   std::to_string(rank) + ": " + std::strerror(errno));
  }
  OutputSink& sink = is_stderr ? *err_ : *out_;
  const bool coloured = sink.is_terminal() && std::getenv("NO_COLOR") == nullptr;
  streams_.push_back(std::make_unique<Stream>(Stream{
      rank, is_stderr, sink, asio::posix::stream_descriptor(executor_, ends[0]),
      LineAssembler(prefix_ ? prefix_of(rank, coloured) : ""), target.file, std::move(file)}));
  ++open_streams_;
  asio::co_spawn(executor_, pump(*streams_.back()), asio::detached);
  return UniqueFd(ends[1]);
}

asio::awaitable<void> OutputMux::pump(Stream& stream) {
  std::string chunk(kChunk, '\0');
  std::string block;
  stream.pipe.non_blocking(true);
  while (!stream.sink.is_closed()) {
    co_await stream.sink.room();
    if (!draining_) {  // a turn of the loop for each chunk, so that no stream keeps the others off
      co_await stream.pipe.async_wait(asio::posix::stream_descriptor::wait_read,
                                      asio::as_tuple(asio::use_awaitable));
    }
    boost::system::error_code error;
    const std::size_t count = stream.pipe.read_some(asio::buffer(chunk), error);
    if (error == asio::error::would_block && !draining_) {
      continue;
    }
    if (error) {
      break;  // end of file; or nothing more while draining
    }
    const std::string_view bytes(chunk.data(), count);
    if (stream.is_stderr) {
      stream.last.feed(bytes);
    }
    if (stream.file) {
      write_file(stream, bytes);
    }
    block.clear();
    stream.lines.feed(bytes, block);
    stream.sink.write(block);
  }
  block.clear();
  stream.lines.finish(block);
  stream.sink.write(block);
  stream.pipe.close();
  if (--open_streams_ == 0 && draining_) {
    all_ended_.open();
  }
}

void OutputMux::write_file(Stream& stream, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(stream.file.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      write_stderr("acclaunch: cannot write " + stream.path + ": " + std::strerror(errno) +
                   "; it ends here\n");
      stream.file.reset();
      return;
    }
  }
}

asio::awaitable<void> OutputMux::drain() {
  draining_ = true;
  all_ended_.close();
  for (const auto& stream : streams_) {
    if (stream->pipe.is_open()) {
      stream->pipe.cancel();
    }
  }
  if (open_streams_ != 0) {
    co_await all_ended_.passed();
  }
  draining_ = false;
}

asio::awaitable<void> OutputMux::flushed() {
  co_await out_->flushed();
  co_await err_->flushed();
}

std::vector<std::string> OutputMux::last_stderr_lines(int rank) const {
  if (const auto file = stderr_files_.find(rank); file != stderr_files_.end()) {
    return last_lines_of(file->second).lines();
  }
  for (const auto& stream : streams_) {
    if (stream->rank == rank && stream->is_stderr) {
      return stream->last.lines();
    }
  }
  return {};
}

}  // namespace acc::launcher
