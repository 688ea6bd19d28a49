#pragma once

#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <filesystem>
#include <string>

namespace acc::test {

/// Where the job's control group is, below one of the test's own, wherever those are mounted; empty
/// where there is none.
std::filesystem::path control_group_of(pid_t launcher);

/// A place for one job, and what the job leaves there: processes, files, a control group, a
/// listening socket.
///
/// The test adopts whatever loses its parents (PR_SET_CHILD_SUBREAPER), so that no process of a job
/// gets away unseen. Therefore the job is the only one of its test program while it runs.
class JobPlace {
 public:
  JobPlace();
  JobPlace(const JobPlace&) = delete;
  JobPlace& operator=(const JobPlace&) = delete;
  ~JobPlace();  ///< kills what is left, so that only this job's test fails

  [[nodiscard]] std::string folder() const { return folder_.path().string(); }  ///< its TMPDIR
  [[nodiscard]] std::string port() const { return port_.text(); }  ///< its store's, for a flag

  /// "nothing", or what there is when the launcher has ended.
  [[nodiscard]] std::string left(const Program& launcher) const;
  /// The same when the supervisor of a launcher that was killed has ended, too.
  [[nodiscard]] std::string left_at_last(const Program& launcher) const;

 private:
  TemporaryFolder folder_;
  ReservedPort port_;
};

}  // namespace acc::test
