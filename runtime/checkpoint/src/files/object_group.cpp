// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/object_store.hpp"
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/files/input_path.hpp"
#include "files/atomic_target.hpp"

#include <utility>

// Objects have no folders and no renames. They are written under the name of the target, where
// nothing complete may be, and beside them an object ".acc-unfinished", which `commit` removes. A
// crash leaves it there, and the next `begin` with this target removes all of them.
namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

void mark_unfinished(const fs::path& group) {
  OutputFile(group / kUnfinishedMark).close();
}

class ObjectGroup final : public AtomicTarget {
 public:
  using AtomicTarget::AtomicTarget;

  void make(const std::vector<std::string>&) override {}  // `begin` has marked it

  void begin() override {
    const bool unfinished = object_store().find(target / kUnfinishedMark).has_value();
    const std::vector<std::string> paths = files_below(target);
    if (!unfinished && !paths.empty()) {
      throw Error(Errc::config,
                  "cannot replace " + target.string() +
                      ": objects cannot be replaced in one step; choose another name, "
                      "save in a series, or remove them first");
    }
    for (const std::string& path : paths) {
      if (!is_ours(path)) {
        throw Error(Errc::config, "will not write to " + target.string() + ": it holds '" + path +
                                      "', which is not part of a checkpoint; choose another name");
      }
    }
    if (unfinished) {
      remove_objects(target);
    }
    mark_unfinished(target);
    begun_ = true;
  }

  void check_there() const override {}
  void commit() override { object_store().remove(target / kUnfinishedMark); }

  void abandon() noexcept override {
    try {
      if (begun_) {
        remove_objects(target);
      }
    } catch (const std::exception&) {  // the next `begin` finds what is left
    }
  }

  [[nodiscard]] fs::path current() const override { return target; }

 private:
  bool begun_ = false;
};

}  // namespace

// A crash in between leaves objects that are marked as unfinished.
void remove_objects(const fs::path& group) {
  const std::vector<std::string> paths = files_below(group);
  mark_unfinished(group);
  for (const std::string& path : paths) {
    object_store().remove(group / path);
  }
  object_store().remove(group / kUnfinishedMark);
}

std::unique_ptr<AtomicTarget> object_group(const fs::path& target,
                                           std::function<bool(const std::string&)> is_ours) {
  const fs::path name = target.has_filename() ? target : target.parent_path();
  return std::make_unique<ObjectGroup>(name, name, std::move(is_ours));
}

}  // namespace acc::checkpoint
