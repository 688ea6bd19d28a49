#pragma once

#include "acc/plugins/document.hpp"

#include <optional>
#include <string>

/// Values as Python has them in `accelerate launch`: what PyYAML or argparse makes of a word.
namespace acc::launcher::python {

using plugins::Node;

/// A quoted word, or a bare one that PyYAML takes for text: `auto`, and `1e8` too.
bool is_text(const Node& value);
/// bool(value): false of None, False, 0, "" and empty collections.
bool is_true(const Node& value);
/// Of an int, float or bool, which can be compared with numbers; nothing for other types.
std::optional<double> number(const Node& value);
bool is_integer(const Node& value);
/// str(value): `None`, `True`, `1.0`, `['a', 'b']`.
std::string str(const Node& value);
/// The type and the value, for messages: `the text "1"`.
std::string described(const Node& value);

/// repr of a float: `0.1`, `100000.0`, `1e-05`, `1e+16`.
std::string float_text(double value);

}  // namespace acc::launcher::python
