// SPDX-License-Identifier: Apache-2.0
#include "standin/nccl/communicator.hpp"

#include "standin/cuda/standin.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string_view>
#include <vector>

namespace standin::nccl {

int version() {
#ifdef ACC_STANDIN_NCCL_OLD
  const int built = 21805;
#else
  const int built = 22809;
#endif
  const char* asked = std::getenv("ACC_STANDIN_NCCL_VERSION");
  return asked == nullptr ? built : std::atoi(asked);
}

void log(const std::string& line) {
  static std::mutex mutex;
  if (const char* path = std::getenv("ACC_STANDIN_NCCL_LOG")) {
    const std::lock_guard lock(mutex);
    std::ofstream(path, std::ios::app) << line + "\n" << std::flush;
  }
}

std::string& last_error() {
  static std::string text;
  return text;
}

namespace {

constexpr int kSharingVersion = 23000;

std::array<unsigned char, 16> gpu_uuid(int device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    die("no device " + std::to_string(device));
  }
  std::array<unsigned char, 16> uuid{};
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

/// True if ACC_STANDIN_NCCL_FAIL=RANK:NUMBER selects this collective: that rank's collective of
/// that number fails in the background, in every communicator.
bool fails_here(int rank, std::uint64_t number) {
  int victim = -1;
  unsigned long at = 0;
  const char* text = std::getenv("ACC_STANDIN_NCCL_FAIL");
  return text != nullptr && std::sscanf(text, "%d:%lu", &victim, &at) == 2 && rank == victim &&
         number == at;
}

bool sharing_is_on() {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version() >= kSharingVersion && text != nullptr && std::string_view(text) == "1";
}

}  // namespace
}  // namespace standin::nccl

using namespace standin::nccl;

ncclComm::ncclComm(std::string name, int rank, int size, int gpu, const Options& chosen)
    : shared(std::make_shared<Shared>(std::move(name), rank, size)), device(gpu), options(chosen) {
  RankPlace& own = shared->place(rank);
  own.gpu = gpu_uuid(device);
  own.came = 1;
}

bool ncclComm::two_ranks_share_a_gpu() const {
  for (int a = 0; a < shared->size; ++a) {
    for (int b = 0; b < a; ++b) {
      if (shared->place(a).gpu == shared->place(b).gpu) {
        return true;
      }
    }
  }
  return false;
}

ncclResult_t ncclComm::poll_connect() {
  for (int r = 0; r < shared->size; ++r) {
    if (shared->place(r).came == 0) {
      return ncclInProgress;
    }
  }
  if (two_ranks_share_a_gpu() && !sharing_is_on()) {
    last_error() = "Duplicate GPU detected";
    return ncclInvalidUsage;
  }
  connected = true;
  return ncclSuccess;
}

ncclResult_t ncclComm::poll_split() {
  std::vector<std::pair<int, int>> members;  // key, rank
  const std::size_t slot = (splits - 1) % kMaxSplits;
  const int color = shared->place(shared->rank).choices[slot].color;
  for (int r = 0; r < shared->size; ++r) {
    if (shared->place(r).splits < splits) {
      return ncclInProgress;
    }
    const SplitChoice& choice = shared->place(r).choices[slot];
    if (choice.color == color) {
      members.emplace_back(choice.key, r);
    }
  }
  std::sort(members.begin(), members.end());
  const auto me = std::find_if(members.begin(), members.end(),
                               [this](const auto& m) { return m.second == shared->rank; });
  ncclComm* child = nullptr;
  if (color != NCCL_SPLIT_NOCOLOR) {
    const std::string name =
        shared->board.name() + "-" + std::to_string(splits) + "-" + std::to_string(color);
    child = new ncclComm(name, static_cast<int>(me - members.begin()),
                         static_cast<int>(members.size()), device, split->child_options);
  }
  __atomic_store_n(split->child, child, __ATOMIC_RELEASE);
  split.reset();
  return ncclSuccess;
}

ncclResult_t ncclComm::poll_registration() {
  for (int r = 0; r < shared->size; ++r) {
    if (shared->place(r).windows < windows) {
      return ncclInProgress;
    }
  }
  add(registration->memory,
      {registration->nbytes, registration->symmetric ? windows : std::uint64_t{0}});
  *registration->window = registration->memory;
  registration.reset();
  return ncclSuccess;
}

ncclResult_t ncclComm::poll() {
  if (state != ncclInProgress) {
    return state;
  }
  if (--polls_left > 0) {
    return state;
  }
  if (!connected) {
    state = poll_connect();
  } else if (split) {
    state = poll_split();
  } else if (registration) {
    state = poll_registration();
  } else if (!finalizing || shared->done == issued) {
    state = ncclSuccess;
  }
  return state;
}

void ncclComm::add(std::byte* memory, const Registered& entry) {
  const bool overlaps = std::ranges::any_of(registered, [&](const auto& each) {
    return entry.window != 0 && each.second.window != 0 && each.first < memory + entry.nbytes &&
           memory < each.first + each.second.nbytes;
  });
  if (overlaps) {
    die("two symmetric windows of one communicator overlap");
  }
  registered.emplace(memory, entry);
}

std::multimap<std::byte*, ncclComm::Registered>::const_iterator ncclComm::find(
    const void* address, std::size_t nbytes) const {
  const auto* const begin = static_cast<const std::byte*>(address);
  const auto next = std::ranges::find_if(registered, [&](const auto& each) {
    return begin >= each.first && begin + nbytes <= each.first + each.second.nbytes;
  });
  return next;
}

WindowPlace ncclComm::place_of(const void* address, std::size_t nbytes) const {
  const auto found = find(address, nbytes);
  if (found == registered.end() || found->second.window == 0) {
    return {};
  }
  const auto offset = static_cast<const std::byte*>(address) - found->first;
  return {found->second.window, static_cast<std::uint64_t>(offset)};
}

const char* ncclComm::path_of(const Call& call, const void* send, const void* receive) const {
  if (call.send.window != 0 && call.receive.window != 0) {
    const bool by_engine = options.zero_ctas && call.kind == Kind::all_gather;
    return by_engine ? "copy engine" : "symmetric kernel";
  }
  const bool registers = find(send, 1) != registered.end() && find(receive, 1) != registered.end();
  return registers ? "registered" : "plain";
}

ncclResult_t ncclComm::enqueue(Call call, const void* send, void* receive, cudaStream_t stream) {
  int stream_device = -1;
  if (standin::stream_device(stream, &stream_device) != cudaSuccess || stream_device != device) {
    last_error() = "the stream is of another device";
    return ncclInvalidArgument;
  }
  // Peers read the input of a reduction and write the output of a gather, at this rank's offset.
  const bool scatters = call.kind == Kind::reduce_scatter;
  const bool gathers = call.kind == Kind::all_gather;
  const auto ranks = static_cast<std::size_t>(shared->size);
  const std::size_t nbytes = call.count * nbytes_of(call.dtype);
  call.send = place_of(send, scatters ? nbytes * ranks : nbytes);
  call.receive = place_of(receive, gathers ? nbytes * ranks : nbytes);
  (gathers ? call.send : call.receive).offset = 0;
  log(to_string(call.kind) + " " + std::to_string(nbytes) + " " + path_of(call, send, receive));
  const std::uint64_t number = ++issued;
  if (fails_here(shared->rank, number)) {
    shared->failed = true;
    state = ncclRemoteError;
    last_error() = "connection closed by the stand-in";
  } else if (number == 1 && !options.blocking) {
    state = ncclInProgress;  // like the real NCCL, which connects at the first collective
    polls_left = 2;
  }
  auto collective = std::make_shared<Collective>(shared, number, call, send, receive);
  if (standin::enqueue_poll(stream, [collective] { return collective->step(); }) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  return state == ncclRemoteError ? ncclSuccess : state;
}
