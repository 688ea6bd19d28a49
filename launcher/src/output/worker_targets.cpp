// SPDX-License-Identifier: Apache-2.0
#include "output/worker_targets.hpp"

#include "acc/base/written_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <set>

namespace acc::launcher::output {
std::size_t descriptors_of(const std::vector<WorkerTargets>& workers) {
  std::size_t sum = 0;
  std::set<std::string> shared_files;
  for (const WorkerTargets& worker : workers) {
    for (const StreamTarget* target : {&worker.out, &worker.err}) {
      sum +=
          (target->console || !target->file.empty() ? 1U : 0U) + (target->file.empty() ? 0U : 1U);
      if (target->console && !target->filter.words.empty()) {
        shared_files.insert(target->filter.file);
      }
    }
  }
  return sum + shared_files.size();
}

UniqueFd open_log(const std::string& path) {
  // With O_APPEND each write goes to the end, even if several processes share the file.
  return open_file(path, O_WRONLY | O_APPEND);
}

int LogFile::write(std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      const int error = errno;
      file_.reset();
      return error;
    }
  }
  return 0;
}

}  // namespace acc::launcher::output
