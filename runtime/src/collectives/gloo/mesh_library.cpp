// SPDX-License-Identifier: Apache-2.0
// libacc_gloo.so: Mesh on Gloo's TCP transport.
#include "collectives/gloo/mesh.hpp"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <vector>

namespace acc::collectives {
namespace {

class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  explicit StoreForGloo(Mesh::Store& store) : store_(store) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string_view value = store_.get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, store_.timeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) {
      store_.wait(key, timeout);
    }
  }

 private:
  Mesh::Store& store_;
};

class GlooMessage final : public Mesh::Message {
 public:
  explicit GlooMessage(std::unique_ptr<gloo::transport::UnboundBuffer> buffer)
      : buffer_(std::move(buffer)) {}
  void send(int peer, std::uint64_t tag) override { buffer_->send(peer, tag); }
  void receive(int peer, std::uint64_t tag) override { buffer_->recv(peer, tag); }
  bool wait_sent(std::chrono::milliseconds timeout) override { return buffer_->waitSend(timeout); }
  bool wait_received(std::chrono::milliseconds timeout) override {
    return buffer_->waitRecv(timeout);
  }
  void cancel() override {
    buffer_->abortWaitRecv();
    buffer_->abortWaitSend();
  }

 private:
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

class GlooMesh final : public Mesh {
 public:
  explicit GlooMesh(const Options& options)
      : context_(std::make_shared<gloo::rendezvous::Context>(options.rank, options.size)) {
    gloo::transport::tcp::attr attributes;
    if (options.interface != nullptr) {
      attributes.iface = options.interface;
    } else {
      attributes.hostname = options.address;
    }
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_->setTimeout(options.timeout);
    StoreForGloo store(*options.store);
    context_->connectFullMesh(store, device);
  }
  std::unique_ptr<Message> message(void* data, std::size_t nbytes) override {
    return std::make_unique<GlooMessage>(context_->createUnboundBuffer(data, nbytes));
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace
}  // namespace acc::collectives

extern "C" __attribute__((visibility("default"))) acc::collectives::Mesh* acc_gloo_mesh(
    int version, const acc::collectives::Mesh::Options& options) {
  using namespace acc::collectives;
  return version == kMeshVersion ? new GlooMesh(options) : nullptr;
}
