#include "faces/accelerate/stages.hpp"
#include "host/own_variables.hpp"

#include <array>
#include <charconv>

namespace acc::launcher {
namespace {

using plugins::Section;
using plugins::SettingRow;
using plugins::Source;

/// A float as Python prints it: Accelerate's flags pass through one.
std::string float_text(const std::string& text) {
  const auto number = plugins::parse_real(text);
  if (!number) {
    return text;
  }
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), *number).ptr;
  std::string printed(buffer.data(), end);
  return printed.find_first_of(".e") == std::string::npos ? printed + ".0" : printed;
}

/// Flags of which Accelerate takes the very words of its list; in a file any letter case will do.
bool has_exact_words(const SettingRow& row) {
  return row.type == plugins::Type::choice &&
         (row.section == Section::launch || row.section == Section::dynamo);
}

void read_flag(AccelerateDraft& draft, const Flags::Value& value) {
  const SettingRow& row = *plugins::find_setting(value.key, draft.settings.table());
  draft.settings.set(value.key,
                     row.type == plugins::Type::real ? float_text(value.text) : value.text,
                     {Source::Kind::flag, value.written});
  if (has_exact_words(row) && draft.settings.choice(value.key) != value.text) {
    throw Error(Errc::config, value.written + " must be " + plugins::expected_value(row) +
                                  ", got \"" + value.text + "\"; did you mean \"" +
                                  draft.settings.choice(value.key) + "\"?");
  }
}

}  // namespace

const Conduct& conduct_of(const Flags& flags, const plugins::Environment& environment) {
  const Flags::Value* flag = flags.find("compat");
  const std::string word = flag != nullptr ? flag->text : value_of(environment, variables::compat);
  return word == "accelerate" ? kAccelerateConduct : kAcclaunchConduct;
}

void read_values(AccelerateDraft& draft) {
  draft.faults = draft.flags.faults;
  if (draft.config) {
    draft.file =
        plugins::read_accelerate_config(*draft.config, draft.settings,
                                        {.checks_inner_keys = draft.conduct.checks_inner_keys,
                                         .reads_hidden_keys = draft.conduct.reads_hidden_keys},
                                        draft.faults);
    draft.plan.notices = draft.file.notices;
  }
  draft.faults.collect(
      [&] { read_variable(draft, "compat", std::string(variables::compat.name)); });
  for (const Flags::Value& value : draft.flags.values) {
    if (!draft.faults.collect([&] { read_flag(draft, value); })) {
      draft.file.faulty_keys.insert(value.key);
    }
  }
}

}  // namespace acc::launcher
