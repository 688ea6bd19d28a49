// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/flags.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

// Shell completions and manual pages of a program, from the same tables as its --help.
namespace acc::pages {

/// An option of a command.
struct CommandOption {
  std::vector<std::string> names;    ///< as typed: `--num_processes`, `-n`
  std::string value;                 ///< name of the value in manual pages; empty: takes none
  std::vector<std::string> choices;  ///< all valid values; empty: not enumerable
  bool takes_path = false;           ///< the value may be a file or folder
  std::string help;
};

/// Returns the description of a flag of a table.
CommandOption describe_flag(const settings::FlagTable& flags, const settings::SettingRow& row);

/// Options below one heading.
struct OptionGroup {
  std::string title;
  std::vector<CommandOption> options;
};

/// A command of a program, as its users see it.
struct CommandPage {
  std::string name;     ///< "acclaunch torchrun"
  std::string summary;  ///< one line without a period at its end
  std::string text;     ///< description; a paragraph of indented lines is printed unchanged
  std::vector<OptionGroup> groups;
  bool takes_program = false;  ///< the first word that is no option ends the options
  bool abbreviates = false;    ///< as in FlagTable
};

/// A word that may stand at the cursor, and its description.
struct Candidate {
  std::string word;
  std::string help;
};

/// The words that are possible at the cursor of a command line.
struct Candidates {
  std::vector<Candidate> words;
  bool files = false;  ///< names of files and folders too
};

/// Completes the last of `words`, which follow the name of the command. An option is completed in
/// the spelling that was begun: with `-` or with `_`. `words` must not be empty.
Candidates complete_options(const CommandPage& page, std::span<const std::string> words);

/// Adds the words that begin with `begin`, compared as they are.
void add_words(Candidates& candidates, std::string_view begin, std::span<const Candidate> words);

/// Returns the candidates in the form that the completion scripts read: one line `WORD<tab>HELP`
/// per word, and `:files` for files.
std::string candidate_lines(const Candidates& candidates);

/// Returns the script that completes `program` in a shell: bash, zsh or fish. The script runs
/// `PROGRAM complete-words WORD...`, which prints candidate_lines. Throws Error(invalid_argument)
/// for another shell.
std::string completion_script(std::string_view program, std::string_view shell);

/// A section of a manual page, in addition to those that a CommandPage gives.
struct ManualSection {
  std::string title;  ///< "EXIT STATUS"
  std::string text;   ///< as CommandPage::text
};

/// Returns a manual page in the language of man(7). `section`: 1 for commands, 8 for daemons;
/// `version`: "acclaunch 0.1.0"; `date`: of the release, YYYY-MM-DD.
std::string manual_page(const CommandPage& page, int section, std::string_view version,
                        std::string_view date, std::span<const ManualSection> more = {});

}  // namespace acc::pages
