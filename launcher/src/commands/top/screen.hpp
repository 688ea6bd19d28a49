// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace acc::launcher::commands {

/// The alternate screen of the terminal on stdin and stdout: keys arrive one by one and are not
/// echoed, long lines are cut. The destructor restores the terminal. One object at a time.
class Screen {
 public:
  enum class Key {
    none,
    quit,
    up,
    down,
    left,
    right,
    page_up,
    page_down,
    home,
    end,
    order,
    resized
  };

  /// Throws Error(invalid_argument) if stdin or stdout is not a terminal.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  [[nodiscard]] std::size_t width() const;
  [[nodiscard]] std::size_t height() const;
  /// Draws lines from the top, and clears the rest.
  void draw(const std::vector<std::string>& lines) const;
  /// Waits for a key, a new size or a signal to end (a key `quit`); Key::none after `time`.
  [[nodiscard]] Key wait(std::chrono::milliseconds time);

 private:
  termios before_{};
  sigset_t signals_{};  ///< those of the process outside of `wait`
};

}  // namespace acc::launcher::commands
