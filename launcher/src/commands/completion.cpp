// SPDX-License-Identifier: Apache-2.0
// acclaunch completion: prints a shell's completion script. The script calls `acclaunch
// complete-words`, which lists what may stand at the cursor.
#include "acc/launcher/front_end.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"

#include <algorithm>
#include <cstdio>

namespace acc::launcher::commands {
namespace {

using pages::Candidate;
using pages::Candidates;

/// `words`: those after `acclaunch`; the last one is completed.
Candidates complete(std::span<const std::string> words) {
  Candidates candidates;
  const std::string& first = words.front();
  if (words.size() == 1 && !first.starts_with('-')) {
    pages::add_words(candidates, first, command_names());
    pages::add_words(candidates, first,
                     std::vector<Candidate>{{"help", "prints the flags of a command"}});
    candidates.files = true;  // a program
    return candidates;
  }
  if (first == "help" && words.size() == 2) {
    pages::add_words(candidates, words[1], command_names());
    return candidates;
  }
  if (first == "completion") {
    pages::add_words(candidates, words.back(),
                     std::vector<Candidate>{{"bash", ""}, {"zsh", ""}, {"fish", ""}});
    return candidates;
  }
  if (first == "explain" && words.size() > 1) {
    if (words.size() == 2) {
      pages::add_words(candidates, words[1],
                       std::vector<Candidate>{{"--json", "print one JSON object"},
                                              {"launch", "with Accelerate's flags"},
                                              {"torchrun", "with torchrun's flags"},
                                              {"deepspeed", "with DeepSpeed's flags"}});
    }
    const Candidates rest = complete(words.subspan(1));
    for (const Candidate& each : rest.words) {
      if (each.word.starts_with('-') || words.size() > 2) {
        candidates.words.push_back(each);
      }
    }
    candidates.files = rest.files;
    return candidates;
  }
  const auto names = command_names();
  const bool names_command = std::ranges::find(names, first, &Candidate::word) != names.end();
  return pages::complete_options(command_page(names_command ? first : "launch"),
                                 names_command ? words.subspan(1) : words);
}

}  // namespace

int complete_words_command(std::span<const std::string> arguments) {
  if (!arguments.empty()) {
    std::fputs(pages::candidate_lines(complete(arguments)).c_str(), stdout);
  }
  return 0;
}

int completion_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "Prints the script that completes acclaunch's command line in a shell. In ~/.bashrc:\n\n"
      "  source <(acclaunch completion bash)\n\n"
      "In ~/.zshrc, after compinit:\n\n"
      "  source <(acclaunch completion zsh)\n\n"
      "For fish:\n\n"
      "  acclaunch completion fish > ~/.config/fish/completions/acclaunch.fish",
      "acclaunch completion");
  std::string shell;
  parser.add_option("shell", shell, "bash, zsh or fish")
      .required()
      .check_member({"bash", "zsh", "fish"});
  parser.parse(arguments);
  std::fputs(pages::completion_script("acclaunch", shell).c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
