// SPDX-License-Identifier: Apache-2.0
#include "acc/base/object_store.hpp"

#include "acc/base/error.hpp"
#include "acc/base/part_path.hpp"
#include "acc/base/variables.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

namespace acc {

namespace {

constexpr const char* kLibrary = "libacc_s3.so";

/// Loads the library once; it is never unloaded.
ObjectStore& load_store() {
  void* const library = dlopen(part_path(kLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(Errc::not_supported, fmt::format("s3:// needs {}: {}", kLibrary, dlerror()));
  }
  const auto entry = reinterpret_cast<ObjectStoreEntry>(dlsym(library, kObjectStoreEntry));
  ObjectStore* const store =
      entry == nullptr ? nullptr : entry(kObjectStoreVersion, &process_variable);
  if (store == nullptr) {
    throw Error(Errc::not_supported,
                fmt::format("{} has a different version than the program that loads it: install "
                            "both from one build",
                            kLibrary));
  }
  return *store;
}

/// Calls a function of the library and throws an Error in the place of its exception.
template <typename Call>
auto asked(std::string_view action, const std::string& name, const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Errc::config, fmt::format("cannot {} {}: {}", action, name, error.what()));
  }
}

class NamedWriter final : public ObjectWriter {
 public:
  NamedWriter(std::string name, std::unique_ptr<ObjectWriter> writer)
      : name_(std::move(name)), writer_(std::move(writer)) {}
  void expect(std::uint64_t nbytes) override { writer_->expect(nbytes); }
  void write(std::span<const std::byte> bytes) override {
    asked("write", name_, [&] { writer_->write(bytes); });
  }
  void finish() override {
    asked("write", name_, [&] { writer_->finish(); });
  }

 private:
  std::string name_;
  std::unique_ptr<ObjectWriter> writer_;
};

class NamedStore final : public ObjectStore {
 public:
  explicit NamedStore(ObjectStore& store) : store_(store) {}
  std::optional<Found> find(const std::string& name) override {
    return asked("access", name, [&] { return store_.find(name); });
  }
  std::map<std::string, Found> list(const std::string& group) override {
    return asked("list", group, [&] { return store_.list(group); });
  }
  void read(const std::string& name, const Found& object, std::uint64_t offset,
            std::span<std::byte> out) override {
    asked("read", name, [&] { store_.read(name, object, offset, out); });
  }
  std::unique_ptr<ObjectWriter> create(const std::string& name) override {
    return asked("write", name,
                 [&] { return std::make_unique<NamedWriter>(name, store_.create(name)); });
  }
  void remove(const std::string& name) override {
    asked("remove", name, [&] { store_.remove(name); });
  }

 private:
  ObjectStore& store_;
};

}  // namespace

bool is_object(const std::filesystem::path& path) noexcept {
  return path.native().starts_with("s3://");
}

ObjectStore& object_store() {
  static NamedStore store(load_store());
  return store;
}

}  // namespace acc
