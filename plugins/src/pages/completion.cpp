// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/pages/command_pages.hpp"

#include <algorithm>
#include <array>

namespace acc::pages {
namespace {

/// Returns the word with `_` for each `-`, except in the dashes at its beginning.
std::string with_underscores(std::string_view word) {
  std::string key(word);
  const auto first = std::min(key.find_first_not_of('-'), key.size());
  std::replace(key.begin() + static_cast<std::ptrdiff_t>(first), key.end(), '-', '_');
  return key;
}

/// Returns the option that `word` names, without its value, or nullptr.
const CommandOption* find_option(const CommandPage& page, std::string_view word) {
  const std::string key = with_underscores(word);
  const CommandOption* longer = nullptr;
  int num_longer = 0;
  for (const OptionGroup& group : page.groups) {
    for (const CommandOption& option : group.options) {
      for (const std::string& name : option.names) {
        const std::string canonical = with_underscores(name);
        if (canonical == key) {
          return &option;
        }
        if (key.starts_with("--") && canonical.starts_with(key)) {
          longer = &option;
          ++num_longer;
        }
      }
    }
  }
  return page.abbreviates && num_longer == 1 ? longer : nullptr;
}

/// Returns the first clause of a help text, which fits next to a candidate.
std::string first_clause(const std::string& help) {
  return help.substr(0, help.find("; "));
}

/// Adds the values of an option that begin with `begin`, each after `head`.
void add_values(Candidates& candidates, const CommandOption& option, const std::string& head,
                std::string_view begin) {
  for (const std::string& choice : option.choices) {
    if (choice.starts_with(begin)) {
      candidates.words.push_back({head + choice, ""});
    }
  }
  candidates.files = candidates.files || option.takes_path;
}

/// Adds the long options that begin with `begin`. An option without a further word in `begin` is
/// spelled as in --help, otherwise with the separator that was typed.
void add_options(Candidates& candidates, const CommandPage& page, const std::string& begin) {
  const std::string key = with_underscores(begin);
  const bool types_dashes = begin.find('-', 2) != std::string::npos;
  const bool types_underscores = begin.find('_') != std::string::npos;
  for (const OptionGroup& group : page.groups) {
    for (const CommandOption& option : group.options) {
      for (std::string name : option.names) {
        if (!name.starts_with("--") || !with_underscores(name).starts_with(key)) {
          continue;
        }
        if (types_underscores) {
          name = with_underscores(name);
        } else if (types_dashes) {
          std::ranges::replace(name, '_', '-');
        }
        candidates.words.push_back({name, first_clause(option.help)});
      }
    }
  }
}

constexpr std::string_view kBash =
    R"(# Completion of @PROGRAM@ in bash; the program itself lists the candidates.
_@FUNCTION@() {
  local words=() word line files= joins= raw=${COMP_WORDS[COMP_CWORD]} i
  # Bash splits words at = and :, which belong to --flag=value and HOST:PORT. Joins the parts again.
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ $word == [=:]* && ${#words[@]} -gt 0 ]]; then
      words[-1]+=$word joins=1
    elif [[ $joins ]]; then
      words[-1]+=$word joins=
    else
      words+=("$word")
    fi
  done
  [[ $raw != [=:]* ]] || raw=
  local head=${words[-1]%"$raw"}
  COMPREPLY=()
  while read -r line; do
    if [[ $line == :files ]]; then
      files=1
    else
      line=${line%%$'\t'*}
      COMPREPLY+=("${line#"$head"}")
    fi
  done < <("${COMP_WORDS[0]/#\~/$HOME}" complete-words "${words[@]}" 2>/dev/null)
  if [[ $files && ${#COMPREPLY[@]} -eq 0 ]]; then
    compopt -o default
  elif [[ $files ]]; then
    compopt -o filenames
    while read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$raw")
  fi
}
complete -F _@FUNCTION@ @PROGRAM@
)";

constexpr std::string_view kZsh = R"(#compdef @PROGRAM@
# Completion of @PROGRAM@ in zsh; the program itself lists the candidates.
_@FUNCTION@() {
  local -a described
  local line files
  for line in "${(@f)$("${(Q)words[1]/#\~/$HOME}" complete-words "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    if [[ $line == :files ]]; then
      files=1
    elif [[ -n $line ]]; then
      described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    fi
  done
  (( ! $#described )) || _describe -t words @PROGRAM@ described
  if [[ -n $files ]]; then
    [[ $words[CURRENT] != --*=* ]] || compset -P '*='
    _files
  fi
}
if [[ $funcstack[1] == _@FUNCTION@ || $funcstack[1] == _@PROGRAM@ ]]; then
  _@FUNCTION@ "$@"
else
  compdef _@FUNCTION@ @PROGRAM@
fi
)";

constexpr std::string_view kFish =
    R"(# Completion of @PROGRAM@ in fish; the program itself lists the candidates.
function __@FUNCTION@_words
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] complete-words $words[2..] "$current" 2>/dev/null)
        if test "$line" = :files
            set -l head (string match -r -- '^--[^=]*=' "$current")
            for file in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' "$current"))
                echo "$head$file"
            end
        else
            echo $line
        end
    end
end
complete -c @PROGRAM@ -f -a '(__@FUNCTION@_words)'
)";

struct Shell {
  std::string_view name;
  std::string_view script;
};
constexpr std::array kShells = {Shell{"bash", kBash}, Shell{"zsh", kZsh}, Shell{"fish", kFish}};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

CommandOption describe_flag(const settings::FlagTable& flags, const settings::SettingRow& row) {
  CommandOption option;
  option.names.push_back(settings::as_typed(flags, row.key));
  for (const std::string_view alias : split(row.alias, '|')) {
    option.names.push_back(alias.size() == 1 ? "-" + std::string(alias)
                                             : settings::as_typed(flags, alias));
  }
  option.help = row.help;
  if (row.flag != settings::Flag::value) {
    return option;
  }
  option.value = "VALUE";
  if (row.type == settings::Type::choice || row.type == settings::Type::numbered_choice) {
    for (const std::string_view choice : split(row.allowed, '|')) {
      option.choices.emplace_back(choice);
    }
  } else if (row.type == settings::Type::boolean) {
    option.choices = {"true", "false"};
  } else if (row.type != settings::Type::text) {
    option.help += " (" + settings::expected_value(row) + ")";
  }
  option.takes_path = row.type == settings::Type::text;
  if (!row.fallback.empty()) {
    option.help += "; default: " + std::string(row.fallback);
  }
  return option;
}

Candidates complete_options(const CommandPage& page, std::span<const std::string> words) {
  const CommandOption* expects_value = nullptr;
  for (const std::string& word : words.first(words.size() - 1)) {
    if (expects_value != nullptr) {
      expects_value = nullptr;
    } else if (word.size() > 1 && word.starts_with('-') && word != "--") {
      const CommandOption* option = find_option(page, word);
      expects_value = option == nullptr || option->value.empty() ? nullptr : option;
    } else if (page.takes_program) {
      return {{}, true};  // arguments of the program
    }
  }
  Candidates candidates;
  const std::string& current = words.back();
  const auto equals = current.find('=');
  if (expects_value != nullptr) {
    add_values(candidates, *expects_value, "", current);
  } else if (current.starts_with("--") && equals != std::string::npos) {
    if (const CommandOption* option = find_option(page, current.substr(0, equals))) {
      add_values(candidates, *option, current.substr(0, equals + 1), current.substr(equals + 1));
    }
  } else if (current.starts_with('-')) {
    add_options(candidates, page, current);
  } else {
    candidates.files = true;
  }
  return candidates;
}

void add_words(Candidates& candidates, std::string_view begin, std::span<const Candidate> words) {
  std::ranges::copy_if(words, std::back_inserter(candidates.words),
                       [&](const Candidate& each) { return each.word.starts_with(begin); });
}

std::string candidate_lines(const Candidates& candidates) {
  std::string text;
  for (const auto& [word, help] : candidates.words) {
    text += word + "\t" + help + "\n";
  }
  return text + (candidates.files ? ":files\n" : "");
}

std::string completion_script(std::string_view program, std::string_view shell) {
  const auto found = std::ranges::find(kShells, shell, &Shell::name);
  if (found == kShells.end()) {
    throw Error(Errc::invalid_argument, "completion: expected bash, zsh or fish, got \"" +
                                            printable(std::string(shell)) + "\"");
  }
  std::string text(found->script);
  std::string function(program);
  std::ranges::replace(function, '-', '_');
  replace_all(text, "@FUNCTION@", function);
  replace_all(text, "@PROGRAM@", program);
  return text;
}

}  // namespace acc::pages
