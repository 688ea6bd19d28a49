#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace acc::checkpoint::pickle {

/// Writes a protocol 2 pickle, opcode by opcode, into a string that grows. What is built is the
/// caller's to balance: a value is pushed by one call, or by begin … end around those it consists
/// of.
class Writer {
 public:
  Writer();

  Writer& none();
  Writer& boolean(bool value);
  Writer& integer(std::int64_t value);
  Writer& real(double value);
  /// UTF-8.
  Writer& text(std::string_view value);
  Writer& bytes(
      std::string_view value);  ///< as Python 3 reads protocol 2: _codecs.encode of latin1
  Writer& global(std::string_view module, std::string_view name);

  Writer& begin_tuple();  ///< then the items, then
  Writer& end_tuple();
  Writer& begin_list();
  Writer& end_list();
  Writer& begin_dict();  ///< then key, value, …
  Writer& end_dict();
  /// An OrderedDict: begin_ordered_dict, key, value, …, end_ordered_dict.
  Writer& begin_ordered_dict();
  Writer& end_ordered_dict();

  /// The stack holds a callable and a tuple of arguments; calls it.
  Writer& reduce();
  /// The stack holds a class and a tuple: cls.__new__(cls, *args).
  Writer& new_object();
  /// The stack holds an object and its state.
  Writer& build();
  /// The stack holds an identifier, which becomes what the reader's persistent_load gives.
  Writer& persistent();

  /// Remembers what is on top of the stack; `recall` pushes it again.
  std::uint32_t remember();
  Writer& recall(std::uint32_t id);

  /// Ends the pickle and gives its bytes.
  std::string finish();
  /// What was written so far may be taken away between any two calls (a pickle of gigabytes).
  std::string take();

 private:
  std::string out_;
  std::uint32_t memo_ = 0;
};

}  // namespace acc::checkpoint::pickle
