// SPDX-License-Identifier: Apache-2.0
// A foreign process on the machine, a store that it can write, or a faulty rank must not be able to
// do more to a group than to end it with an error that says what happened.
#include "acc/base/token.hpp"
#include "acc/rendezvous/hash_store.hpp"
#include "collectives/device_route.hpp"
#include "collectives/gloo/gloo_group.hpp"
#include "collectives/keyed_hash.hpp"
#include "collectives/shm/shm_group.hpp"
#include "support/errors.hpp"
#include "support/other_user.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace acc::collectives;
using acc::Errc;
using acc::Error;
using acc::UniqueFd;
using acc::rendezvous::HashStore;
using acc::test::contains;
using acc::test::OtherUser;
using acc::test::thrown_by;

namespace {

constexpr HashKey kSecret = {17, 4711};
constexpr HashKey kWrongSecret = {17, 4712};
const std::string kKey = "world/shm";

GroupSpec spec_of(int rank, int size, acc::rendezvous::Store& store,
                  const HashKey& secret = kSecret) {
  GroupSpec spec{.name = "world",
                 .ranks = {},
                 .rank = rank,
                 .store = &store,
                 .timeout = std::chrono::seconds(60),
                 .secret = secret};
  for (int r = 0; r < size; ++r) {
    spec.ranks.push_back(r);
  }
  return spec;
}

std::future<std::optional<Error>> error_later(std::function<void()> body) {
  return std::async(std::launch::async, [body = std::move(body)] { return thrown_by(body); });
}

/// A local socket made by a foreign process.
struct StrangeSocket {
  explicit StrangeSocket(const std::string& token) {
    fd.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const std::string name = "acc-group-" + token;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  [[nodiscard]] bool listens() const {
    return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
           ::listen(fd.get(), 8) == 0;
  }
  [[nodiscard]] bool connects() const {
    return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
  }
  /// True if the other end has closed the connection.
  [[nodiscard]] bool is_turned_away() const {
    std::array<char, 4096> bytes{};
    ssize_t count = 1;
    while (count > 0) {
      count = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
    }
    return true;
  }

  UniqueFd fd;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size = 0;
};

UniqueFd memory_file(std::size_t nbytes, int seals) {
  UniqueFd fd(::memfd_create("planted", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(nbytes)) == 0);
  REQUIRE((seals == 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) == 0));
  return fd;
}

std::size_t control_nbytes(std::size_t ranks) {
  return sizeof(ControlHead) + ranks * (sizeof(RankControl) + 2 * kStagingChunk);
}

/// A fake rank 1 that sends to its peer the messages that the test chooses.
class FalseRank {
 public:
  explicit FalseRank(HashStore& store) : channel_(spec_of(1, 2, store)) {
    post({.kind = OpKind::barrier});  // the first collective of each group
  }
  void post(OpDescriptor descriptor, std::optional<std::uint32_t> sequence = std::nullopt) {
    descriptor.sequence = sequence.value_or(posted_ + 1);
    ++posted_;
    channel_.own().ring[posted_ % kDescriptorRing] = descriptor;
    ShmChannel::advance(channel_.own().posted, posted_);
    ShmChannel::advance(channel_.own().finished, posted_);
  }
  SharedMapping allocate(std::size_t nbytes) {
    post({.kind = OpKind::allocate, .count = nbytes});
    return channel_.take_shared(nbytes);
  }
  ControlHead& head() { return *(reinterpret_cast<ControlHead*>(&channel_.control(0)) - 1); }

 private:
  ShmChannel channel_;
  std::uint32_t posted_ = 0;
};

}  // namespace

TEST_CASE("SipHash-2-4 gives the values of the paper") {
  const HashKey key = hash_key("07060504030201000f0e0d0c0b0a0908");
  std::string message;
  CHECK(keyed_hash(key, message) == 0x726fdb47dd0e0e31U);
  for (char byte = 0; byte < 15; ++byte) {
    message += byte;
  }
  CHECK(keyed_hash(key, message) == 0xa129ca6149be45e5U);
  CHECK(hash_key("") == HashKey{});
}

TEST_CASE("a forged store key does not give access to another process's memory") {
  const std::string token = acc::random_token();
  const std::pair<std::string, const char*> rows[] = {
      {"", "not the name of a local socket"},
      {"0 0", "not the name of a local socket"},
      {std::to_string(::getpid()) + " 3", "not the name of a local socket"},
      {std::string(4 << 20, 'a'), "not the name of a local socket"},
      {"../../../../../../../../etc/shadow", "not the name of a local socket"},
      {token, "Connection refused"},
  };
  for (const auto& row : rows) {
    const auto& planted = row.first;
    const auto& expected = row.second;
    CAPTURE(planted.substr(0, 50));
    HashStore store;
    store.set(kKey, planted);
    const Error error = thrown_by([&] { ShmGroup(spec_of(1, 2, store), true); }).value();
    CAPTURE(std::string(error.what()));
    CHECK(error.code() == Errc::protocol);
    CHECK(contains(error.what(), kKey));
    CHECK(contains(error.what(), expected));
  }
}

TEST_CASE("a server of another user is not rank 0") {
  if (::geteuid() != 0) {
    MESSAGE("only root can make a process of another user");
    return;
  }
  const StrangeSocket socket(acc::random_token());
  const std::string name(socket.address.sun_path + 1 + std::strlen("acc-group-"));
  OtherUser stranger([&](int ready) {
    if (!socket.listens() || ::write(ready, "r", 1) != 1) {
      return 1;
    }
    return ::pause();
  });
  stranger.await_ready();
  HashStore store;
  store.set(kKey, name);
  const Error error = thrown_by([&] { ShmGroup(spec_of(1, 2, store), true); }).value();
  CAPTURE(std::string(error.what()));
  CHECK(error.code() == Errc::protocol);
  CHECK(contains(error.what(), "names a local socket of user 65534"));
}

TEST_CASE("a server without the secret is not rank 0") {
  HashStore store;
  auto stranger = error_later([&] {
    GroupSpec spec = spec_of(0, 2, store, kWrongSecret);
    const DescriptorLinks links(spec);
  });
  const Error error = thrown_by([&] { ShmGroup(spec_of(1, 2, store), true); }).value();
  CAPTURE(std::string(error.what()));
  CHECK(error.code() == Errc::protocol);
  CHECK(contains(error.what(), "did not prove that it is rank 0 of shm[0,1]"));
  std::thread([&] {  // a rank with the same wrong secret, so that the false rank 0 stops waiting
    const auto ended = thrown_by([&] {
      GroupSpec spec = spec_of(1, 2, store, kWrongSecret);
      const DescriptorLinks links(spec);
    });
    CHECK_FALSE(ended.has_value());
  })
      .join();
  stranger.wait();
}

TEST_CASE("foreign connections to rank 0's socket get nothing, and the group is made anyway") {
  HashStore store;
  std::vector<std::future<std::optional<Error>>> ranks;
  const auto start = [&](int rank) {
    ranks.push_back(error_later([&store, rank] {
      ShmGroup group(spec_of(rank, 3, store), true);
      group.barrier()->wait_released();
    }));
  };
  start(0);
  const std::string name = store.get(kKey, std::chrono::seconds(60));
  if (::geteuid() == 0) {
    const StrangeSocket other(name);
    OtherUser stranger([&](int) { return other.connects() && other.is_turned_away() ? 0 : 1; });
    CHECK(stranger.wait() == 0);
  }
  start(1);
  const StrangeSocket silent(name);  // stays open until the end
  CHECK(silent.connects());
  for (const std::size_t size : {1, 8, 100, 1000, 100'000}) {
    CAPTURE(size);
    const StrangeSocket guest(name);
    const std::string bytes(size, '\1');
    CHECK(guest.connects());
    CHECK(::send(guest.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(size));
    CHECK(guest.is_turned_away());
  }
  for (int i = 0; i < 300; ++i) {  // more connections than are kept
    CHECK(StrangeSocket(name).connects());
  }
  for (const int rank : {1, 2}) {  // also as a rank that has joined
    const Error error = thrown_by([&] {
                          const GroupSpec spec = spec_of(rank, 3, store, kWrongSecret);
                          const DescriptorLinks links(spec);
                        }).value();
    CHECK(contains(error.what(), "did not prove"));
  }
  start(2);
  for (auto& rank : ranks) {
    CHECK_FALSE(rank.get().has_value());
  }
}

TEST_CASE("a rank identifies itself once, with a rank of the group") {
  for (const int rank : {-1, 0, 2, 1'000'000}) {
    CAPTURE(rank);
    HashStore store;
    auto leader = error_later([&] { ShmGroup(spec_of(0, 2, store), true); });
    GroupSpec claims = spec_of(1, 2, store);
    claims.rank = rank == 0 ? -1'000 : rank;  // rank 0 would listen itself
    const Error error = thrown_by([&] { const DescriptorLinks links(claims); }).value();
    CHECK(error.code() == Errc::protocol);
    CHECK(contains(error.what(), "refused this process"));
    auto good = error_later([&] { ShmGroup(spec_of(1, 2, store), true); });
    CHECK_FALSE(good.get().has_value());
    CHECK_FALSE(leader.get().has_value());
  }
}

TEST_CASE("a rank that ends before the group is made is named on rank 0 and the others") {
  HashStore store;
  auto leader = error_later([&] { ShmGroup(spec_of(0, 4, store), true); });  // rank 3 never joins
  const GroupSpec waits = spec_of(2, 4, store);
  const DescriptorLinks waiting(waits);
  {
    const GroupSpec leaves = spec_of(1, 4, store);
    const DescriptorLinks leaving(leaves);
  }
  for (const Error& error :
       {leader.get().value(), thrown_by([&] { UniqueFd none = waiting.take(1); }).value()}) {
    CAPTURE(std::string(error.what()));
    CHECK(error.code() == Errc::peer_lost);
    CHECK(error.rank() == 1);
    CHECK(contains(error.what(), "rank 1 (pid "));
  }
}

TEST_CASE("a rank that does not join is named on rank 0 and the others") {
  HashStore store;
  GroupSpec impatient = spec_of(0, 3, store);
  impatient.timeout = std::chrono::milliseconds(1);
  auto leader = error_later([&] { ShmGroup(impatient, true); });
  CHECK(leader.get().value().rank() == 1);
}

TEST_CASE("only sealed memory of the expected size is mapped") {
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const std::size_t good = control_nbytes(2);
  std::FILE* const file = std::tmpfile();
  REQUIRE(::ftruncate(::fileno(file), static_cast<off_t>(good)) == 0);
  std::array<int, 2> pipe_ends{};
  REQUIRE(::pipe(pipe_ends.data()) == 0);
  const std::array<UniqueFd, 2> pipe = {UniqueFd(pipe_ends[0]), UniqueFd(pipe_ends[1])};
  struct Row {
    const char* what;
    UniqueFd fd;
    std::size_t said;
  };
  std::vector<Row> rows;
  rows.push_back({"not sealed", memory_file(good, 0), good});
  rows.push_back({"may grow", memory_file(good, F_SEAL_SHRINK | F_SEAL_SEAL), good});
  rows.push_back({"may shrink", memory_file(good, F_SEAL_GROW | F_SEAL_SEAL), good});
  rows.push_back({"seals may be added", memory_file(good, F_SEAL_SHRINK | F_SEAL_GROW), good});
  rows.push_back({"too small", memory_file(4096, kAll), good});
  rows.push_back({"too large", memory_file(good + 4096, kAll), good});
  rows.push_back({"another size", memory_file(good, kAll), good + 1});
  rows.push_back({"a file", UniqueFd(::dup(::fileno(file))), good});
  rows.push_back({"a device", UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), good});
  rows.push_back({"a pipe", UniqueFd(::dup(pipe[1].get())), good});
  rows.push_back({"nothing", UniqueFd(), good});
  for (const Row& row : rows) {
    CAPTURE(std::string(row.what));
    HashStore store;
    auto victim = error_later([&] { ShmChannel(spec_of(1, 2, store)); });
    const GroupSpec spec = spec_of(0, 2, store);
    const DescriptorLinks leader(spec);
    leader.give(row.fd.get(), row.said);
    const Error error = victim.get().value();
    CAPTURE(std::string(error.what()));
    CHECK(error.code() == Errc::protocol);
    CHECK(contains(error.what(), "shared memory"));
  }
  std::fclose(file);
  HashStore store;
  auto rank = error_later([&] { ShmChannel(spec_of(1, 2, store)); });
  const GroupSpec spec = spec_of(0, 2, store);
  const DescriptorLinks leader(spec);
  leader.give(memory_file(good, kAll).get(), good);
  CHECK_FALSE(rank.get().has_value());
}

TEST_CASE("with any input that a rank announces, its peers access only that input") {
  constexpr std::size_t kNumel = 1024;  // one page of floats
  const OpDescriptor good{.kind = OpKind::all_reduce,
                          .dtype = acc::DType::float32,
                          .count = kNumel,
                          .segment = 0,
                          .offset = 0};
  struct Row {
    const char* what;
    std::function<void(OpDescriptor&)> change;
  };
  const Row rows[] = {
      {"a segment that is not there", [](auto& op) { op.segment = 77; }},
      {"a negative segment", [](auto& op) { op.segment = -1; }},
      {"behind the segment", [](auto& op) { op.offset = kNumel * 4; }},
      {"one element too far", [](auto& op) { op.offset = 4; }},
      {"far behind", [](auto& op) { op.offset = std::size_t{1} << 62; }},
      {"before the segment", [](auto& op) { op.offset = ~std::uint64_t{0} - 4095; }},
      {"not at an element", [](auto& op) { op.offset = 2; }},
      {"another count", [](auto& op) { op.count = kNumel << 40; }},
      {"an unknown kind", [](auto& op) { op.kind = static_cast<OpKind>(200); }},
      {"an unknown dtype", [](auto& op) { op.dtype = static_cast<acc::DType>(99); }},
      {"staged", [](auto& op) { op.staged = 1; }},
      {"another collective's", [](auto& op) { op.sequence = 9; }},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.what));
    HashStore store;
    auto victim = error_later([&] {
      ShmGroup group(spec_of(0, 2, store), true);
      const auto buffer = group.allocate_contribution(kNumel * sizeof(float));
      group
          .all_reduce(static_cast<float*>(static_cast<void*>(buffer->data())), kNumel,
                      acc::DType::float32, 1.0F)
          ->wait();
    });
    FalseRank rank(store);
    const SharedMapping memory = rank.allocate(2 * kNumel * sizeof(float));
    OpDescriptor bad = good;
    row.change(bad);
    rank.post(bad, bad.sequence != 0 ? std::optional(bad.sequence) : std::nullopt);
    const Error error = victim.get().value();
    CAPTURE(std::string(error.what()));
    CHECK(error.code() == Errc::collective);
    // If two ranks issue different calls, neither can know which one is wrong.
    CHECK(error.rank() == (contains(error.what(), "differs") ? std::nullopt : std::optional(1)));
    CHECK(contains(error.what(), "rank 1"));
  }
}

TEST_CASE(
    "an unterminated abort text is read up to its limit and names no rank outside the group") {
  HashStore store;
  auto victim = error_later([&] {
    ShmGroup group(spec_of(0, 2, store), true);
    group.barrier()->wait();
  });
  FalseRank rank(store);
  rank.head().abort_text.fill('x');
  rank.head().abort_rank = 1'234'567;
  rank.head().abort_state.store(2);
  const Error error = victim.get().value();
  CHECK(error.what() == std::string(kAbortText, 'x'));
  CHECK_FALSE(error.rank().has_value());
}

/// Number of this process's descriptors for processes.
std::ptrdiff_t num_pidfds() {
  std::error_code closed;
  return std::ranges::count_if(
      std::filesystem::directory_iterator("/proc/self/fd"), [&](const auto& entry) {
        return std::filesystem::read_symlink(entry, closed) == "anon_inode:[pidfd]";
      });
}

TEST_CASE("the ranks of a group watch each other from its creation, before a pid can be reused") {
  UniqueFd own(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (num_pidfds() != 1) {
    MESSAGE("skipped: no pidfd_open(2) here, or descriptors of another name");
    return;
  }
  own.reset();
  HashStore store;
  auto first =
      std::async(std::launch::async, [&] { return ShmChannel(spec_of(0, 2, store)).size(); });
  const ShmChannel second(spec_of(1, 2, store));
  CHECK(first.get() == 2);
  CHECK(num_pidfds() == 1);  // of rank 1; rank 0 has closed its own
}

/// A store whose first write fails; `written` receives the second one.
class FailingOnce : public HashStore {
 public:
  explicit FailingOnce(std::promise<std::string>& written) : written_(written) {}
  void set(std::string_view key, std::string_view value) override {
    if (!std::exchange(has_failed_, true)) {
      throw Error(Errc::connection, "unreachable");
    }
    written_.set_value(std::string(key) + " = " + std::string(value));
  }
  std::unique_ptr<Store> clone() override { return std::make_unique<FailingOnce>(written_); }

 private:
  std::promise<std::string>& written_;
  bool has_failed_ = false;
};

TEST_CASE("wait information that could not be written is written again") {
  std::promise<std::string> written;
  FailingOnce store(written);
  WaitBoard board(0, 3, store);
  board.waits_for(2);
  auto second = written.get_future();
  REQUIRE(second.wait_for(std::chrono::seconds(120)) == std::future_status::ready);
  CHECK(second.get() == "waits/0 = 2");
}

TEST_CASE("wait information is accepted only for ranks of the job") {
  for (const char* planted : {"7", "-5", "2147483647", "99999999999999999999", "x", ""}) {
    CAPTURE(std::string(planted));
    HashStore store;
    store.set("waits/1", planted);
    WaitBoard board(0, 3, store);
    CHECK(board.late_rank(1) == 1);
  }
}

TEST_CASE("an invalid Gloo address is an error that names its key") {
  for (const std::string& planted :
       {std::string(), std::string("x"), std::string(1 << 20, 'x'), std::string(136, '\xff')}) {
    CAPTURE(planted.size());
    HashStore store;
    store.set("world/gloo/rank_1", "host");
    store.set("world/gloo/1", planted);
    const Error error = thrown_by([&] { GlooGroup(spec_of(0, 2, store), "127.0.0.1"); }).value();
    CAPTURE(std::string(error.what()));
    CHECK(error.code() == Errc::protocol);
    CHECK(contains(error.what(), "world/gloo/1"));
  }
}

TEST_CASE("a wait for the connection of a Gloo rank that is lost ends with the loss") {
  std::array<int, 2> own{};  // a connection of the program
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, own.data()) == 0);
  const UniqueFd one(own[0]);
  const UniqueFd other(own[1]);
  HashStore store;
  std::atomic<bool> is_lost{false};
  std::atomic<int> num_checks{0};  // after the loss
  GroupSpec spec = spec_of(1, 2, store);
  spec.timeout = std::chrono::minutes(1);
  spec.check = [&] {
    if (is_lost) {
      ++num_checks;
      num_checks.notify_all();
      throw Error(Errc::peer_lost, "rank 0 is lost");
    }
  };
  const std::jthread peer([&] {
    // Gloo has no address before it has the host names of the ranks below: nothing is to end.
    is_lost = true;
    for (int seen = num_checks; seen < 2; seen = num_checks) {
      num_checks.wait(seen);
    }
    store.set("world/gloo/rank_0", "host");
    std::string address = store.get("world/gloo/1", std::chrono::minutes(1));
    // Gloo: the rank with the lower port, as its bytes are in memory, waits for the other one.
    std::memset(address.data() + offsetof(sockaddr_in, sin_port), 0xff, sizeof(in_port_t));
    store.set("world/gloo/0", address);
  });
  const Error error = thrown_by([&] { GlooGroup(spec, "127.0.0.1"); }).value();
  CHECK(error.code() == Errc::peer_lost);
  CHECK(std::string(error.what()) == "rank 0 is lost");
  CHECK(::send(one.get(), "x", 1, MSG_NOSIGNAL) == 1);
  char byte = 0;
  CHECK(::recv(other.get(), &byte, 1, 0) == 1);
}

TEST_CASE("a rank's hardware description must have the expected form") {
  const RankHardware good{"h", "g", 22304, false, ""};
  CHECK(decode_hardware(encode(good)).nccl_version == 22304);
  for (const char* planted :
       {"", "h\ng\n", "h\ng\nx\n1\n", "h\ng\n-1\n1\n", "h\ng\n1\n2\n", "h\ng\n99999999999\n1\n"}) {
    CAPTURE(std::string(planted));
    CHECK(thrown_by([&] { decode_hardware(planted); }).value().code() == Errc::protocol);
  }
}
