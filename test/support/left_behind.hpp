// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <filesystem>
#include <string>

namespace acc::test {

/// Returns the folder of the job's control group, which is below one of the test's own groups, in
/// any mounted hierarchy. Returns an empty path if there is none.
std::filesystem::path control_group_of(pid_t launcher);

/// Removes a control group that its launcher could not remove, after its processes have ended.
void remove_control_group(const std::filesystem::path& group);

/// The surroundings of one job. Detects what the job leaves behind: processes, files, a control
/// group, a listening socket.
///
/// The test process adopts every orphan (PR_SET_CHILD_SUBREAPER), so that it sees each remaining
/// process of a job. Therefore a test program may run only one such job at a time.
class JobPlace {
 public:
  JobPlace();
  JobPlace(const JobPlace&) = delete;
  JobPlace& operator=(const JobPlace&) = delete;
  ~JobPlace();  ///< kills remaining processes, so that only the test of this job fails

  [[nodiscard]] std::string folder() const { return folder_.path().string(); }  ///< its TMPDIR
  [[nodiscard]] std::string port() const { return port_.text(); }  ///< its store's port

  /// Returns what remains when the launcher has ended, or "nothing".
  [[nodiscard]] std::string left(const Program& launcher) const;
  /// Waits until all processes have ended, also the supervisor of a killed launcher, and returns
  /// what remains then, or "nothing".
  [[nodiscard]] std::string left_at_last(const Program& launcher) const;

 private:
  TemporaryFolder folder_;
  ReservedPort port_;
};

}  // namespace acc::test
