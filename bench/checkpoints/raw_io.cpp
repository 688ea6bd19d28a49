// SPDX-License-Identifier: Apache-2.0
// Speed of the machine without any checkpoint format: each process writes its own file, overwrites
// it in place and reads it. Memory is small and stays in the CPU cache, except in two runs that
// write from and read into a large array, as saving and loading do. I/O goes through the page cache
// and, if the file system supports it, past it (O_DIRECT, in larger pieces).
//
//     raw_io DIR BYTES PROCESSES REPETITIONS
#include "checkpoints/team.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace {

constexpr std::size_t kCached = 1 << 20;
constexpr std::size_t kDirect = 8 << 20;

struct Job {
  std::string path;
  std::size_t nbytes = 0;
  char* buffer = nullptr;
};

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

template <typename Step>
void pass(const Job& job, int flags, std::size_t piece, const Step& step) {
  const int fd = ::open(job.path.c_str(), flags, 0666);
  if (fd < 0) {
    fail("open " + job.path);
  }
  for (std::size_t done = 0; done < job.nbytes; done += piece) {
    const std::size_t count = std::min(piece, job.nbytes - done);
    if (step(fd, job.buffer, count) != static_cast<ssize_t>(count)) {
      fail("move bytes of " + job.path);
    }
  }
  ::close(fd);
}

bool allows_direct(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_DIRECT);
  if (fd >= 0) {
    ::close(fd);
  }
  return fd >= 0;
}

void measure(const acc::bench::Team& team, int rank, const std::string& folder, std::size_t nbytes,
             int repetitions) {
  Job job{folder + "/raw_io." + std::to_string(rank),
          nbytes / static_cast<std::size_t>(team.size()) / kDirect * kDirect,
          static_cast<char*>(std::aligned_alloc(4096, kDirect))};
  std::memset(job.buffer, 1, kDirect);
  const auto write = [](int fd, const char* data, std::size_t count) {
    return ::write(fd, data, count);
  };
  const auto read = [](int fd, char* data, std::size_t count) { return ::read(fd, data, count); };
  const auto report = [&](const char* name, const std::function<void()>& before,
                          const std::function<void()>& work) {
    std::vector<double> seconds, cpu;
    for (int i = 0; i < repetitions; ++i) {
      before();
      const auto time = team.timed(work);
      seconds.push_back(time.wall);
      cpu.push_back(time.cpu);
    }
    if (rank == 0) {
      const double total = static_cast<double>(job.nbytes) * team.size();
      const double median = acc::bench::median(seconds);
      std::printf(
          "{\"impl\": \"machine\", \"what\": \"%s\", \"bytes\": %.0f, \"seconds\": %.4f, "
          "\"cpu_s\": %.4f, \"gb_per_s\": %.3f}\n",
          name, total, median, acc::bench::median(cpu), total / median / 1e9);
    }
  };
  const auto nothing = [] {};
  const auto remove = [&] { ::unlink(job.path.c_str()); };
  report("write", remove, [&] { pass(job, O_WRONLY | O_CREAT, kCached, write); });
  report("rewrite", nothing, [&] { pass(job, O_WRONLY, kCached, write); });
  report("read", nothing, [&] { pass(job, O_RDONLY, kCached, read); });
  {  // as in a checkpoint: with memory that is not in the CPU cache
    std::vector<char> memory(job.nbytes, 1);
    std::size_t done = 0;
    const auto next = [&](std::size_t count) {
      done += count;
      return memory.data() + done - count;
    };
    report("write from memory", remove, [&] {
      done = 0;
      pass(job, O_WRONLY | O_CREAT, kCached,
           [&](int fd, const char*, std::size_t count) { return ::write(fd, next(count), count); });
    });
    report("read to memory", nothing, [&] {
      done = 0;
      pass(job, O_RDONLY, kCached,
           [&](int fd, char*, std::size_t count) { return ::read(fd, next(count), count); });
    });
  }
  report("write and fsync", remove, [&] {
    pass(job, O_WRONLY | O_CREAT, kCached, write);
    const int fd = ::open(job.path.c_str(), O_RDONLY);
    ::fsync(fd);
    ::close(fd);
  });
  if (allows_direct(job.path)) {
    report("direct write", remove,
           [&] { pass(job, O_WRONLY | O_CREAT | O_DIRECT, kDirect, write); });
    report("direct read", nothing, [&] { pass(job, O_RDONLY | O_DIRECT, kDirect, read); });
  }
  remove();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: raw_io DIR BYTES PROCESSES REPETITIONS\n");
    return 2;
  }
  const acc::bench::Team team(std::atoi(argv[3]));
  return team.run([&](int rank) {
    measure(team, rank, argv[1], std::strtoull(argv[2], nullptr, 10), std::atoi(argv[4]));
  })
             ? 0
             : 1;
}
