// SPDX-License-Identifier: Apache-2.0
// Python values of YAML scalars: PyYAML's type, and str() of the value. The expectations were
// printed by Python 3.11 and PyYAML 6.0.
#include "accelerate_cli/python_values.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>

namespace acc::launcher::accelerate_cli::python {
namespace {

TEST_CASE("PyYAML's value of a word, and str() of it") {
  struct Case {
    std::string yaml;
    std::string text;
    bool is_text;
    bool is_true;
    std::optional<double> number;
  };
  for (const auto& [yaml, text, textual, truth, value] : {
           Case{"null", "None", false, false, std::nullopt},
           Case{"", "None", false, false, std::nullopt},
           Case{"yes", "True", false, true, 1.0},
           Case{"'yes'", "yes", true, true, std::nullopt},
           Case{"''", "", true, false, std::nullopt},
           Case{"'0'", "0", true, true, std::nullopt},
           Case{"0", "0", false, false, 0.0},
           Case{"+7", "7", false, true, 7.0},
           Case{"07", "7", false, true, 7.0},
           Case{"1_000", "1000", false, true, 1000.0},
           Case{"'1_000'", "1_000", true, true, std::nullopt},
           Case{"0x10", "16", false, true, 16.0},
           Case{"-0b11", "-3", false, true, -3.0},
           Case{"1_0.5", "10.5", false, true, 10.5},
           Case{"08", "08", true, true, std::nullopt},
           Case{"1e8", "1e8", true, true, std::nullopt},
           Case{"1.0e8", "1.0e8", true, true, std::nullopt},
           Case{"1.0e+8", "100000000.0", false, true, 1e8},
           Case{"0.0", "0.0", false, false, 0.0},
           Case{"-1.50", "-1.5", false, true, -1.5},
           Case{"2.", "2.0", false, true, 2.0},
           Case{"[]", "[]", false, false, std::nullopt},
           Case{"[A, 1, 'it''s', null]", "['A', 1, \"it's\", None]", false, true, std::nullopt},
           Case{"{a: true}", "{'a': True}", false, true, std::nullopt},
       }) {
    CAPTURE(yaml);
    const auto document = documents::parse_yaml("key: " + yaml + "\n", "f");
    const Node& node = *document.root.find("key");
    CHECK(str(node) == text);
    CHECK(is_text(node) == textual);
    CHECK(is_true(node) == truth);
    CHECK(number(node) == value);
  }
}

TEST_CASE("floats as Python prints them") {
  CHECK(float_text(1.0) == "1.0");
  CHECK(float_text(0.1) == "0.1");
  CHECK(float_text(100000.0) == "100000.0");
  CHECK(float_text(1e15) == "1000000000000000.0");
  CHECK(float_text(1e16) == "1e+16");
  CHECK(float_text(0.0001) == "0.0001");
  CHECK(float_text(1e-5) == "1e-05");
  CHECK(float_text(-1.5e-7) == "-1.5e-07");
  CHECK(float_text(0.0) == "0.0");
}

}  // namespace
}  // namespace acc::launcher::accelerate_cli::python
