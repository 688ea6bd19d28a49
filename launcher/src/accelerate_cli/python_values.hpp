// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"

#include <optional>
#include <string>

/// Python values of YAML scalars and flags, as PyYAML and argparse create them for
/// `accelerate launch`.
namespace acc::launcher::accelerate_cli::python {

using documents::Node;

/// True if Python has a str: a quoted word, or a bare one that PyYAML reads as text, such as `auto`
/// or `1e8`.
bool is_text(const Node& value);
/// Returns bool(value): false for None, False, 0, "" and empty collections.
bool is_true(const Node& value);
/// Returns the value of an int, float or bool, the types that can be compared with numbers; empty
/// for other types.
std::optional<double> number(const Node& value);
/// True if Python has an int.
bool is_integer(const Node& value);
/// Returns str(value): `None`, `True`, `1.0`, `['a', 'b']`.
std::string str(const Node& value);
/// Returns the value for messages; text is marked as such: `the text "1"`.
std::string described(const Node& value);

/// Returns repr of a float: `0.1`, `100000.0`, `1e-05`, `1e+16`.
std::string float_text(double value);

}  // namespace acc::launcher::accelerate_cli::python
