// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::model {

/// A parameter as the program declared it.
struct DeclaredParameter {
  std::vector<std::string> names;  ///< its full name, then its tied names
  std::int64_t numel = 0;
};

/// A unit as the program declared it: the properties that wrapping uses.
struct DeclaredUnit {
  std::string name;
  std::string class_name;
  bool is_root = false;
  std::vector<DeclaredParameter> parameters;
};

/// A module of the program: a declared unit, or a module without class that only occurs in dotted
/// names ("attn" in the parameter "attn.c_attn.weight" of a unit).
struct Module {
  std::string name;  ///< full dotted name
  std::string class_name;
  int unit = -1;    ///< number of the declared unit; -1: none
  int parent = -1;  ///< index into `ModuleTree::modules`; -1: the root
  bool ignored = false;
  std::vector<int> children = {};
  std::vector<int> parameters = {};  ///< parameters with a name in it, as in ModuleTree::parameters
};

/// A distinct parameter; a tied parameter is one.
struct ModuleParameter {
  std::int64_t numel = 0;
  int unit = 0;    ///< number of the unit that declared it
  int module = 0;  ///< module of its first name
  bool ignored = false;
};

/// The program's modules, nested by their dotted names: the parent of "net.h.0" is the longest
/// module name that is a dotted prefix of it, else the root. Parameters are numbered as declared,
/// unit by unit.
struct ModuleTree {
  std::vector<Module> modules;  ///< [0] is the root, even if it was not declared
  std::vector<ModuleParameter> parameters;
};

/// The modules that are not sharded (Accelerate's fsdp_ignored_modules): a regular expression
/// (ECMAScript) that must match the whole name of a module or of a module that contains it. Throws
/// Error(config) for an invalid expression.
class IgnoredModules {
 public:
  /// pattern: empty: no module is ignored.
  explicit IgnoredModules(const std::string& pattern);
  /// True if the module is ignored.
  [[nodiscard]] bool contains(std::string_view module) const;
  /// True if the module that holds this parameter or buffer is ignored.
  [[nodiscard]] bool contains_holder_of(std::string_view full_name) const;

 private:
  std::function<bool(std::string_view)> matches_;  ///< matches one module name; empty: none
};

/// A pure function of the declaration, so all ranks get the same tree.
ModuleTree build_tree(const std::vector<DeclaredUnit>& units, const IgnoredModules& ignored);

/// Returns the first of `module` and its ancestors that is wrapped; the root if none is.
int nearest_wrapped(const ModuleTree& tree, const std::vector<bool>& wrapped, int module);

}  // namespace acc::model
