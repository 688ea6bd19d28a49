// SPDX-License-Identifier: Apache-2.0
#include "model/gemm.hpp"
#include "run/options.hpp"
#include "run/save_request.hpp"
#include "run/train.hpp"

#include <acc/base/error.hpp>

#include <cstdio>
#include <exception>

// The exit status tells the launcher what failed (acc::exit_status). After SIGTERM the process ends
// by that signal, so that a job manager sees that its request was followed.
int main(int argc, char** argv) {
  try {
    if (const auto options = train_gpt::parse_options(argc, argv)) {
      train_gpt::set_gemm_threads_from_environment();
      if (const int signal = train_gpt::train(*options); signal == SIGTERM) {
        train_gpt::SaveRequest::end_by(signal);
      }
    }
    return 0;
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return acc::exit_status(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 1;
  }
}
