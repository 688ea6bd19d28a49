// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace acc::collectives {

/// Connections between all pairs of ranks of a group, and messages with tags over them: the part of
/// Gloo that GlooGroup uses. The code is in libacc_gloo.so, because a program may contain another
/// Gloo (LibTorch exports the symbols of its own), which must not be mixed with this one.
class Mesh {
 public:
  /// Memory that is sent or received once. Functions throw what Gloo throws, a std::exception.
  class Message {
   public:
    virtual ~Message() = default;
    virtual void send(int peer, std::uint64_t tag) = 0;
    virtual void receive(int peer, std::uint64_t tag) = 0;
    /// Return false if the wait was cancelled.
    virtual bool wait_sent(std::chrono::milliseconds timeout) = 0;
    virtual bool wait_received(std::chrono::milliseconds timeout) = 0;
    /// Makes running waits of this message return false. Called by another thread.
    virtual void cancel() = 0;
  };

  /// The store over which the ranks exchange their addresses.
  class Store {
   public:
    virtual ~Store() = default;
    virtual void set(const std::string& key, std::string_view value) = 0;
    /// Waits for the key. The result is valid until the next call.
    virtual std::string_view get(const std::string& key) = 0;
    virtual void wait(const std::string& key, std::chrono::milliseconds timeout) = 0;
    virtual std::chrono::milliseconds timeout() const = 0;
  };

  struct Options {
    int rank = 0;
    int size = 0;
    const char* interface = nullptr;  ///< name of the network interface; null: that of `address`
    const char* address = nullptr;    ///< of this host, as the peers reach it
    Store* store = nullptr;           ///< used while the ranks connect
    std::chrono::milliseconds timeout{};
  };

  virtual ~Mesh() = default;
  virtual std::unique_ptr<Message> message(void* data, std::size_t nbytes) = 0;
};

/// Connects the ranks. Collective. Throws Error(not_supported) if libacc_gloo.so cannot be loaded,
/// and what Gloo or the store throws.
std::unique_ptr<Mesh> connect_mesh(const Mesh::Options& options);

// The entry point of libacc_gloo.so.
inline constexpr int kMeshVersion = 1;  ///< to be raised with any change of Mesh
inline constexpr const char* kMeshEntry = "acc_gloo_mesh";
using MeshEntry = Mesh* (*)(int version, const Mesh::Options& options);  ///< null: another version

}  // namespace acc::collectives
