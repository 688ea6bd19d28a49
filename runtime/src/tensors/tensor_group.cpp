// SPDX-License-Identifier: Apache-2.0
#include "tensors/tensor_group.hpp"

#include "acc/base/error.hpp"
#include "kernels/stream_copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace acc::tensors {
namespace {

using collectives::ShmChannel;
using kernels::Element;
using kernels::ElementOp;
using kernels::nbytes_of;

// Sums of at least this many bytes are divided among the ranks. It costs one more round of waiting
// and saves arithmetic and memory traffic.
constexpr std::size_t kSlicedNbytes = std::size_t{64} << 10;
constexpr std::size_t kCacheLine = 64;

constexpr std::size_t num_pieces(std::size_t nbytes, std::size_t piece) {
  return std::max<std::size_t>(1, (nbytes + piece - 1) / piece);
}

// Results of at least this many bytes are written past the caches, which could not hold them.
constexpr std::size_t kStreamedNbytes = std::size_t{8} << 20;

/// Copies a part of a result of `whole` bytes.
void copy_result(void* to, const void* from, std::size_t nbytes, std::size_t whole) {
  if (nbytes == 0 || to == from) {
    return;
  }
  if (whole >= kStreamedNbytes) {
    kernels::stream_copy(to, from, nbytes);
  } else {
    std::memcpy(to, from, nbytes);
  }
}

/// Throws if two of the results share memory, or if an input shares memory with a result, unless
/// both are the same memory at `place`.
void check_apart(const char* call, std::vector<Output> outs, const std::vector<Input>& ins,
                 const std::byte* place) {
  const auto end = [](const auto& part) -> const std::byte* { return part.data + part.nbytes; };
  std::erase_if(outs, [](const Output& out) { return out.nbytes == 0; });
  std::ranges::sort(outs, std::less<>(), &Output::data);
  for (std::size_t i = 1; i < outs.size(); ++i) {
    if (end(outs[i - 1]) > outs[i].data) {
      throw Error(Errc::invalid_argument,
                  fmt::format("{}: two results, of {} and {} bytes, share memory", call,
                              outs[i - 1].nbytes, outs[i].nbytes));
    }
  }
  for (const Input& in : ins) {
    // The results are apart, so their ends are in order too.
    auto out = std::ranges::upper_bound(outs, in.data, std::less<>(), end);
    for (; in.nbytes != 0 && out != outs.end() && out->data < end(in); ++out) {
      if (in.data != out->data || in.nbytes != out->nbytes || in.data != place) {
        throw Error(Errc::invalid_argument,
                    fmt::format("{}: an input of {} bytes shares memory with a result of {} bytes",
                                call, in.nbytes, out->nbytes));
      }
    }
  }
}

/// Throws unless each part has `nbytes` bytes.
template <typename Part>
void check_equal(const char* call, const char* what, const std::vector<Part>& parts,
                 std::size_t nbytes) {
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].nbytes != nbytes) {
      throw Error(Errc::invalid_argument,
                  fmt::format("{}: the {} of rank {} has {} bytes, expected {}", call, what, r,
                              parts[r].nbytes, nbytes));
    }
  }
}

}  // namespace

TensorGroup::TensorGroup(collectives::GroupSpec spec)
    : channel_(std::move(spec)), staging_(channel_), mailbox_(channel_) {}

TensorGroup::~TensorGroup() {
  if (!queue_.is_idle() || !mailbox_.is_idle()) {
    abort(fmt::format("rank {} destroyed {} while calls were under way",
                      channel_.global_rank(rank()), staging_.describe()));
  }
}

std::vector<int> TensorGroup::all_ranks() const {
  std::vector<int> ranks(index(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void TensorGroup::check_rank(int rank, const char* what) const {
  if (rank < 0 || rank >= size()) {
    throw Error(
        Errc::invalid_argument,
        fmt::format("{} is {}, expected a rank of the group (0..{})", what, rank, size() - 1));
  }
}

void TensorGroup::check_peer(int rank, int tag, const char* what) const {
  check_rank(rank, what);
  if (rank == this->rank()) {
    throw Error(Errc::invalid_argument, fmt::format("{} is {}, this rank itself", what, rank));
  }
  if (tag < 0) {
    throw Error(Errc::invalid_argument, fmt::format("the tag is {}, expected at least 0", tag));
  }
}

void TensorGroup::check_count(std::size_t count, const char* call, const char* what) const {
  if (count != index(size())) {
    throw Error(Errc::invalid_argument,
                fmt::format("{}: {} {} for {} ranks", call, count, what, size()));
  }
}

void TensorGroup::check_nbytes(std::size_t nbytes, const char* call) const {
  constexpr std::size_t kAddressable = PTRDIFF_MAX;
  if (nbytes > kAddressable / 2 / index(size())) {
    throw Error(Errc::invalid_argument,
                fmt::format("{}: {} bytes for each of {} ranks are more than memory can hold", call,
                            nbytes, size()));
  }
}

std::size_t TensorGroup::checked_nbytes(std::size_t numel, Element element,
                                        const char* call) const {
  if (numel > PTRDIFF_MAX / nbytes_of(element)) {
    throw Error(Errc::invalid_argument, fmt::format("{}: {} x {} are more than memory can hold",
                                                    call, numel, to_string(element)));
  }
  check_nbytes(numel * nbytes_of(element), call);
  return numel * nbytes_of(element);
}

WorkPtr TensorGroup::issue(Issue how, Call call, std::function<void()> execute) {
  channel_.throw_if_aborted();
  call.refused = refused_;
  auto work = std::make_shared<Work>(how.timeout);
  queue_.push(
      work,
      [this, call, timeout = how.timeout, execute = std::move(execute)] {
        channel_.set_timeout(timeout);
        staging_.begin(call);
        execute();
      },
      how.detached);
  return work;
}

void TensorGroup::wait(const Work& work, std::optional<std::chrono::milliseconds> limit) {
  Deadline deadline;
  if (limit) {
    deadline = std::chrono::steady_clock::now() + *limit;
  }
  const bool is_message = dynamic_cast<const Mailbox::Message*>(&work) != nullptr;
  if (!(is_message ? mailbox_.wait(static_cast<const Mailbox::Message&>(work), deadline)
                   : queue_.wait(work, deadline))) {
    std::string reason =
        fmt::format("timeout: rank {} waited {} ms for a call of {}", channel_.global_rank(rank()),
                    limit->count(), staging_.describe());
    int late = -1;
    if (const int peer = channel_.awaited_by(rank()); peer >= 0) {
      late = channel_.global_rank(channel_.late_rank(peer).rank);
      reason += fmt::format(", in which rank {} is late", late);
    }
    channel_.abort(reason, late);
    throw Error(Errc::timeout, reason, late < 0 ? std::nullopt : std::optional(late));
  }
  if (work.error) {
    std::rethrow_exception(work.error);
  }
}

void TensorGroup::abort(const std::string& reason) noexcept {
  channel_.abort(reason);
  mailbox_.wake();
}

// --- moving bytes ---

void TensorGroup::write_piece(const std::vector<Input>& stream, std::size_t begin) {
  std::byte* to = staging_.next_piece();
  std::size_t room = Staging::kPiece;
  for (const Input& part : stream) {
    if (begin >= part.nbytes) {
      begin -= part.nbytes;
      continue;
    }
    const std::size_t length = std::min(room, part.nbytes - begin);
    kernels::stream_copy(to, part.data + begin, length);
    to += length;
    room -= length;
    begin = 0;
    if (room == 0) {
      break;
    }
  }
  staging_.post();
}

void TensorGroup::read_parts(const std::vector<Part>& parts, std::size_t begin) {
  // Begins with the next rank, so that the ranks do not all read from one rank at the same time.
  for (int i = 1; i < size() && !parts.empty(); ++i) {
    const int r = (rank() + i) % size();
    const Part& part = parts[index(r)];
    const std::size_t first = std::max(part.offset, begin);
    const std::size_t last = std::min(part.offset + part.nbytes, begin + Staging::kPiece);
    if (first < last) {
      copy_result(part.to + (first - part.offset), staging_.piece_of(r) + (first - begin),
                  last - first, part.nbytes);
    }
  }
}

void TensorGroup::move(const Movement& movement) {
  for (std::size_t i = 0; i < num_pieces(movement.longest, Staging::kPiece); ++i) {
    write_piece(movement.stream, i * Staging::kPiece);
    for (const int r : movement.compared) {
      if (i == 0) {
        staging_.piece_of(r);
      }
    }
    read_parts(movement.parts, i * Staging::kPiece);
    staging_.finish();
  }
}

WorkPtr TensorGroup::barrier(Issue how) {
  return issue(how, {.kind = Kind::barrier}, [this] { move({.compared = all_ranks()}); });
}

WorkPtr TensorGroup::broadcast(Issue how, Output data, int root) {
  check_rank(root, "root");
  check_nbytes(data.nbytes, "broadcast");
  return issue(how, {.kind = Kind::broadcast, .root = root, .count = data.nbytes},
               [this, data, root] {
                 Movement movement{.longest = data.nbytes, .compared = {root}};
                 if (rank() == root) {
                   movement.stream = {{data.data, data.nbytes}};
                 } else {
                   movement.parts.resize(index(size()));
                   movement.parts[index(root)] = {data.data, 0, data.nbytes};
                 }
                 move(movement);
               });
}

// A stream begins with its length, because only the sender knows whether it has the length that the
// receivers expect.
void TensorGroup::move_all_gather(Input in, const std::vector<Output>& outs) {
  const std::uint64_t length = in.nbytes;
  const std::vector<Input> stream = {{reinterpret_cast<const std::byte*>(&length), sizeof length},
                                     in};
  std::vector<Part> parts;
  std::size_t longest = 0;
  for (const Output& out : outs) {
    parts.push_back({out.data, sizeof length, out.nbytes});
    longest = std::max(longest, sizeof length + out.nbytes);
  }
  write_piece(stream, 0);
  for (int i = 1; i < size(); ++i) {
    const int r = (rank() + i) % size();
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, staging_.piece_of(r), sizeof theirs);
    if (theirs != outs[index(r)].nbytes) {
      staging_.fail(
          fmt::format("rank {} contributes {} bytes, rank {} expects {}", channel_.global_rank(r),
                      theirs, channel_.global_rank(rank()), outs[index(r)].nbytes),
          r);
    }
  }
  read_parts(parts, 0);
  copy_result(outs[index(rank())].data, in.data, in.nbytes, in.nbytes);
  staging_.finish();
  for (std::size_t begin = Staging::kPiece; begin < longest; begin += Staging::kPiece) {
    write_piece(stream, begin);
    read_parts(parts, begin);
    staging_.finish();
  }
}

WorkPtr TensorGroup::all_gather(Issue how, Input in, std::vector<Output> outs) {
  check_count(outs.size(), "all_gather", "outputs");
  for (const Output& out : outs) {
    check_nbytes(out.nbytes, "all_gather");
  }
  if (outs[index(rank())].nbytes != in.nbytes) {
    throw Error(Errc::invalid_argument,
                fmt::format("all_gather: the input has {} bytes, its place in the output has {}",
                            in.nbytes, outs[index(rank())].nbytes));
  }
  check_apart("all_gather", outs, {in}, outs[index(rank())].data);
  return issue(how, {.kind = Kind::all_gather, .count = in.nbytes},
               [this, in, outs = std::move(outs)] { move_all_gather(in, outs); });
}

WorkPtr TensorGroup::gather(Issue how, Input in, std::vector<Output> outs, int root) {
  check_rank(root, "root");
  check_nbytes(in.nbytes, "gather");
  if (rank() == root) {
    check_count(outs.size(), "gather", "outputs");
    check_equal("gather", "output", outs, in.nbytes);
    check_apart("gather", outs, {in}, outs[index(root)].data);
  }
  return issue(how, {.kind = Kind::gather, .root = root, .count = in.nbytes},
               [this, in, root, outs = std::move(outs)] {
                 if (rank() != root) {
                   move({.stream = {in}, .longest = in.nbytes, .compared = {root}});
                   return;
                 }
                 Movement movement{.longest = in.nbytes, .compared = all_ranks()};
                 for (const Output& out : outs) {
                   movement.parts.push_back({out.data, 0, in.nbytes});
                 }
                 copy_result(outs[index(root)].data, in.data, in.nbytes, in.nbytes);
                 move(movement);
               });
}

WorkPtr TensorGroup::scatter(Issue how, std::vector<Input> ins, Output out, int root) {
  check_rank(root, "root");
  check_nbytes(out.nbytes, "scatter");
  if (rank() == root) {
    check_count(ins.size(), "scatter", "inputs");
    check_equal("scatter", "input", ins, out.nbytes);
    check_apart("scatter", {out}, ins, ins[index(root)].data);
  }
  return issue(how, {.kind = Kind::scatter, .root = root, .count = out.nbytes},
               [this, out, root, ins = std::move(ins)] {
                 Movement movement{.longest = out.nbytes * index(size()), .compared = {root}};
                 if (rank() == root) {
                   movement.stream = ins;
                   copy_result(out.data, ins[index(root)].data, out.nbytes, out.nbytes);
                 } else {
                   movement.parts.resize(index(size()));
                   movement.parts[index(root)] = {out.data, out.nbytes * index(rank()), out.nbytes};
                 }
                 move(movement);
               });
}

// A stream begins with the sizes of its parts, by destination, because only the sender and the
// receiver know them.
void TensorGroup::move_all_to_all(const std::vector<Input>& ins, const std::vector<Output>& outs) {
  const std::size_t table_nbytes = index(size()) * sizeof(std::uint64_t);
  std::vector<std::uint64_t> table;
  for (const Input& in : ins) {
    table.push_back(in.nbytes);
  }
  std::vector<Input> stream = {{reinterpret_cast<const std::byte*>(table.data()), table_nbytes}};
  stream.insert(stream.end(), ins.begin(), ins.end());
  std::vector<Part> parts(index(size()));
  std::size_t longest = std::accumulate(table.begin(), table.end(), std::uint64_t{0});
  write_piece(stream, 0);
  for (int i = 1; i < size(); ++i) {
    const int r = (rank() + i) % size();
    std::memcpy(table.data(), staging_.piece_of(r), table_nbytes);
    const std::uint64_t sent = table[index(rank())];
    if (sent != outs[index(r)].nbytes) {
      staging_.fail(fmt::format("rank {} sends {} bytes to rank {}, which expects {}",
                                channel_.global_rank(r), sent, channel_.global_rank(rank()),
                                outs[index(r)].nbytes),
                    r);
    }
    const auto own = table.begin() + rank();
    parts[index(r)] = {outs[index(r)].data,
                       table_nbytes + std::accumulate(table.begin(), own, std::uint64_t{0}), sent};
    longest = std::max(longest, std::accumulate(table.begin(), table.end(), std::uint64_t{0}));
  }
  read_parts(parts, 0);
  const Input kept = ins[index(rank())];
  copy_result(outs[index(rank())].data, kept.data, kept.nbytes, kept.nbytes);
  staging_.finish();
  for (std::size_t begin = Staging::kPiece; begin < table_nbytes + longest;
       begin += Staging::kPiece) {
    write_piece(stream, begin);
    read_parts(parts, begin);
    staging_.finish();
  }
}

WorkPtr TensorGroup::all_to_all(Issue how, std::vector<Input> ins, std::vector<Output> outs) {
  check_count(ins.size(), "all_to_all", "inputs");
  check_count(outs.size(), "all_to_all", "outputs");
  for (int r = 0; r < size(); ++r) {
    check_nbytes(ins[index(r)].nbytes, "all_to_all");
    check_nbytes(outs[index(r)].nbytes, "all_to_all");
  }
  if (ins[index(rank())].nbytes != outs[index(rank())].nbytes) {
    throw Error(Errc::invalid_argument,
                fmt::format("all_to_all: rank {} sends {} bytes to itself and expects {}", rank(),
                            ins[index(rank())].nbytes, outs[index(rank())].nbytes));
  }
  const bool in_place = ins[index(rank())].data == outs[index(rank())].data;
  check_apart("all_to_all", outs, ins, in_place ? outs[index(rank())].data : nullptr);
  return issue(
      how, {.kind = Kind::all_to_all},
      [this, ins = std::move(ins), outs = std::move(outs)] { move_all_to_all(ins, outs); });
}

// --- sums ---

void TensorGroup::sum_on_every_rank(std::byte* data, std::size_t numel, Element element,
                                    ElementOp op) {
  const std::size_t nbytes = numel * nbytes_of(element);
  std::vector<const void*> sources(index(size()));
  for (std::size_t i = 0; i < num_pieces(nbytes, Staging::kPiece); ++i) {
    const std::size_t begin = i * Staging::kPiece;
    const std::size_t length = std::min(Staging::kPiece, nbytes - begin);
    write_piece({{data, nbytes}}, begin);
    for (int r = 0; r < size(); ++r) {
      sources[index(r)] = r == rank() ? data + begin : staging_.piece_of(r);
    }
    kernels::kernels().reduce_elements({.sources = sources,
                                        .destination = data + begin,
                                        .numel = length / nbytes_of(element),
                                        .element = element,
                                        .op = op});
    staging_.finish();
  }
}

// Each rank computes one slice of every piece: it reads its slice of the peers' pieces, and puts
// the result into the slice of its own piece that no peer needs as input.
void TensorGroup::sum_in_slices(std::byte* data, std::size_t numel, Element element, ElementOp op) {
  const std::size_t nbytes = numel * nbytes_of(element);
  std::vector<const void*> sources(index(size()));
  for (std::size_t begin = 0; begin < nbytes; begin += Staging::kPiece) {
    const std::size_t length = std::min(Staging::kPiece, nbytes - begin);
    const std::size_t width =
        (length / index(size()) + kCacheLine) / kCacheLine * kCacheLine;  // at least a share
    const auto first = [&](int r) { return std::min(length, width * index(r)); };
    const std::size_t own = first(rank());
    const std::size_t own_nbytes = first(rank() + 1) - own;
    std::byte* const piece = staging_.next_piece();
    kernels::stream_copy(piece, data + begin, own);
    kernels::stream_copy(piece + own + own_nbytes, data + begin + own + own_nbytes,
                         length - own - own_nbytes);
    staging_.post();
    for (int r = 0; r < size(); ++r) {
      sources[index(r)] = r == rank() ? data + begin + own : staging_.piece_of(r) + own;
    }
    kernels::kernels().reduce_elements({.sources = sources,
                                        .destination = data + begin + own,
                                        .numel = own_nbytes / nbytes_of(element),
                                        .element = element,
                                        .op = op});
    kernels::stream_copy(piece + own, data + begin + own, own_nbytes);
    staging_.post_sum();
    for (int i = 1; i < size(); ++i) {
      const int r = (rank() + i) % size();
      staging_.await_sum(r);
      copy_result(data + begin + first(r), staging_.piece_of(r) + first(r), first(r + 1) - first(r),
                  nbytes);
    }
    staging_.finish();
  }
}

WorkPtr TensorGroup::all_reduce(Issue how, void* data, std::size_t numel, Element element,
                                ElementOp op) {
  checked_nbytes(numel, element, "all_reduce");
  return issue(how, {.kind = Kind::all_reduce, .element = element, .op = op, .count = numel},
               [=, this, at = static_cast<std::byte*>(data)] {
                 if (numel * nbytes_of(element) >= kSlicedNbytes) {
                   sum_in_slices(at, numel, element, op);
                 } else {
                   sum_on_every_rank(at, numel, element, op);
                 }
               });
}

WorkPtr TensorGroup::reduce(Issue how, void* data, std::size_t numel, Element element, ElementOp op,
                            int root) {
  check_rank(root, "root");
  checked_nbytes(numel, element, "reduce");
  return issue(how,
               {.kind = Kind::reduce, .element = element, .op = op, .root = root, .count = numel},
               [=, this, at = static_cast<std::byte*>(data)] {
                 if (rank() == root) {
                   sum_on_every_rank(at, numel, element, op);
                   return;
                 }
                 const std::size_t nbytes = numel * nbytes_of(element);
                 move({.stream = {{at, nbytes}}, .longest = nbytes, .compared = {root}});
               });
}

WorkPtr TensorGroup::reduce_scatter(Issue how, std::vector<const void*> ins, void* out,
                                    std::size_t numel, Element element, ElementOp op) {
  check_count(ins.size(), "reduce_scatter", "inputs");
  const std::size_t own = checked_nbytes(numel, element, "reduce_scatter");
  std::vector<Input> read;
  for (const void* in : ins) {
    read.push_back({static_cast<const std::byte*>(in), own});
  }
  check_apart("reduce_scatter", {{static_cast<std::byte*>(out), own}}, read,
              static_cast<const std::byte*>(out));
  return issue(
      how, {.kind = Kind::reduce_scatter, .element = element, .op = op, .count = numel},
      [=, this, ins = std::move(ins), to = static_cast<std::byte*>(out)] {
        // A piece holds the same range [begin, begin + length) for every rank, in rank order.
        const std::size_t nbytes = numel * nbytes_of(element);
        const std::size_t share = Staging::kPiece / index(size()) / kCacheLine * kCacheLine;
        const auto input = [&](int r) { return static_cast<const std::byte*>(ins[index(r)]); };
        std::vector<const void*> sources(index(size()));
        for (std::size_t i = 0; i < num_pieces(nbytes, share); ++i) {
          const std::size_t begin = i * share;
          const std::size_t length = std::min(share, nbytes - begin);
          std::byte* const piece = staging_.next_piece();
          for (int r = 0; r < size(); ++r) {
            if (r != rank()) {
              kernels::stream_copy(piece + index(r) * length, input(r) + begin, length);
            }
          }
          staging_.post();
          for (int r = 0; r < size(); ++r) {
            sources[index(r)] =
                r == rank() ? input(r) + begin : staging_.piece_of(r) + index(rank()) * length;
          }
          kernels::kernels().reduce_elements({.sources = sources,
                                              .destination = to + begin,
                                              .numel = length / nbytes_of(element),
                                              .element = element,
                                              .op = op});
          staging_.finish();
        }
      });
}

// --- messages ---

WorkPtr TensorGroup::send(Issue how, Input message, int to, int tag) {
  check_peer(to, tag, "the receiving rank");
  check_nbytes(message.nbytes, "send");
  return mailbox_.send(message.data, message.nbytes, to, tag, how.timeout, how.detached);
}

WorkPtr TensorGroup::receive(Issue how, Output message, int from, int tag) {
  check_peer(from == Mailbox::kAnyRank && size() > 1 ? (rank() + 1) % size() : from, tag,
             "the sending rank");
  check_nbytes(message.nbytes, "receive");
  return mailbox_.receive(message.data, message.nbytes, from, tag, how.timeout, how.detached);
}

}  // namespace acc::tensors
