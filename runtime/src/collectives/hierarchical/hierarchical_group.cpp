// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical/hierarchical_group.hpp"

#include "acc/base/error.hpp"
#include "collectives/no_work.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <utility>

// Layout of gathered memory: [hosts, locals, shard]. Rank (host, local) owns shard host * locals +
// local, so the shards of one column lie `locals` shards apart, and the shards of one host are
// contiguous.
namespace acc::collectives {
namespace {

/// Spec of the group of this rank's host.
GroupSpec local_part(const GroupSpec& spec, int ranks_per_host) {
  const int host = spec.rank / ranks_per_host;
  GroupSpec part = spec;
  part.name = fmt::format("{}/host{}", spec.name, host);
  part.rank = spec.rank % ranks_per_host;
  const auto first = spec.ranks.begin() + host * ranks_per_host;
  part.ranks.assign(first, first + ranks_per_host);
  return part;
}

/// Spec of the group of the ranks with this rank's local rank on all hosts.
GroupSpec column_part(const GroupSpec& spec, int ranks_per_host) {
  const int place = spec.rank % ranks_per_host;
  GroupSpec part = spec;
  part.name = fmt::format("{}/column{}", spec.name, place);
  part.rank = spec.rank / ranks_per_host;
  part.ranks.clear();
  for (std::size_t r = static_cast<std::size_t>(place); r < spec.ranks.size();
       r += static_cast<std::size_t>(ranks_per_host)) {
    part.ranks.push_back(spec.ranks[r]);
  }
  return part;
}

}  // namespace

/// A collective that consists of several steps. Only the first step is issued at once. The steps
/// belong to different groups: a failure of any step aborts the owner and with it both of them, so
/// that every rank reports the same first cause.
class HierarchicalGroup::Steps final : public Work {
 public:
  /// number: of the call of HierarchicalGroup::steps.
  Steps(HierarchicalGroup* owner, std::uint64_t number, WorkPtr first, std::vector<Step> rest)
      : owner_(owner),
        number_(number),
        rest_(std::move(rest)),
        first_(first),
        current_(std::move(first)) {}

  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

  void wait() override {
    guarded([this] {
      // A rank of another host may leave only after it has this host's part of earlier sums.
      owner_->begin_numbered(number_);
      current_->wait();
      while (next_ < rest_.size()) {
        issue_next();
        current_->wait();
      }
    });
  }
  /// Peers read this rank's input in the first step. In all_reduce they also read its reduced
  /// slice, in the last step.
  void wait_released() override {
    guarded([this] { first_->wait_released(); });
    wait();
    guarded([this] { current_->wait_released(); });
  }

  /// Issues the next step if it is numbered and can begin. Does not block.
  void advance() {
    if (is_next_numbered() && current_->is_complete()) {
      guarded([this] { issue_next(); });
    }
  }
  /// Issues the next step if it is numbered, after waiting for the step before it.
  void begin_numbered() {
    if (is_next_numbered()) {
      current_->wait();
      issue_next();
    }
  }

 private:
  [[nodiscard]] bool is_next_numbered() const {
    return next_ < rest_.size() && rest_[next_].is_numbered;
  }
  void issue_next() { current_ = rest_[next_++].issue(); }

  template <typename Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      owner_->abort(error.what(), error.code());
      throw;
    }
  }

  HierarchicalGroup* owner_;
  std::uint64_t number_;
  std::vector<Step> rest_;  ///< captures own intermediate buffers, so these outlive the steps' work
  WorkPtr first_;
  WorkPtr current_;
  std::size_t next_ = 0;  ///< index in `rest_` of the next step to issue
};

// Keeps a weak reference only: a work that the caller has dropped is not waited for.
WorkPtr HierarchicalGroup::steps(WorkPtr first, std::vector<Step> rest) {
  auto work = std::make_shared<Steps>(this, ++issued_, std::move(first), std::move(rest));
  std::erase_if(unfinished_, [](const auto& each) { return each.expired(); });
  unfinished_.push_back(work);
  return work;
}

void HierarchicalGroup::begin_numbered(std::uint64_t end) {
  for (const auto& each : unfinished_) {
    const auto work = each.lock();
    if (work && work->number() < end) {
      work->begin_numbered();
    }
  }
}

/// Completes all works that were issued before. Needed before a collective whose first step may
/// block peers: a peer on another host may wait for a work whose next step this rank issues only
/// when it waits for that work itself, and the two waits would form a cycle.
void HierarchicalGroup::finish_earlier() {
  for (const auto& each : std::exchange(unfinished_, {})) {
    if (const auto work = each.lock()) {
      work->wait();
    }
  }
}

HierarchicalGroup::HierarchicalGroup(GroupSpec spec, int ranks_per_host, const std::string& address)
    : spec_(std::move(spec)),
      local_(local_part(spec_, ranks_per_host), true),
      column_(column_part(spec_, ranks_per_host), address) {}

std::string HierarchicalGroup::describe() const {
  return fmt::format("{} x {}", local_.describe(), column_.describe());
}

BufferPtr HierarchicalGroup::allocate_gathered(std::size_t nbytes) {
  auto buffer = local_.allocate_common(nbytes);
  gathered_[buffer->data()] = nullptr;
  return buffer;
}

BufferPtr HierarchicalGroup::allocate_contribution(std::size_t nbytes) {
  return local_.allocate_contribution(nbytes);
}

BufferPtr HierarchicalGroup::renew(const BufferPtr& old) {
  auto buffer = local_.renew(old);
  if (buffer->sharers() > 1) {
    gathered_[buffer->data()] = nullptr;
  }
  return buffer;
}

void HierarchicalGroup::release_gathered(const BufferPtr& gathered) {
  gathered_.at(gathered->data()) = local_.barrier();
}

WorkPtr HierarchicalGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  return all_gather_coded(shard, out, shard_nbytes, DType::byte, {});
}

WorkPtr HierarchicalGroup::all_gather_coded(const void* shard, void* out, std::size_t shard_numel,
                                            DType dtype, BlockCode code) {
  auto* const to = static_cast<std::byte*>(out);
  const Shards shards{shard_numel, dtype, code};
  const auto found = gathered_.find(to);
  return found != gathered_.end() ? gather_into_common(shard, to, shards, found->second)
                                  : gather_into_private(shard, to, shards);
}

WorkPtr HierarchicalGroup::gather_into_common(const void* shard, std::byte* out, Shards shards,
                                              WorkPtr& released) {
  // The buffer is shared: its old content may be overwritten only when all ranks of the host have
  // released it.
  if (released) {
    released->wait();
    released.reset();
  }
  const std::size_t nbytes = shards.numel * nbytes_of(shards.dtype);
  const auto place = [&](std::size_t host, std::size_t local) {
    return out + (host * locals() + local) * nbytes;
  };
  std::byte* const mine = place(host(), local_rank());
  if (!shards.code && mine != shard) {
    std::memcpy(mine, shard, nbytes);
  }
  std::vector<void*> places;
  for (std::size_t h = 0; h < hosts(); ++h) {
    places.push_back(place(h, local_rank()));
  }
  return steps(column_.gather_to(shards.code ? shard : mine, std::move(places), shards.numel,
                                 shards.dtype, shards.code),
               {{[this] { return local_.barrier(); }}});
}

WorkPtr HierarchicalGroup::gather_into_private(const void* shard, std::byte* out, Shards shards) {
  const std::size_t numel = locals() * shards.numel;
  std::byte* const block = out + host() * numel * nbytes_of(shards.dtype);
  return steps(local_.all_gather(shard, block, shards.numel * nbytes_of(shards.dtype)),
               {{[=, this] {
                 return column_.all_gather_coded(block, out, numel, shards.dtype, shards.code);
               }}});
}

/// Factor of a host's sum before it is sent. The sum may exceed the range of float16 although the
/// mean over all ranks does not. A power of two, so that nothing is rounded.
float HierarchicalGroup::host_scale(DType dtype) const {
  return dtype == DType::float16 ? 1.0F / static_cast<float>(std::bit_ceil(locals())) : 1.0F;
}

WorkPtr HierarchicalGroup::reduce_scatter(const void* in, float* out, std::size_t shard_numel,
                                          DType dtype, ReduceOptions options) {
  // partial: [hosts, shard_numel], this host's sums for the ranks of the column. The column then
  // sums them over hosts, in `dtype`; scale and accumulate apply only there.
  const float part = host_scale(dtype);
  auto partial = std::make_shared<std::vector<float>>(shard_numel * hosts());
  auto rounded = std::make_shared<std::vector<std::byte>>();
  std::vector<std::size_t> firsts;
  std::vector<float*> outs;
  for (std::size_t h = 0; h < hosts(); ++h) {
    firsts.push_back((h * locals() + local_rank()) * shard_numel);
    outs.push_back(partial->data() + h * shard_numel);
  }
  return steps(local_.reduce_slices(in, shard_numel, dtype, std::move(firsts), std::move(outs),
                                    shard_numel, {.scale = part}),
               {{[=, this, number = column_.reserve()] {
                   const void* sums = partial->data();
                   if (dtype != DType::float32 && !options.code) {
                     rounded->resize(partial->size() * nbytes_of(dtype));
                     kernels::cast(sums, DType::float32, rounded->data(), dtype, partial->size());
                     sums = rounded->data();
                   }
                   return column_.reduce_scatter(number, sums, out, shard_numel,
                                                 options.code ? DType::float32 : dtype,
                                                 {.scale = options.scale / part,
                                                  .accumulate = options.accumulate,
                                                  .code = options.code});
                 },
                 true}});
}

WorkPtr HierarchicalGroup::all_reduce(float* data, std::size_t numel, DType dtype, float scale) {
  return all_reduce_coded(data, numel, dtype, scale, {});
}

WorkPtr HierarchicalGroup::all_reduce_coded(float* data, std::size_t numel, DType dtype,
                                            float scale, BlockCode code) {
  const std::size_t width = numel / locals();
  const std::uint32_t number = column_.reserve();
  const float part = host_scale(dtype);
  const float rest = scale / part;
  // Not divisible by the ranks of a host: every rank sends the whole array through its column.
  if (width * locals() != numel) {
    return steps(
        local_.all_reduce(data, numel, dtype, part),
        {{[=, this] { return column_.all_reduce(number, data, numel, dtype, rest, code); }, true}});
  }
  auto mine = std::make_shared<std::vector<float>>(width);
  float* const slice = data + width * local_rank();
  return steps(
      local_.reduce_scatter(data, mine->data(), width, DType::float32, {.scale = part}),
      {{[=, this] { return column_.all_reduce(number, mine->data(), width, dtype, rest, code); },
        true},
       {[=, this] {
         std::memcpy(slice, mine->data(), width * sizeof(float));
         return local_.all_gather(slice, data, width * sizeof(float));
       }}});
}

WorkPtr HierarchicalGroup::all_reduce(std::span<double> data, ReduceOp op) {
  finish_earlier();
  return steps(local_.all_reduce(data, op), {{[=, this] { return column_.all_reduce(data, op); }}});
}

WorkPtr HierarchicalGroup::broadcast(void* data, std::size_t nbytes, int root) {
  finish_earlier();
  const int root_host = root / local_.size();
  const int root_local = root % local_.size();
  // The root's column brings the data to one rank per host, which then broadcasts it on its host.
  WorkPtr first = std::make_shared<NoWork>();
  if (local_.rank() == root_local) {
    first = column_.broadcast(data, nbytes, root_host);
  }
  return steps(first, {{[=, this] { return local_.broadcast(data, nbytes, root_local); }}});
}

WorkPtr HierarchicalGroup::barrier() {
  finish_earlier();
  // The first local barrier makes the columns wait for every rank of this host, the second makes
  // every rank of this host wait for the columns.
  return steps(local_.barrier(),
               {{[this] { return column_.barrier(); }}, {[this] { return local_.barrier(); }}});
}

void HierarchicalGroup::progress() {
  local_.progress();
  for (const auto& each : unfinished_) {
    if (const auto work = each.lock()) {
      work->advance();
    }
  }
}

std::optional<std::string> HierarchicalGroup::failure() const {
  auto local = local_.failure();
  return local ? local : column_.failure();
}

void HierarchicalGroup::abort(const std::string& reason, Errc code) noexcept {
  local_.abort(reason, code);
  column_.abort(reason, code);
}

}  // namespace acc::collectives
