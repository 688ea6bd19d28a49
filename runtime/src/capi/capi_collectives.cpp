// SPDX-License-Identifier: Apache-2.0
// The C interface of collectives on arrays (acc/collectives.h).
#include "acc/base/token.hpp"
#include "acc/collectives.h"
#include "acc/rendezvous/hash_store.hpp"
#include "capi/capi.hpp"
#include "tensors/tensor_group.hpp"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

struct acc_group {
  acc::tensors::TensorGroup value;
  std::chrono::milliseconds timeout;
  acc::OwnProcess owner = {};
};
struct acc_work {
  acc::tensors::WorkPtr value;
  acc::tensors::TensorGroup* group;
  acc::OwnProcess owner = {};
};

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;
using acc::kernels::Element;
using acc::kernels::ElementOp;
using acc::tensors::Input;
using acc::tensors::Issue;
using acc::tensors::Output;
using acc::tensors::WorkPtr;

/// The caller's store. Its functions are called on the thread that makes the group.
class CallersStore final : public acc::rendezvous::HashStore {
 public:
  explicit CallersStore(const acc_group_config& config) : config_(config) {}

  void set(std::string_view key, std::string_view value) override {
    int status = 0;
    call_program(config_.context, [&] {
      status = config_.set(config_.context, std::string(key).c_str(), value.data(), value.size());
    });
    if (is_failed(status)) {
      throw Error(Errc::connection, "the caller's store failed to set " + std::string(key));
    }
  }
  std::string get(std::string_view key, Milliseconds) override {
    std::string value(256, '\0');  // the only value is the name of a socket
    std::size_t nbytes = 0;
    int status = 0;
    call_program(config_.context, [&] {
      status = config_.get(config_.context, std::string(key).c_str(), value.data(), value.size(),
                           &nbytes);
    });
    if (is_failed(status) || nbytes > value.size()) {
      throw Error(Errc::connection, "the caller's store failed to get " + std::string(key));
    }
    value.resize(nbytes);
    return value;
  }

 private:
  /// A function with acc_callback_context has no status.
  [[nodiscard]] bool is_failed(int status) const {
    return status != 0 && config_.context != acc_callback_context();
  }

  const acc_group_config& config_;
};

acc::collectives::GroupSpec spec_of(const acc_group_config& config, acc::rendezvous::Store& store) {
  acc::collectives::GroupSpec spec;
  spec.name = string_of(config.name, "config.name");
  spec.rank = config.rank;
  spec.store = &store;
  spec.timeout = std::chrono::milliseconds(config.timeout_ms);
  if (config.num_ranks < 1 || config.rank < 0 || config.rank >= config.num_ranks) {
    throw Error(Errc::invalid_argument, "config: rank " + std::to_string(config.rank) + " of " +
                                            std::to_string(config.num_ranks) + " ranks");
  }
  for (int r = 0; r < config.num_ranks; ++r) {
    spec.ranks.push_back(config.ranks == nullptr ? r : config.ranks[r]);
  }
  if (config.num_ranks > 1) {
    required(config.set, "config.set");
    required(config.get, "config.get");
  }
  if (config.timeout_ms <= 0) {
    throw Error(Errc::invalid_argument,
                "config.timeout_ms is " + std::to_string(config.timeout_ms) + ", expected > 0");
  }
  if (config.secret != nullptr && *config.secret != '\0') {
    if (!acc::is_token(config.secret)) {
      throw Error(Errc::invalid_argument, "config.secret is not 32 hexadecimal digits");
    }
    spec.secret = acc::collectives::hash_key(config.secret);
  }
  return spec;
}

/// Issues a call and waits for it, or gives its handle to the caller.
template <typename Call>
acc_status issue(acc_group* group, std::int64_t timeout_ms, acc_work** work, const Call& call) {
  return guarded([&] {
    acc_group& owner = required(group, "group");
    const Issue how{
        .timeout = timeout_ms > 0 ? std::chrono::milliseconds(timeout_ms) : owner.timeout,
        .detached = work != nullptr};
    const WorkPtr issued = call(owner.value, how);
    if (work == nullptr) {
      owner.value.wait(*issued, std::nullopt);
    } else {
      *work = new acc_work{issued, &owner.value};
    }
  });
}

/// Issues a collective. With wrong arguments it counts as refused by this rank.
template <typename Call>
acc_status collective(acc_group* group, std::int64_t timeout_ms, acc_work** work,
                      const Call& call) {
  return issue(group, timeout_ms, work, [&](auto& to, Issue how) {
    try {
      return call(to, how);
    } catch (...) {
      to.refuse();
      throw;
    }
  });
}

/// Returns `data`, which may be NULL if it has no bytes.
template <typename T>
T* array_of(T* data, std::size_t nbytes, const char* name) {
  if (nbytes != 0) {
    required(static_cast<const char*>(static_cast<const void*>(data)), name);
  }
  return data;
}

Element element_of(std::int32_t element) {
  if (element < 0 || element >= acc::kernels::kNumElements) {
    throw Error(Errc::invalid_argument, "unknown element type " + std::to_string(element));
  }
  return static_cast<Element>(element);
}

ElementOp op_of(std::int32_t op, Element element) {
  if (op < 0 || op >= acc::kernels::kNumElementOps) {
    throw Error(Errc::invalid_argument, "unknown operation " + std::to_string(op));
  }
  const auto known = static_cast<ElementOp>(op);
  if (!is_defined(element, known)) {
    throw Error(Errc::invalid_argument, "no " + std::string(to_string(known)) + " of " +
                                            std::string(to_string(element)) + " values");
  }
  return known;
}

/// nbytes: by rank, or one for all.
template <typename Part, typename Pointer>
std::vector<Part> parts_of(const acc::tensors::TensorGroup& group, Pointer const* pointers,
                           const std::size_t* nbytes, std::size_t nbytes_of_all, const char* name) {
  std::vector<Part> parts;
  for (int r = 0; r < group.size(); ++r) {
    const std::size_t size = nbytes == nullptr ? nbytes_of_all : nbytes[r];
    using Byte = decltype(Part{}.data);
    parts.push_back(
        {static_cast<Byte>(array_of((&required(pointers, name))[r], size, name)), size});
  }
  return parts;
}

}  // namespace

acc_status acc_group_create(const acc_group_config* config, acc_group** group) noexcept {
  return create(group, "group", [&] {
    required(config, "config");
    const acc_group_config known =
        config_of(config, acc_group_config ACC_GROUP_CONFIG_INITIALIZER, "config");
    CallersStore store(known);
    return acc_group{acc::tensors::TensorGroup(spec_of(known, store)),
                     std::chrono::milliseconds(known.timeout_ms)};
  });
}

void acc_group_free(acc_group* group) noexcept {
  release(group);
}

acc_status acc_group_abort(acc_group* group, const char* reason) noexcept {
  return guarded([&] { required(group, "group").value.abort(string_of(reason, "reason")); });
}

acc_status acc_group_check(acc_group* group) noexcept {
  return guarded([&] {
    if (const auto failure = required(group, "group").value.failure()) {
      throw Error(Errc::collective, *failure);
    }
  });
}

acc_status acc_group_refuse(acc_group* group) noexcept {
  return guarded([&] { required(group, "group").value.refuse(); });
}

acc_status acc_group_barrier(acc_group* group, std::int64_t timeout_ms, acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [](auto& to, Issue how) { return to.barrier(how); });
}

acc_status acc_group_all_reduce(acc_group* group, void* data, size_t numel, std::int32_t element,
                                std::int32_t op, std::int64_t timeout_ms,
                                acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    const Element type = element_of(element);
    return to.all_reduce(how, array_of(data, numel, "data"), numel, type, op_of(op, type));
  });
}

acc_status acc_group_reduce(acc_group* group, void* data, size_t numel, std::int32_t element,
                            std::int32_t op, std::int32_t root, std::int64_t timeout_ms,
                            acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    const Element type = element_of(element);
    return to.reduce(how, array_of(data, numel, "data"), numel, type, op_of(op, type), root);
  });
}

acc_status acc_group_reduce_scatter(acc_group* group, const void* const* ins, void* out,
                                    size_t numel, std::int32_t element, std::int32_t op,
                                    std::int64_t timeout_ms, acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    const Element type = element_of(element);
    std::vector<const void*> inputs;
    for (const Input& in : parts_of<Input>(to, ins, nullptr, numel, "ins")) {
      inputs.push_back(in.data);
    }
    return to.reduce_scatter(how, std::move(inputs), array_of(out, numel, "out"), numel, type,
                             op_of(op, type));
  });
}

acc_status acc_group_broadcast(acc_group* group, void* data, size_t nbytes, std::int32_t root,
                               std::int64_t timeout_ms, acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    return to.broadcast(how, {static_cast<std::byte*>(array_of(data, nbytes, "data")), nbytes},
                        root);
  });
}

acc_status acc_group_all_gather(acc_group* group, const void* in, size_t in_nbytes,
                                void* const* outs, const size_t* out_nbytes,
                                std::int64_t timeout_ms, acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    required(out_nbytes, "out_nbytes");
    return to.all_gather(how,
                         {static_cast<const std::byte*>(array_of(in, in_nbytes, "in")), in_nbytes},
                         parts_of<Output>(to, outs, out_nbytes, 0, "outs"));
  });
}

acc_status acc_group_gather(acc_group* group, const void* in, void* const* outs, size_t nbytes,
                            std::int32_t root, std::int64_t timeout_ms, acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    return to.gather(how, {static_cast<const std::byte*>(array_of(in, nbytes, "in")), nbytes},
                     to.rank() == root ? parts_of<Output>(to, outs, nullptr, nbytes, "outs")
                                       : std::vector<Output>(),
                     root);
  });
}

acc_status acc_group_scatter(acc_group* group, const void* const* ins, void* out, size_t nbytes,
                             std::int32_t root, std::int64_t timeout_ms, acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    return to.scatter(
        how,
        to.rank() == root ? parts_of<Input>(to, ins, nullptr, nbytes, "ins") : std::vector<Input>(),
        {static_cast<std::byte*>(array_of(out, nbytes, "out")), nbytes}, root);
  });
}

acc_status acc_group_all_to_all(acc_group* group, const void* const* ins, const size_t* in_nbytes,
                                void* const* outs, const size_t* out_nbytes,
                                std::int64_t timeout_ms, acc_work** work) noexcept {
  return collective(group, timeout_ms, work, [&](auto& to, Issue how) {
    required(in_nbytes, "in_nbytes");
    required(out_nbytes, "out_nbytes");
    return to.all_to_all(how, parts_of<Input>(to, ins, in_nbytes, 0, "ins"),
                         parts_of<Output>(to, outs, out_nbytes, 0, "outs"));
  });
}

acc_status acc_group_send(acc_group* group, const void* data, size_t nbytes, std::int32_t to,
                          std::int32_t tag, std::int64_t timeout_ms, acc_work** work) noexcept {
  return issue(group, timeout_ms, work, [&](auto& owner, Issue how) {
    return owner.send(how, {static_cast<const std::byte*>(array_of(data, nbytes, "data")), nbytes},
                      to, tag);
  });
}

acc_status acc_group_receive(acc_group* group, void* data, size_t nbytes, std::int32_t from,
                             std::int32_t tag, std::int64_t timeout_ms, std::int32_t* source,
                             acc_work** work) noexcept {
  WorkPtr received;
  const acc_status status = issue(group, timeout_ms, work, [&](auto& owner, Issue how) {
    received = owner.receive(how, {static_cast<std::byte*>(array_of(data, nbytes, "data")), nbytes},
                             from, tag);
    return received;
  });
  if (status == ACC_OK && work == nullptr && source != nullptr) {
    *source = received->source;
  }
  return status;
}

acc_status acc_work_wait(acc_work* work, std::int64_t timeout_ms) noexcept {
  return guarded([&] {
    const acc_work& waited = required(work, "work");
    waited.group->wait(*waited.value, timeout_ms > 0
                                          ? std::optional(std::chrono::milliseconds(timeout_ms))
                                          : std::nullopt);
  });
}

int acc_work_done(const acc_work* work) noexcept {
  return work == nullptr ? -1 : static_cast<int>(work->value->done.load());
}

int acc_work_source(const acc_work* work) noexcept {
  return work == nullptr || !work->value->done ? -1 : work->value->source;
}

void acc_work_free(acc_work* work) noexcept {
  release(work);
}
