#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::model {

struct DeclaredParameter {
  std::vector<std::string> names;  ///< its full name, then those that it is tied to
  std::int64_t numel = 0;
};

/// A unit as the program declared it, as far as wrapping looks at it.
struct DeclaredUnit {
  std::string name;
  std::string class_name;
  bool is_root = false;
  std::vector<DeclaredParameter> parameters;
};

/// A module of the program: a declared unit, or one that only dotted names tell of ("attn" in the
/// parameter "attn.c_attn.weight" of a unit), which has no class.
struct Module {
  std::string name;  ///< full, dotted
  std::string class_name;
  int unit = -1;  ///< number of the declared unit; -1: none
  int parent = -1;
  bool ignored = false;
  std::vector<int> children = {};
  std::vector<int> parameters = {};  ///< those that have a name in it, by `ModuleTree::parameters`
};

/// A distinct parameter; tied names are one.
struct ModuleParameter {
  std::int64_t numel = 0;
  int unit = 0;    ///< that declared it
  int module = 0;  ///< in which its first name is
  bool ignored = false;
};

/// The program's modules, nested by their dotted names: the parent of "net.h.0" is the longest
/// module name that is a dotted prefix of it, else the root. Parameters are numbered as declared,
/// unit by unit.
struct ModuleTree {
  std::vector<Module> modules;  ///< [0]: the root, declared or not
  std::vector<ModuleParameter> parameters;
};

/// Which modules are left alone: a regular expression (ECMAScript) that matches the whole of a
/// module's name or of one that it lies in (Accelerate's fsdp_ignored_modules). Throws
/// Error(config) for a text that is none.
class IgnoredModules {
 public:
  /// An empty pattern: none.
  explicit IgnoredModules(const std::string& pattern);
  [[nodiscard]] bool contains(std::string_view module) const;
  /// Of a parameter or buffer.
  [[nodiscard]] bool contains_holder_of(std::string_view full_name) const;

 private:
  std::function<bool(std::string_view)> matches_;  ///< a module's own name
};

ModuleTree build_tree(const std::vector<DeclaredUnit>& units, const IgnoredModules& ignored);

/// Of `module` and its ancestors the first for which `wrapped` holds; the root holds the rest.
int nearest_wrapped(const ModuleTree& tree, const std::vector<bool>& wrapped, int module);

}  // namespace acc::model
