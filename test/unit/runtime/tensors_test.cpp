// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "kernels/kernels.hpp"
#include "support/run_ranks.hpp"
#include "tensors/tensor_group.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using acc::kernels::Element;
using acc::kernels::ElementOp;
using acc::tensors::Input;
using acc::tensors::Issue;
using acc::tensors::Mailbox;
using acc::tensors::Output;
using acc::tensors::TensorGroup;

constexpr Issue kNow{.timeout = 30s};
constexpr Issue kDetached{.timeout = 30s, .detached = true};

void make_groups(int size, const std::function<void(TensorGroup&)>& body) {
  acc::test::run_ranks({.world_size = size}, [&](const auto& settings, auto store) {
    acc::collectives::GroupSpec spec;
    spec.name = "tensors";
    spec.ranks.resize(static_cast<std::size_t>(size));
    std::iota(spec.ranks.begin(), spec.ranks.end(), 0);
    spec.rank = settings.identity.rank;
    spec.store = store.get();
    spec.timeout = 30s;
    TensorGroup group(std::move(spec));
    body(group);
  });
}

void on_each_rank(int size, const std::function<void(TensorGroup&)>& body) {
  make_groups(size, [&](TensorGroup& group) {
    body(group);
    group.wait(*group.barrier(kNow), std::nullopt);
  });
}

/// The errors of all ranks, by rank.
std::vector<std::string> errors_of(int size, const std::function<void(TensorGroup&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  make_groups(size, [&](TensorGroup& group) {
    try {
      body(group);
    } catch (const acc::Error& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  return errors;
}

template <typename T>
Input input(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
Output output(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

TEST_CASE("reductions of every element type are the same in every variant of the kernels") {
  constexpr std::size_t kNumel = 201;
  std::array<std::vector<std::uint8_t>, 3> sources;
  std::uint32_t state = 1;
  for (auto& source : sources) {
    for (std::size_t i = 0; i < kNumel * 8; ++i) {
      state = state * 1664525 + 1013904223;
      // Any bits: also NaN and infinities. Booleans are compared as booleans by the kernels.
      source.push_back(static_cast<std::uint8_t>(state >> 24));
    }
  }
  const std::array<const void*, 3> pointers = {sources[0].data(), sources[1].data(),
                                               sources[2].data()};
  for (int element = 0; element < acc::kernels::kNumElements; ++element) {
    for (int op = 0; op < acc::kernels::kNumElementOps; ++op) {
      const auto type = static_cast<Element>(element);
      const auto kind = static_cast<ElementOp>(op);
      if (!is_defined(type, kind)) {
        continue;
      }
      CAPTURE(std::string(to_string(type)));
      CAPTURE(std::string(to_string(kind)));
      std::vector<std::vector<std::uint8_t>> results;
      for (const acc::kernels::Kernels* kernels : acc::kernels::available_kernels()) {
        std::vector<std::uint8_t> result(kNumel * 8, 0);
        kernels->reduce_elements({.sources = pointers,
                                  .destination = result.data(),
                                  .numel = kNumel,
                                  .element = type,
                                  .op = kind});
        results.push_back(std::move(result));
      }
      // The payload of a NaN is not specified; these operations do not produce one from integers.
      if (type > Element::float64) {
        for (const auto& result : results) {
          CHECK(result == results.front());
        }
      }
      CHECK(std::ranges::any_of(results.front(), [](std::uint8_t byte) { return byte != 0; }));
      const auto end =
          results.front().begin() + static_cast<std::ptrdiff_t>(kNumel * nbytes_of(type));
      CHECK(std::all_of(end, results.front().end(), [](std::uint8_t byte) { return byte == 0; }));
    }
  }
}

TEST_CASE("sums of many pieces are equal on all ranks, and in rank order") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    constexpr std::size_t kNumel = 400'003;
    std::vector<std::vector<float>> results(static_cast<std::size_t>(size));
    const auto value = [](int rank, std::size_t i) {
      return 1.0F / static_cast<float>(i % 1000 + static_cast<std::size_t>(rank) + 1);
    };
    on_each_rank(size, [&](TensorGroup& group) {
      auto& data = results[static_cast<std::size_t>(group.rank())];
      for (std::size_t i = 0; i < kNumel; ++i) {
        data.push_back(value(group.rank(), i));
      }
      group.wait(*group.all_reduce(kNow, data.data(), kNumel, Element::float32, ElementOp::sum),
                 std::nullopt);
    });
    std::vector<float> expected(kNumel);
    for (std::size_t i = 0; i < kNumel; ++i) {
      for (int r = 0; r < size; ++r) {
        expected[i] = r == 0 ? value(r, i) : expected[i] + value(r, i);
      }
    }
    for (const auto& result : results) {
      CHECK(result == expected);
    }
  }
}

TEST_CASE("calls that nobody waits for are executed, and in order") {
  on_each_rank(3, [](TensorGroup& group) {
    std::vector<std::vector<std::int64_t>> data(40, std::vector<std::int64_t>(3000));
    std::vector<acc::tensors::WorkPtr> works;
    for (std::size_t i = 0; i < data.size(); ++i) {
      std::ranges::fill(data[i], static_cast<std::int64_t>(i) * (group.rank() + 1));
      works.push_back(group.all_reduce(kDetached, data[i].data(), data[i].size(), Element::int64,
                                       ElementOp::sum));
    }
    while (!works.back()->done) {
      std::this_thread::yield();
    }
    for (std::size_t i = 0; i < data.size(); ++i) {
      CHECK(works[i]->done);
      CHECK(std::ranges::count(data[i], static_cast<std::int64_t>(i) * 6) == 3000);
    }
  });
}

TEST_CASE("messages are independent of collectives and of the order of other messages") {
  on_each_rank(3, [](TensorGroup& group) {
    const int to = (group.rank() + 1) % 3;
    const int from = (group.rank() + 2) % 3;
    std::vector<int> big(1'000'000, group.rank());  // larger than a ring
    std::vector<int> small(1, group.rank() + 10);
    const auto sent = group.send(kDetached, input(big), to, 1);
    const auto second = group.send(kDetached, input(small), to, 2);
    group.wait(*group.barrier(kNow), std::nullopt);
    std::vector<int> got(1);
    const auto received = group.receive(kNow, output(got), Mailbox::kAnyRank, 2);
    group.wait(*received, std::nullopt);
    CHECK(got[0] == from + 10);
    CHECK(received->source == from);
    std::vector<int> all(big.size());
    group.wait(*group.receive(kNow, output(all), from, 1), std::nullopt);
    CHECK(std::ranges::count(all, from) == 1'000'000);
    group.wait(*sent, std::nullopt);
    group.wait(*second, std::nullopt);
  });
}

TEST_CASE("ranks that do not agree end with the same named error") {
  struct Case {
    const char* words;
    std::function<void(TensorGroup&)> body;
  };
  const auto reduce = [&](TensorGroup& group, std::size_t numel) {
    std::vector<float> own(numel);
    group.wait(*group.all_reduce(kNow, own.data(), numel, Element::float32, ElementOp::sum),
               std::nullopt);
  };
  const Case cases[] = {
      {"rank 2 calls all_reduce (sum) of 11 x float32, ranks 0-1 call all_reduce (sum) of 10",
       [&](TensorGroup& group) { reduce(group, group.rank() == 2 ? 11 : 10); }},
      {"rank 2 calls barrier",
       [&](TensorGroup& group) {
         if (group.rank() == 2) {
           group.wait(*group.barrier(kNow), std::nullopt);
         } else {
           reduce(group, 10);
         }
       }},
      {"rank 2 sends 8 bytes to rank",
       [&](TensorGroup& group) {
         std::vector<std::byte> in(16);
         std::vector<std::byte> out(24);
         std::vector<Input> ins(3, Input{in.data(), group.rank() == 2 ? 8U : 4U});
         std::vector<Output> outs = {{out.data(), 4}, {out.data() + 8, 4}, {out.data() + 16, 4}};
         outs[static_cast<std::size_t>(group.rank())].nbytes =
             ins[static_cast<std::size_t>(group.rank())].nbytes;
         group.wait(*group.all_to_all(kNow, ins, outs), std::nullopt);
         group.wait(*group.barrier(kNow), std::nullopt);  // rank 2 got what it expected
       }},
      {"timeout: rank 2 did not reach barrier",
       [&](TensorGroup& group) {
         if (group.rank() != 2) {
           group.wait(*group.barrier({.timeout = 200ms}), std::nullopt);
           return;
         }
         while (!group.failure()) {
           std::this_thread::yield();
         }
         group.wait(*group.barrier(kNow), std::nullopt);
       }},
      {"rank 2 destroyed acc[0,1,2] while calls were under way",
       [&](TensorGroup& group) {
         if (group.rank() == 2) {
           group.receive(kDetached, {nullptr, 0}, 0, 9);
           throw acc::Error(acc::Errc::collective,
                            "rank 2 destroyed acc[0,1,2] while calls were under way");
         }
         std::vector<std::byte> one(1);
         group.wait(*group.receive(kNow, {one.data(), 1}, 2, 1), std::nullopt);
       }},
      {"rank 0 sent a message of 40 bytes with tag 5, rank 1 receives 8",
       [&](TensorGroup& group) {
         std::vector<std::byte> some(40);
         if (group.rank() == 0) {
           group.wait(*group.send(kNow, {some.data(), 40}, 1, 5), std::nullopt);
         }
         if (group.rank() == 1) {
           group.wait(*group.receive(kNow, {some.data(), 8}, 0, 5), std::nullopt);
         }
         while (!group.failure()) {
           std::this_thread::yield();
         }
         group.wait(*group.barrier(kNow), std::nullopt);
       }},
  };
  for (const Case& each : cases) {
    CAPTURE(std::string(each.words));
    for (const std::string& error : errors_of(3, each.body)) {
      CAPTURE(error);
      CHECK(error.find(each.words) != std::string::npos);
    }
  }
}

TEST_CASE("wrong arguments are refused before memory is touched, and the group goes on") {
  constexpr std::size_t kHuge = SIZE_MAX / 8 + 2;  // as float32, 4 bytes after an overflow
  struct Case {
    const char* words;
    std::function<void(TensorGroup&, float*)> call;  ///< memory: 8 values
  };
  const auto in = [](float* at, std::size_t numel) {
    return Input{reinterpret_cast<const std::byte*>(at), numel * sizeof(float)};
  };
  const auto out = [](float* at, std::size_t numel) {
    return Output{reinterpret_cast<std::byte*>(at), numel * sizeof(float)};
  };
  const Case cases[] = {
      {"all_reduce: 2305843009213693953 x float32 are more than memory can hold",
       [](TensorGroup& group, float* at) {
         group.all_reduce(kNow, at, kHuge, Element::float32, ElementOp::sum);
       }},
      {"reduce: 2305843009213693953 x float32 are more",
       [](TensorGroup& group, float* at) {
         group.reduce(kNow, at, kHuge, Element::float32, ElementOp::sum, 0);
       }},
      {"root is 2, expected a rank of the group (0..1)",
       [](TensorGroup& group, float* at) {
         group.reduce(kNow, at, 1, Element::float32, ElementOp::sum, 2);
       }},
      {"reduce_scatter: 2305843009213693953 x float32 are more",
       [](TensorGroup& group, float* at) {
         group.reduce_scatter(kNow, {at, at}, at + 4, kHuge, Element::float32, ElementOp::sum);
       }},
      {"reduce_scatter: 1 inputs for 2 ranks",
       [](TensorGroup& group, float* at) {
         group.reduce_scatter(kNow, {at}, at + 4, 1, Element::float32, ElementOp::sum);
       }},
      {"reduce_scatter: an input of 8 bytes shares memory with a result of 8 bytes",
       [](TensorGroup& group, float* at) {
         group.reduce_scatter(kNow, {at, at + 2}, at + 1, 2, Element::float32, ElementOp::sum);
       }},
      {"broadcast: 4611686018427387904 bytes for each of 2 ranks",
       [](TensorGroup& group, float* at) {
         group.broadcast(kNow, {reinterpret_cast<std::byte*>(at), std::size_t{1} << 62}, 0);
       }},
      {"root is -1", [&](TensorGroup& group, float* at) { group.broadcast(kNow, out(at, 1), -1); }},
      {"all_gather: 1 outputs for 2 ranks",
       [&](TensorGroup& group, float* at) { group.all_gather(kNow, in(at, 1), {out(at, 1)}); }},
      {"all_gather: the input has 4 bytes, its place in the output has 8",
       [&](TensorGroup& group, float* at) {
         group.all_gather(kNow, in(at, 1), {out(at + 2, 2), out(at + 4, 2)});
       }},
      {"all_gather: two results, of 8 and 8 bytes, share memory",
       [&](TensorGroup& group, float* at) {
         group.all_gather(kNow, in(at, 2), {out(at + 4, 2), out(at + 3, 2)});
       }},
      {"all_gather: an input of 8 bytes shares memory",
       [&](TensorGroup& group, float* at) {
         std::vector<Output> outs = {out(at + 4, 2), out(at + 6, 2)};
         outs[group.rank() == 0 ? 1 : 0] = out(at, 2);  // the place of the other rank
         group.all_gather(kNow, in(at, 2), outs);
       }},
      {"gather: the output of rank 1 has 12 bytes, expected 8",
       [&](TensorGroup& group, float* at) {
         group.gather(kNow, in(at, 2), {out(at + 2, 2), out(at + 4, 3)}, group.rank());
       }},
      {"gather: 3 outputs for 2 ranks",
       [&](TensorGroup& group, float* at) {
         group.gather(kNow, in(at, 1), {out(at + 2, 1), out(at + 3, 1), out(at + 4, 1)},
                      group.rank());
       }},
      {"gather: an input of 8 bytes shares memory",
       [&](TensorGroup& group, float* at) {
         group.gather(kNow, in(at, 2), {out(at + 1, 2), out(at + 4, 2)}, group.rank());
       }},
      {"scatter: the input of rank 0 has 4 bytes, expected 8",
       [&](TensorGroup& group, float* at) {
         group.scatter(kNow, {in(at, 1), in(at, 2)}, out(at + 4, 2), group.rank());
       }},
      {"scatter: 0 inputs for 2 ranks",
       [&](TensorGroup& group, float* at) { group.scatter(kNow, {}, out(at, 1), group.rank()); }},
      {"scatter: an input of 8 bytes shares memory",
       [&](TensorGroup& group, float* at) {
         group.scatter(kNow, {in(at, 2), in(at + 3, 2)}, out(at + 4, 2), group.rank());
       }},
      {"all_to_all: 1 inputs for 2 ranks",
       [&](TensorGroup& group, float* at) {
         group.all_to_all(kNow, {in(at, 1)}, {out(at + 2, 1), out(at + 3, 1)});
       }},
      {"all_to_all: 3 outputs for 2 ranks",
       [&](TensorGroup& group, float* at) {
         group.all_to_all(kNow, {in(at, 1), in(at, 1)},
                          {out(at + 2, 1), out(at + 3, 1), out(at + 4, 1)});
       }},
      {"all_to_all: an input of 4 bytes shares memory",
       [&](TensorGroup& group, float* at) {  // in place
         group.all_to_all(kNow, {in(at, 1), in(at + 1, 1)}, {out(at, 1), out(at + 1, 1)});
       }},
      {"the receiving rank is 2, expected a rank of the group",
       [&](TensorGroup& group, float* at) { group.send(kNow, in(at, 1), 2, 0); }},
      {", this rank itself",
       [&](TensorGroup& group, float* at) { group.send(kNow, in(at, 1), group.rank(), 0); }},
      {", this rank itself",
       [&](TensorGroup& group, float* at) { group.receive(kNow, out(at, 1), group.rank(), 0); }},
      {"the sending rank is -2",
       [&](TensorGroup& group, float* at) { group.receive(kNow, out(at, 1), -2, 0); }},
      {"the tag is -1, expected at least 0",
       [&](TensorGroup& group, float* at) {
         group.receive(kNow, out(at, 1), Mailbox::kAnyRank, -1);
       }},
      {"the tag is -3",
       [&](TensorGroup& group, float* at) { group.send(kNow, in(at, 1), 1 - group.rank(), -3); }},
  };
  on_each_rank(2, [&](TensorGroup& group) {
    const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7};
    for (const Case& each : cases) {
      CAPTURE(std::string(each.words));
      std::vector<float> memory = values;
      std::string error;
      try {
        each.call(group, memory.data());
      } catch (const acc::Error& caught) {
        CHECK(caught.code() == acc::Errc::invalid_argument);
        error = caught.what();
      }
      CAPTURE(error);
      CHECK(error.find(each.words) != std::string::npos);
      CHECK(memory == values);
    }
    // What is in its own place is no fault; neither are empty parts, wherever they are.
    std::vector<float> whole(2, static_cast<float>(group.rank() + 1));
    const auto own = static_cast<std::size_t>(group.rank());
    group.wait(*group.all_gather(kNow, in(&whole[own], 1), {out(&whole[0], 1), out(&whole[1], 1)}),
               std::nullopt);
    CHECK(whole == std::vector<float>{1, 2});
    group.wait(*group.all_gather(kNow, in(whole.data(), 0), {out(&whole[0], 0), out(&whole[0], 0)}),
               std::nullopt);
    group.wait(*group.reduce_scatter(kNow, {&whole[0], &whole[1]}, &whole[0], 1, Element::float32,
                                     ElementOp::sum),
               std::nullopt);
    CHECK(whole[0] == (group.rank() == 0 ? 2 : 4));
  });
}

namespace {

/// A call of one of three ranks, of which another one does not make it.
struct BlamedCall {
  const char* name;
  std::function<acc::tensors::WorkPtr(TensorGroup&, Issue, std::vector<float>& data,
                                      std::vector<float>& results)>
      make;
};

std::vector<Output> thirds(std::vector<float>& results) {
  const Output whole = output(results);
  const std::size_t part = whole.nbytes / 3;
  return {{whole.data, part}, {whole.data + part, part}, {whole.data + 2 * part, part}};
}

std::vector<BlamedCall> blamed_calls() {
  std::vector<BlamedCall> all = {
      {"barrier", [](TensorGroup& group, Issue how, auto&, auto&) { return group.barrier(how); }},
      {"all_reduce",
       [](TensorGroup& group, Issue how, auto& data, auto&) {
         return group.all_reduce(how, data.data(), data.size(), Element::float32, ElementOp::sum);
       }},
      {"reduce_scatter",
       [](TensorGroup& group, Issue how, auto& data, auto& results) {
         const std::vector<const void*> ins(3, data.data());
         return group.reduce_scatter(how, ins, results.data(), data.size() / 3, Element::float32,
                                     ElementOp::sum);
       }},
      {"all_gather",
       [](TensorGroup& group, Issue how, auto& data, auto& results) {
         return group.all_gather(how, input(data), thirds(results));
       }},
      {"all_to_all",
       [](TensorGroup& group, Issue how, auto& data, auto& results) {
         return group.all_to_all(how, std::vector<Input>(3, input(data)), thirds(results));
       }},
      // The rank after the absent one waits for it, and the third one for that rank.
      {"messages", [](TensorGroup& group, Issue how, auto& data, auto&) {
         return group.receive(how, output(data), (group.rank() + 2) % 3, 7);
       }}};
  for (int root = 0; root < 3; ++root) {
    all.push_back({"broadcast", [root](TensorGroup& group, Issue how, auto& data, auto&) {
                     return group.broadcast(how, output(data), root);
                   }});
    all.push_back({"reduce", [root](TensorGroup& group, Issue how, auto& data, auto&) {
                     return group.reduce(how, data.data(), data.size(), Element::float32,
                                         ElementOp::sum, root);
                   }});
    all.push_back({"gather", [root](TensorGroup& group, Issue how, auto& data, auto& results) {
                     return group.gather(how, input(data), thirds(results), root);
                   }});
    all.push_back({"scatter", [root](TensorGroup& group, Issue how, auto& data, auto& results) {
                     return group.scatter(how, std::vector<Input>(3, input(data)),
                                          thirds(results)[0], root);
                   }});
  }
  return all;
}

}  // namespace

TEST_CASE("a timeout in any call blames the rank that does not come") {
  struct Case {
    const BlamedCall* call;
    int absent;
    std::array<std::string, 3> errors = {};
    std::array<int, 3> blamed = {-1, -1, -1};
  };
  const std::vector<BlamedCall> calls = blamed_calls();
  std::vector<Case> cases;
  for (const BlamedCall& call : calls) {
    for (int absent = 0; absent < 3; ++absent) {
      cases.push_back({&call, absent});
    }
  }
  {
    std::vector<std::jthread> all;  // at the same time, since each one takes the timeout
    for (Case& each : cases) {
      all.emplace_back([&each] {
        std::latch failed(2);
        make_groups(3, [&](TensorGroup& group) {
          if (group.rank() == each.absent) {
            failed.wait();
            return;
          }
          constexpr Issue kHow{.timeout = 10s};
          const auto me = static_cast<std::size_t>(group.rank());
          std::vector<float> data(1 << 18);  // several pieces
          std::vector<float> results(3 * data.size());
          try {
            group.wait(*each.call->make(group, kHow, data, results), std::nullopt);
            group.wait(*group.barrier(kHow), std::nullopt);
          } catch (const acc::Error& error) {
            each.errors[me] = error.what();
            each.blamed[me] = error.rank().value_or(-1);
          }
          failed.count_down();
        });
      });
    }
  }
  for (const Case& each : cases) {
    CAPTURE(std::string(each.call->name));
    CAPTURE(each.absent);
    for (int r = 0; r < 3; ++r) {
      if (r != each.absent) {
        CAPTURE(each.errors[static_cast<std::size_t>(r)]);
        CHECK(each.blamed[static_cast<std::size_t>(r)] == each.absent);
      }
    }
  }
}
