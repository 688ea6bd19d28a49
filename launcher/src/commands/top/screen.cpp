// SPDX-License-Identifier: Apache-2.0
#include "commands/top/screen.hpp"

#include "acc/base/error.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

namespace acc::launcher::commands {
namespace {

volatile std::sig_atomic_t ended = 0;

void end_screen(int) {
  ended = 1;
}
void note_size(int) {}

// Alternate screen, no cursor, no wrap (xterm's DEC private modes); and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH};

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count > 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR && errno != EAGAIN) {
      ended = 1;  // the terminal is gone
      return;
    }
  }
}

winsize size_of_terminal() {
  winsize size{};
  ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  return size;
}

Screen::Key key_of(std::string_view bytes) {
  using Key = Screen::Key;
  constexpr std::array<std::pair<std::string_view, Key>, 25> kKeys = {{
      {"q", Key::quit},       {"\x03", Key::quit},
      {"\x1b[A", Key::up},    {"k", Key::up},
      {"\x1b[B", Key::down},  {"j", Key::down},
      {"\x1b[D", Key::left},  {"\x1bOD", Key::left},
      {"h", Key::left},       {"\x1b[C", Key::right},
      {"\x1bOC", Key::right}, {"l", Key::right},
      {"\t", Key::right},     {"\x1b[5~", Key::page_up},
      {"b", Key::page_up},    {"\x1b[6~", Key::page_down},
      {" ", Key::page_down},  {"\x1b[H", Key::home},
      {"g", Key::home},       {"\x1b[F", Key::end},
      {"G", Key::end},        {"s", Key::order},
      {"\x1bOA", Key::up},    {"\x1bOB", Key::down},
      {"Q", Key::quit},
  }};
  const auto* const found =
      std::ranges::find_if(kKeys, [&](const auto& each) { return bytes.starts_with(each.first); });
  return found == kKeys.end() ? Key::none : found->second;
}

}  // namespace

// The signals are blocked outside of `wait`, so that none is lost between a check and the wait.
Screen::Screen() {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0 ||
      ::tcgetattr(STDIN_FILENO, &before_) != 0) {
    throw Error(Errc::invalid_argument,
                "top needs a terminal; --once prints a table, --json the same as JSON");
  }
  ended = 0;
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int signal : kSignals) {
    ::sigaddset(&blocked, signal);
    struct sigaction action {};
    action.sa_handler = signal == SIGWINCH ? note_size : end_screen;
    ::sigaction(signal, &action, nullptr);
  }
  ::sigprocmask(SIG_BLOCK, &blocked, &signals_);
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
  write_all(kEnter);
}

Screen::~Screen() {
  write_all(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  for (const int signal : kSignals) {
    ::signal(signal, SIG_DFL);
  }
  ::sigprocmask(SIG_SETMASK, &signals_, nullptr);
}

std::size_t Screen::width() const {
  const winsize size = size_of_terminal();
  return size.ws_col == 0 ? 80 : size.ws_col;
}

std::size_t Screen::height() const {
  const winsize size = size_of_terminal();
  return size.ws_row == 0 ? 24 : size.ws_row;
}

void Screen::draw(const std::vector<std::string>& lines) const {
  std::string text = "\x1b[H";  // to the top; each line and the rest of the screen are erased
  for (std::size_t i = 0; i < std::min(lines.size(), height()); ++i) {
    text += (i == 0 ? "" : "\r\n") + lines[i] + "\x1b[K";
  }
  write_all(text + "\x1b[J");
}

Screen::Key Screen::wait(std::chrono::milliseconds time) {
  if (ended != 0) {
    return Key::quit;
  }
  const timespec limit{time.count() / 1000, time.count() % 1000 * 1'000'000};
  pollfd polled{STDIN_FILENO, POLLIN, 0};
  const int ready = ::ppoll(&polled, 1, &limit, &signals_);
  if (ready < 0) {
    return ended != 0 ? Key::quit : Key::resized;
  }
  if (ready == 0) {
    return Key::none;
  }
  std::array<char, 32> bytes;
  const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  return count <= 0 ? Key::quit : key_of({bytes.data(), static_cast<std::size_t>(count)});
}

}  // namespace acc::launcher::commands
