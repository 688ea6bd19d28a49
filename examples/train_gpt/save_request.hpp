#pragma once

#include <acc/runtime.hpp>

#include <csignal>

namespace train_gpt {

/// SIGUSR1 and SIGTERM as requests to save a checkpoint and end. They reach ranks at different
/// moments, and perhaps not all of them, so the ranks agree after each step:
///
///     SaveRequest request;  // from here on neither signal kills
///     for (...) {
///       request.step_begins();
///       train_step();
///       if (const int signal = request.agreed(runtime)) {
///         save();
///         return signal;  // main calls SaveRequest::end_by(signal) where it was SIGTERM
///       }
///     }
///
/// SIGTERM is also how a launcher ends the ranks that wait for one that is lost: before the first
/// step is made it kills as ever, and later where a step takes much longer than those before.
/// There is at most one at a time.
class SaveRequest {
 public:
  SaveRequest();
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;
  ~SaveRequest();  ///< both signals do again what they did before

  void step_begins();
  /// The step has ended. The signal that any rank got since the last call, the same on all of them;
  /// SIGTERM before SIGUSR1; 0: none. Collective.
  [[nodiscard]] int agreed(acc::Runtime& runtime);

  /// Ends this process as if nothing had caught the signal.
  [[noreturn]] static void end_by(int signal);

 private:
  struct sigaction before_[3] = {};
};

}  // namespace train_gpt
