// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace acc::checkpoint::pickle {

/// Writes a pickle of protocol 2, opcode by opcode, into a string that grows. The caller keeps the
/// stack balanced: one call pushes a value, or a pair of begin and end calls around the parts of
/// the value.
class Writer {
 public:
  Writer();

  Writer& none();
  Writer& boolean(bool value);
  Writer& integer(std::int64_t value);
  Writer& real(double value);
  /// UTF-8.
  Writer& text(std::string_view value);
  /// Written as Python 3 does in protocol 2: a call of _codecs.encode with a Latin-1 string.
  Writer& bytes(std::string_view value);
  Writer& global(std::string_view module, std::string_view name);
  /// Appends opcodes that another writer has returned by `take`, without the two that begin a
  /// pickle.
  Writer& opcodes(std::string_view value);

  Writer& begin_tuple();  ///< followed by the items and end_tuple
  Writer& end_tuple();
  Writer& begin_list();
  Writer& end_list();
  Writer& begin_dict();  ///< followed by key, value, … and end_dict
  Writer& end_dict();
  /// An OrderedDict: begin_ordered_dict, key, value, …, end_ordered_dict.
  Writer& begin_ordered_dict();
  Writer& end_ordered_dict();

  /// Calls a callable with a tuple of arguments. Both must be on the stack.
  Writer& reduce();
  /// Makes an object: cls.__new__(cls, *args). The class and the tuple must be on the stack.
  Writer& new_object();
  /// Sets the state of an object. Both must be on the stack.
  Writer& build();
  /// Turns the identifier on the stack into the object that the reader's persistent_load returns
  /// for it (a torch storage).
  Writer& persistent();

  /// Stores the value on top of the stack in the memo and returns its id. `recall` pushes it again.
  std::uint32_t remember();
  Writer& recall(std::uint32_t id);

  /// Ends the pickle and returns its bytes.
  std::string finish();
  /// Returns and removes the bytes written so far. May be called between any two other calls, so
  /// that a pickle of gigabytes does not have to fit in memory.
  std::string take();

 private:
  std::string out_;
  std::uint32_t memo_ = 0;
};

}  // namespace acc::checkpoint::pickle
