// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

/// Objects of a service with the S3 interface, in the place of files. An object is named
/// "s3://<bucket>/<key>". It appears whole, when its writer has finished it. There are no folders,
/// only keys with slashes, and no two objects can be replaced in one step.
namespace acc {

/// An object while it is written, from its beginning to its end.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;  ///< without `finish` nothing appears under the name
  /// States the size if it is known beforehand. It decides the size of the parts that are sent.
  virtual void expect(std::uint64_t nbytes) = 0;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void finish() = 0;
};

/// Functions throw Error(config) with the name of the object and the reason. Thread-safe, except
/// for one ObjectWriter.
class ObjectStore {
 public:
  struct Found {
    std::uint64_t nbytes = 0;
    std::string version;  ///< another one after each write (ETag)
    bool operator==(const Found&) const = default;
  };
  virtual ~ObjectStore() = default;
  /// Returns an object; nothing if none has this name.
  virtual std::optional<Found> find(const std::string& name) = 0;
  /// Returns what follows "<group>/", up to the next slash: objects, and groups, whose names end
  /// with a slash.
  virtual std::map<std::string, Found> list(const std::string& group) = 0;
  /// Reads [offset, offset + out.size()) of the object that was found. Throws if it was replaced.
  virtual void read(const std::string& name, const Found& object, std::uint64_t offset,
                    std::span<std::byte> out) = 0;
  virtual std::unique_ptr<ObjectWriter> create(const std::string& name) = 0;
  /// Does nothing if there is no such object.
  virtual void remove(const std::string& name) = 0;
};

/// True if a path names an object or a group of objects: it begins with "s3://".
bool is_object(const std::filesystem::path& path) noexcept;

/// Returns the service, which finds its address and keys as AWS's own programs do
/// (docs/checkpoints.md). Throws Error(not_supported) if libacc_s3.so cannot be loaded.
ObjectStore& object_store();

// The entry point of libacc_s3.so. What its functions throw is a std::exception, because an
// acc::Error of another library is another type; `object_store` makes an Error of it.
inline constexpr int kObjectStoreVersion = 1;  ///< to be raised with any change of ObjectStore
inline constexpr const char* kObjectStoreEntry = "acc_s3_store";
using VariableOf = std::optional<std::string>(const char* name);  ///< of this process
/// Returns null if it has another version.
using ObjectStoreEntry = ObjectStore* (*)(int version, VariableOf* variable);

}  // namespace acc
