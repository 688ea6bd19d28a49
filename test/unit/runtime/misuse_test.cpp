// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <latch>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// Programs that use the runtime wrongly, and correct programs that look similar.
namespace {

using acc::Errc;
using acc::Error;
using acc::settings::Strategy;
using acc::test::contains;
using acc::test::Job;
using acc::test::job_of;

constexpr int kNumel = 32;

/// Units "fc1" and "fc2", each with a weight, and "frozen" with nothing to train.
struct TwoUnits {
  explicit TwoUnits(acc::Model made)
      : model(std::move(made)),
        fc1(model.unit("fc1", "Linear")),
        fc2(model.unit("fc2", "Linear")),
        frozen(model.unit("frozen", "Table")),
        w1(fc1.parameter("weight", {kNumel}, acc::ones())),
        w2(fc2.parameter("weight", {kNumel}, acc::ones())),
        table(frozen.parameter("weight", {kNumel}, acc::ones(), {.trainable = false})) {}

  static void backward(acc::Unit& unit, acc::Parameter weight) {
    auto use = unit.backward();
    float* const gradient = use.grad_to_add(weight);
    gradient[0] += use[weight][0];
  }
  /// A complete, correct micro-step.
  void micro_step() {
    fc1.forward().end();
    fc2.forward().end();
    backward(fc2, w2);
    backward(fc1, w1);
  }

  acc::Model model;
  acc::Unit& fc1;
  acc::Unit& fc2;
  acc::Unit& frozen;
  acc::Parameter w1, w2, table;
};

struct Said {
  Errc code;
  std::string text;
};

/// Returns for each rank the message of the error that ended `program`; empty if none did.
std::vector<std::optional<Said>> told(const Job& job,
                                      const std::function<void(acc::Runtime&)>& program) {
  std::vector<std::optional<Said>> all(static_cast<std::size_t>(job.world_size));
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    try {
      program(runtime);
    } catch (const Error& error) {
      all[static_cast<std::size_t>(settings.identity.rank)] = Said{error.code(), error.what()};
    }
  });
  return all;
}

/// A program and the expected error of its optimizer step.
struct Program {
  const char* name;
  void (*run)(TwoUnits&);
  const char* refusal;  ///< part of the message; null: the step succeeds
  int micro_steps = 1;
};

const Program kPrograms[] = {
    {"all is there", [](TwoUnits& net) { net.micro_step(); }, nullptr},
    {"no unit is used", [](TwoUnits&) {}, nullptr},
    {"one unit is not used",
     [](TwoUnits& net) {
       net.fc1.forward().end();
       TwoUnits::backward(net.fc1, net.w1);
     },
     nullptr},
    {"evaluation under no_grad",
     [](TwoUnits& net) {
       {
         const auto guard = net.model.no_grad();
         net.fc1.forward().end();
       }
       net.micro_step();
     },
     nullptr},
    {"a unit without trained parameters",
     [](TwoUnits& net) {
       net.frozen.forward().end();
       net.micro_step();
       net.frozen.backward().end();
     },
     nullptr},
    {"the same without its backward",
     [](TwoUnits& net) {
       net.frozen.forward().end();
       net.micro_step();
     },
     nullptr},
    {"a forward that is computed again",
     [](TwoUnits& net) {
       net.fc1.forward().end();
       net.fc1.recompute().end();
       TwoUnits::backward(net.fc1, net.w1);
     },
     nullptr},
    {"a unit that is used twice",
     [](TwoUnits& net) {
       net.fc1.forward().end();
       net.fc1.forward().end();
       TwoUnits::backward(net.fc1, net.w1);
       TwoUnits::backward(net.fc1, net.w1);
     },
     nullptr},
    {"accumulation, also without communication",
     [](TwoUnits& net) {
       {
         const auto guard = net.model.no_sync();
         net.micro_step();
       }
       net.micro_step();
     },
     nullptr, 2},
    {"a backward was forgotten",
     [](TwoUnits& net) {
       net.fc1.forward().end();
       net.fc2.forward().end();
       TwoUnits::backward(net.fc2, net.w2);
     },
     "unit 'fc1' had 1 forward scope(s) outside no_grad() and 0 backward scope(s)"},
    {"… of the second use",
     [](TwoUnits& net) {
       net.fc1.forward().end();
       net.fc1.forward().end();
       TwoUnits::backward(net.fc1, net.w1);
     },
     "unit 'fc1' had 2 forward scope(s) outside no_grad() and 1 backward scope(s)"},
    {"… in the second micro-step",
     [](TwoUnits& net) {
       net.micro_step();
       net.fc2.forward().end();
     },
     "unit 'fc2' had 2 forward scope(s) outside no_grad() and 1 backward scope(s)", 2},
    {"evaluation without no_grad",
     [](TwoUnits& net) {
       net.micro_step();
       net.fc1.forward().end();
     },
     "unit 'fc1' had 2 forward scope(s) outside no_grad() and 1 backward scope(s)", 2},
    {"a backward without a gradient",
     [](TwoUnits& net) {
       net.fc1.forward().end();
       net.fc1.backward().end();
     },
     "the backward scopes of unit 'fc1' asked for no gradient"},
    {"… of several units",
     [](TwoUnits& net) {
       net.fc1.forward().end();
       net.fc2.forward().end();
       net.fc2.backward().end();
       net.fc1.backward().end();
     },
     "(and 1 more like it)"},
};

}  // namespace

TEST_CASE("a step with a missing gradient is refused on every rank") {
  struct Layout {
    int ranks, machines;
    Strategy strategy;
  };
  for (const Layout layout : {Layout{1, 1, Strategy::no_shard}, Layout{3, 1, Strategy::full_shard},
                              Layout{2, 2, Strategy::shard_grad_op}}) {
    for (const Program& each : kPrograms) {
      CAPTURE(layout.ranks);
      CAPTURE(each.name);
      // With gloo, a scope that the other ranks have not entered is a different error, in which all
      // ranks are at fault.
      const int at_fault = layout.machines == 1 ? layout.ranks - 1 : -1;
      const auto run = [&](bool allowed) {
        Job job = job_of(layout.strategy, layout.ranks, layout.machines);
        job.sharding.gradient_accumulation_steps = each.micro_steps;
        return told(job, [&](acc::Runtime& runtime) {
          TwoUnits net(runtime.model(0, {.unused_units = allowed}));
          auto optimizer = net.model.optimizer(acc::Sgd{});
          const bool same = allowed || at_fault < 0 || each.refusal == nullptr;
          if (same || runtime.rank() == at_fault) {
            each.run(net);
          } else {
            net.micro_step();
          }
          optimizer.step();
          optimizer.step();  // the first step must leave nothing behind
        });
      };
      const bool refused = each.refusal != nullptr;
      for (const auto& said : run(false)) {
        REQUIRE(said.has_value() == refused);
        if (refused) {
          const std::string who = at_fault < 0 ? "" : "rank " + std::to_string(at_fault) + ": ";
          CHECK_MESSAGE(contains(said->text, who + "Optimizer::step() refused"), said->text);
          CHECK_MESSAGE(contains(said->text, each.refusal), said->text);
        }
      }
      for (const auto& said : run(true)) {
        CHECK_MESSAGE(!said.has_value(), said->text);
      }
    }
  }
}

// Hybrid sharding on 4 ranks: rank 1 ends, and only rank 0 shares the group of `call` with it. Rank
// 2 waits for ranks 0 and 3, which stay alive, so only their aborts can end its wait in time.
TEST_CASE("a rank that fails in one group fails the ranks of its other groups") {
  struct Call {
    std::string name;
    void (*run)(acc::Runtime&, acc::Optimizer&);
  };
  const auto make_another = [](acc::Runtime& runtime, acc::Optimizer&) {
    TwoUnits another(runtime.model(8));
    const auto optimizer = another.model.optimizer(acc::Sgd{.lr = 0.1});
  };
  constexpr auto step = [](acc::Runtime&, acc::Optimizer& optimizer) { optimizer.step(); };
  for (const Call& call :
       {Call{"step", step}, Call{"optimizer", make_another},
        Call{"barrier", [](acc::Runtime&runtime, acc::Optimizer&) { runtime.barrier(); }}}) {
    CAPTURE(call.name);
    Job job = job_of(Strategy::hybrid_shard, 4);
    job.sharding.shard_size = 2;
    job.timeout = std::chrono::seconds(60);
    std::latch failed(3);
    const auto all = told(job, [&](acc::Runtime& runtime) {
      TwoUnits net(runtime.model(7));
      auto optimizer = net.model.optimizer(acc::Sgd{.lr = 0.1});
      runtime.barrier();
      if (runtime.rank() == 1) {
        return;
      }
      try {
        runtime.rank() == 0 ? call.run(runtime, optimizer) : step(runtime, optimizer);
      } catch (const Error&) {
        failed.arrive_and_wait();
        throw;
      }
      failed.arrive_and_wait();
    });
    for (const std::size_t rank : {0U, 2U, 3U}) {
      CAPTURE(rank);
      REQUIRE(all[rank].has_value());
      CAPTURE(all[rank]->text);
      CHECK(all[rank]->code == Errc::peer_lost);
      CHECK(contains(all[rank]->text, "rank 1"));
    }
  }
}

namespace {

using acc::AdamW;
using acc::Optimizer;
using acc::ProgramRule;
using acc::Sgd;

/// Optimizers that differ between ranks. make, change: what each rank does; the message of both
/// ranks.
struct Difference {
  const char* name;
  std::function<Optimizer(TwoUnits&, int rank)> make;
  std::function<void(Optimizer&, int rank)> change;
  const char* message;
  Errc code = Errc::disagreement;  ///< of rank 1
};

std::vector<Difference> differences_of_optimizers() {
  const auto sgd = [](TwoUnits& net, int) { return net.model.optimizer(Sgd{.lr = 0.1}); };
  const auto nothing = [](Optimizer&, int) {};
  return {
      {"kind",
       [](TwoUnits& net, int rank) {
         return rank == 0 ? net.model.optimizer(AdamW{}) : net.model.optimizer(Sgd{});
       },
       nothing, "the optimizer is"},
      {"rate", [](TwoUnits& net, int r) { return net.model.optimizer(Sgd{.lr = 0.1 * (r + 1)}); },
       nothing, "the learning rate is 0."},
      {"beta1",
       [](TwoUnits& net, int r) { return net.model.optimizer(AdamW{.beta1 = 0.8 + 0.1 * r}); },
       nothing, "beta1 is 0."},
      {"momentum",
       [](TwoUnits& net, int r) { return net.model.optimizer(Sgd{.momentum = 0.9 * r}); }, nothing,
       "momentum is 0"},
      {"weight decay",
       [](TwoUnits& net, int r) { return net.model.optimizer(Sgd{.weight_decay = 0.1 * r}); },
       nothing, "the weight decay is 0"},
      {"members of a group",
       [](TwoUnits& net, int rank) {
         return net.model.optimizer(
             Sgd{}, {{.name = "own", .parameters = {rank == 0 ? "fc1.*" : "fc2.*"}}});
       },
       nothing, "weight is in parameter group 'own' here, not declared on rank"},
      {"a rank that is refused",
       [](TwoUnits& net, int rank) {
         return net.model.optimizer(
             Sgd{}, {{.name = "own", .parameters = {rank == 0 ? "fc1.*" : "fc9.*"}}});
       },
       nothing, "no parameter of this model is named 'fc9.*'", Errc::invalid_argument},
      {"set_lr", sgd, [](Optimizer& made, int rank) { made.set_lr(0.1 * (rank + 1)); },
       "the learning rate is 0."},
      {"schedule", sgd,
       [](Optimizer& made, int rank) {
         made.set_schedule([rank](std::int64_t step, double base) {
           return base / static_cast<double>(1 + step * rank);
         });
       },
       "the learning rate is 0."},
      {"clip_norm", sgd, [](Optimizer& made, int rank) { made.set_clip_norm(1.0 + rank); },
       "the norm to clip to is"},
      {"clip_value", sgd, [](Optimizer& made, int rank) { made.set_clip_value(1.0 + rank); },
       "the value to clip to is"},
      {"a rule of the program",
       [](TwoUnits& net, int rank) {
         return net.model.optimizer(
             ProgramRule{[](const auto&) {}, [rank] { return "rate=" + std::to_string(rank); }});
       },
       nothing, "rate is"},
  };
}

}  // namespace

TEST_CASE("ranks whose optimizers differ are refused on every rank") {
  for (const Job& job : {job_of(Strategy::full_shard, 2), job_of(Strategy::no_shard, 2)}) {
    for (const Difference& each : differences_of_optimizers()) {
      CAPTURE(each.name);
      std::vector<double> weights(2);
      const auto all = told(job, [&](acc::Runtime& runtime) {
        TwoUnits net(runtime.model(1));
        auto optimizer = each.make(net, runtime.rank());
        net.micro_step();
        optimizer.step();
        each.change(optimizer, runtime.rank());
        net.micro_step();
        optimizer.step();
        net.micro_step();
        optimizer.step();
      });
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const auto& said = all[rank];
        REQUIRE(said.has_value());
        CHECK_MESSAGE(said->code == (rank == 0 ? Errc::disagreement : each.code), said->text);
        CHECK_MESSAGE(contains(said->text, each.message), said->text);
      }
    }
  }
}

TEST_CASE("a rate that is no rate, and a function of the program that throws, fail every rank") {
  struct Row {
    const char* name;
    std::function<double()> schedule;  ///< on rank 1, from the second step on
    Errc code;                         ///< of rank 1
    const char* message;
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const char* const expected = "expected a finite number of at least 0";
  for (const Row& row : std::initializer_list<Row>{
           {"NaN", [] { return kNan; }, Errc::invalid_argument, expected},
           {"infinity", [] { return kInf; }, Errc::invalid_argument, expected},
           {"negative", [] { return -1.0; }, Errc::invalid_argument, expected},
           {"an error", []() -> double { throw Error(Errc::not_found, "no such rate"); },
            Errc::not_found, "no such rate"},
           {"an exception", []() -> double { throw std::runtime_error("no such rate"); },
            Errc::internal, "no such rate"}}) {
    CAPTURE(row.name);
    std::vector<std::int64_t> steps(2);
    const auto all = told(job_of(Strategy::shard_grad_op, 2), [&](acc::Runtime& runtime) {
      const int rank = runtime.rank();
      TwoUnits net(runtime.model(1));
      auto optimizer = net.model.optimizer(Sgd{.lr = 0.1});
      optimizer.set_schedule([&, rank](std::int64_t step, double base) {
        return rank == 1 && step > 0 ? row.schedule() : base;
      });
      net.micro_step();
      optimizer.step();
      net.micro_step();
      try {
        optimizer.step();
      } catch (const Error&) {
        steps[static_cast<std::size_t>(rank)] = optimizer.steps();
        throw;
      } catch (const std::exception& error) {
        steps[static_cast<std::size_t>(rank)] = optimizer.steps();
        throw Error(Errc::internal, error.what());
      }
    });
    REQUIRE((all[0].has_value() && all[1].has_value()));
    CHECK_MESSAGE(all[0]->code == Errc::collective, all[0]->text);
    CHECK_MESSAGE(contains(all[0]->text, "rank 1 failed in the learning rates of a step: "),
                  all[0]->text);
    CHECK_MESSAGE(contains(all[0]->text, row.message), all[0]->text);
    CHECK_MESSAGE(all[1]->code == row.code, all[1]->text);
    CHECK_MESSAGE(contains(all[1]->text, row.message), all[1]->text);
    CHECK(steps == std::vector<std::int64_t>{1, 1});
  }
}

// The destructors of the child run as well, and must change nothing.
TEST_CASE("a child that a rank makes by fork is refused, and its end changes nothing") {
  using Calls = std::vector<std::function<void()>>;
  for (const Job& job : {job_of(Strategy::full_shard, 2), job_of(Strategy::no_shard, 2, 2)}) {
    std::vector<int> status(2, -1);
    const auto all = told(job, [&](acc::Runtime& runtime) {
      const int rank = runtime.rank();
      pid_t child = 0;
      std::size_t accepted = 0;
      {
        TwoUnits net(runtime.model(1));
        auto optimizer = net.model.optimizer(Sgd{.lr = 0.1});
        auto forward = std::optional(net.fc1.forward());
        child = ::fork();
        if (child == 0) {
          const Calls calls = {[&] { runtime.barrier(); },
                               [&] { (void)runtime.mean(1000.0); },
                               [&] { (void)runtime.model(); },
                               [&] {
                                 (void)runtime.report({{"loss", 1.0}});
                               },
                               [&] { runtime.save("unused", net.model, optimizer); },
                               [&] { net.fc2.forward().end(); },
                               [&] { net.fc1.backward().end(); },
                               [&] { (void)forward->raw(net.w1); },
                               [&] { net.model.zero_grad(); },
                               [&] { (void)net.model.no_grad(); },
                               [&] { (void)net.model.memory(); },
                               [&] { optimizer.step(); },
                               [&] { optimizer.set_lr(5.0); }};
          for (const auto& call : calls) {
            try {
              call();
              ++accepted;
            } catch (const Error& error) {
              accepted += contains(error.what(), "a child that fork made") ? 0U : 1U;
            }
          }
          runtime.abort("by a child");
        } else {
          ::waitpid(child, &status[static_cast<std::size_t>(rank)], 0);
          forward->end();
          TwoUnits::backward(net.fc1, net.w1);
          net.fc2.forward().end();
          TwoUnits::backward(net.fc2, net.w2);
          CHECK(runtime.mean(rank) == 0.5);
          CHECK(optimizer.step().lr == 0.1);
        }
      }
      if (child == 0) {
        runtime = acc::Runtime::from_settings({}, nullptr);  // of one rank, which is allowed
        ::_exit(static_cast<int>(accepted) + (runtime.mean(2.0) == 2.0 ? 0 : 100));
      }
      runtime.barrier();
    });
    CHECK(status == std::vector<int>{0, 0});
    for (const auto& said : all) {
      CHECK_MESSAGE(!said.has_value(), said->text);
    }
  }
}

TEST_CASE("coefficients that are none are refused") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  TwoUnits net(runtime.model());
  for (const double bad : {kNan, kInf, -0.1}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)net.model.optimizer(AdamW{.lr = bad}), Error);
    CHECK_THROWS_AS((void)net.model.optimizer(AdamW{.beta1 = bad}), Error);
    CHECK_THROWS_AS((void)net.model.optimizer(AdamW{.beta2 = bad}), Error);
    CHECK_THROWS_AS((void)net.model.optimizer(AdamW{.eps = bad}), Error);
    CHECK_THROWS_AS((void)net.model.optimizer(AdamW{.weight_decay = bad}), Error);
    CHECK_THROWS_AS((void)net.model.optimizer(Sgd{.momentum = bad}), Error);
    CHECK_THROWS_AS(
        (void)net.model.optimizer(Sgd{}, {{.name = "a", .parameters = {"fc1.*"}, .lr = bad}}),
        Error);
  }
  CHECK_THROWS_AS((void)net.model.optimizer(Sgd{.nesterov = true}), Error);
  auto optimizer = net.model.optimizer(Sgd{.lr = 0.5});
  for (const double bad : {kNan, kInf, -0.1}) {
    CHECK_THROWS_AS(optimizer.set_lr(bad), Error);
  }
  for (const double bad : {kNan, -0.1}) {
    CHECK_THROWS_AS(optimizer.set_clip_norm(bad), Error);
    CHECK_THROWS_AS(optimizer.set_clip_value(bad), Error);
  }
  CHECK(optimizer.lr() == 0.5);
}

TEST_CASE("a step inside a scope is refused") {
  const auto all = told(job_of(Strategy::no_shard, 1), [](acc::Runtime& runtime) {
    TwoUnits net(runtime.model());
    auto optimizer = net.model.optimizer(acc::Sgd{});
    const auto use = net.fc1.forward();
    optimizer.step();
  });
  REQUIRE(all[0].has_value());
  CHECK(all[0]->code == Errc::invalid_argument);
  CHECK(contains(all[0]->text, "inside an open scope of unit 'fc1'"));
}

TEST_CASE("a handle is refused by every other unit, with the names of both") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  TwoUnits net(runtime.model());
  const auto mask = net.fc2.buffer("mask", {4}, acc::zeros());
  auto other = runtime.model();
  auto& twin = other.unit("fc1", "Linear");
  const auto of_twin = twin.parameter("weight", {kNumel}, acc::ones());
  acc::Parameter of_ended;
  {
    auto ended = runtime.model();
    of_ended = ended.unit("gone", "Linear").parameter("weight", {kNumel}, acc::ones());
  }
  struct Row {
    acc::Parameter handle;
    const char* whose;
  };
  auto forward = net.fc1.forward();
  auto backward = net.fc1.backward();
  for (const Row& row : {Row{net.w2, "'fc2.weight' belongs to unit 'fc2'"},
                         Row{of_twin, "'fc1.weight' belongs to unit 'fc1' of another model"},
                         Row{of_ended, "the handle belongs to a model that no longer exists"},
                         Row{acc::Parameter{}, "the handle was never given a value"}}) {
    const std::string expected =
        std::string("unit 'fc1' was asked for a parameter that it does not have: ") + row.whose;
    CHECK_THROWS_WITH_AS((void)forward[row.handle], expected.c_str(), Error);
    CHECK_THROWS_WITH_AS((void)forward.raw(row.handle), expected.c_str(), Error);
    CHECK_THROWS_WITH_AS((void)backward[row.handle], expected.c_str(), Error);
    CHECK_THROWS_WITH_AS((void)backward.grad(row.handle), expected.c_str(), Error);
    CHECK_THROWS_WITH_AS((void)backward.grad_to_add(row.handle), expected.c_str(), Error);
  }
  CHECK_THROWS_WITH_AS(twin.tie("alias", net.w1),
                       "unit 'fc1' was asked for a parameter that it does not have: 'fc1.weight' "
                       "belongs to unit 'fc1' of another model",
                       Error);
  CHECK_THROWS_WITH_AS(
      (void)net.fc1.data(mask),
      "unit 'fc1' was asked for a buffer that it does not have: 'fc2.mask' belongs to unit 'fc2'",
      Error);
}

TEST_CASE("a scope that has ended cannot be used") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  TwoUnits net(runtime.model());
  auto forward = net.fc1.forward();
  auto moved = std::move(forward);
  CHECK_THROWS_WITH_AS((void)forward[net.w1], "this scope of a unit has ended", Error);
  CHECK(moved[net.w1][0] == 1.0F);
  moved.end();
  CHECK_THROWS_WITH_AS((void)moved.raw(net.w1), "this scope of a unit has ended", Error);
  auto backward = net.fc1.backward();
  backward.end();
  CHECK_THROWS_WITH_AS((void)backward.grad(net.w1), "this scope of a unit has ended", Error);
  CHECK_THROWS_WITH_AS((void)backward.raw_grad_to_add(net.w1), "this scope of a unit has ended",
                       Error);
}

TEST_CASE("ranks that declare different models get an error with the differences") {
  using Declare = std::function<acc::Model(acc::Runtime&)>;
  const auto model_of = [](acc::Shape shape, acc::ParameterOptions options = {}) {
    return Declare([=](acc::Runtime& runtime) {
      auto model = runtime.model();
      model.unit("fc1", "Linear").parameter("weight", shape, acc::ones(), options);
      model.unit("fc2", "Linear").parameter("weight", {8}, acc::ones());
      return model;
    });
  };
  struct Row {
    const char* name;
    Declare odd;
    const char* here;   ///< message on the rank that differs
    const char* there;  ///< message on the other ranks
  };
  const Row rows[] = {
      {"another size", model_of({65, 16}), "fc1.weight is [65, 16] here, [64, 16] on rank 0",
       "fc1.weight is [64, 16] here, [65, 16] on rank 1"},
      {"the same number of elements", model_of({16, 64}),
       "fc1.weight is [16, 64] here, [64, 16] on rank 0",
       "fc1.weight is [64, 16] here, [16, 64] on rank 1"},
      {"frozen", model_of({64, 16}, {.trainable = false}),
       "fc1.weight is [64, 16], frozen here, [64, 16] on rank 0",
       "fc1.weight is [64, 16] here, [64, 16], frozen on rank 1"},
      {"a parameter more",
       [](acc::Runtime& runtime) {
         auto model = runtime.model();
         auto& fc1 = model.unit("fc1", "Linear");
         fc1.parameter("weight", {64, 16}, acc::ones());
         fc1.parameter("bias", {16}, acc::zeros());
         model.unit("fc2", "Linear").parameter("weight", {8}, acc::ones());
         return model;
       },
       "fc1.bias is [16] here, not declared on rank 0",
       "fc1.bias is not declared here, [16] on rank 1"},
      {"another order",
       [](acc::Runtime& runtime) {
         auto model = runtime.model();
         model.unit("fc2", "Linear").parameter("weight", {8}, acc::ones());
         model.unit("fc1", "Linear").parameter("weight", {64, 16}, acc::ones());
         return model;
       },
       "unit 'fc2' comes before unit 'fc1' here, after it on rank 0",
       "unit 'fc1' comes before unit 'fc2' here, after it on rank 1"},
      {"another class",
       [](acc::Runtime& runtime) {
         auto model = runtime.model();
         model.unit("fc1", "Block").parameter("weight", {64, 16}, acc::ones());
         model.unit("fc2", "Linear").parameter("weight", {8}, acc::ones());
         return model;
       },
       "unit 'fc1' is a unit of class Block here, a unit of class Linear on rank 0",
       "unit 'fc1' is a unit of class Linear here, a unit of class Block on rank 1"},
      {"another dtype",
       [](acc::Runtime& runtime) {
         auto model = runtime.model(0, {.dtype = acc::DType::bfloat16});
         model.unit("fc1", "Linear").parameter("weight", {64, 16}, acc::ones());
         model.unit("fc2", "Linear").parameter("weight", {8}, acc::ones());
         return model;
       },
       "the model's dtype is bfloat16 here, float32 on rank 0",
       "the model's dtype is float32 here, bfloat16 on rank 1"},
      {"another seed",
       [](acc::Runtime& runtime) {
         auto model = runtime.model(7);
         model.unit("fc1", "Linear").parameter("weight", {64, 16}, acc::ones());
         model.unit("fc2", "Linear").parameter("weight", {8}, acc::ones());
         return model;
       },
       "the model's seed is 7 here, 0 on rank 0", "the model's seed is 0 here, 7 on rank 1"},
  };
  const Declare usual = model_of({64, 16});
  for (const int machines : {1, 3}) {
    for (const Row& row : rows) {
      CAPTURE(machines);
      CAPTURE(row.name);
      const auto all = told(job_of(Strategy::full_shard, 3, machines), [&](acc::Runtime& runtime) {
        auto model = runtime.rank() == 1 ? row.odd(runtime) : usual(runtime);
        model.optimizer(acc::Sgd{});
      });
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        REQUIRE(all[rank].has_value());
        CHECK(all[rank]->code == Errc::disagreement);
        CHECK(all[rank]->text == std::string("the ranks declare different models: ") +
                                     (rank == 1 ? row.here : row.there));
      }
    }
  }
}

// The collectives of fc1 and fc2 have the same size, so nothing else tells the ranks apart.
TEST_CASE("ranks that use units of one size in different orders get an error before the step") {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::shard_optimizer,
                                  Strategy::shard_grad_op, Strategy::full_shard}) {
    for (const int machines : {1, 3}) {
      if (machines > 1 && strategy == Strategy::full_shard) {
        continue;  // the gathers of the backward differ already
      }
      CAPTURE(to_string(strategy));
      CAPTURE(machines);
      const auto all = told(job_of(strategy, 3, machines), [&](acc::Runtime& runtime) {
        TwoUnits net(runtime.model());
        auto optimizer = net.model.optimizer(acc::Sgd{});
        net.micro_step();
        optimizer.step();  // correct on all ranks
        net.fc1.forward().end();
        net.fc2.forward().end();
        TwoUnits::backward(runtime.rank() == 1 ? net.fc1 : net.fc2,
                           runtime.rank() == 1 ? net.w1 : net.w2);
        TwoUnits::backward(runtime.rank() == 1 ? net.fc2 : net.fc1,
                           runtime.rank() == 1 ? net.w2 : net.w1);
        optimizer.step();
      });
      for (const auto& each : all) {
        REQUIRE(each.has_value());
        CHECK(each->code == Errc::invalid_argument);
        CHECK(
            each->text ==
            "the ranks used the units in different orders since the last step: as number 3, rank 1 "
            "begins the backward of unit 'fc1', and rank 2 begins the backward of unit 'fc2'; all "
            "ranks must run the same forwards and backwards");
      }
    }
  }
}

TEST_CASE("checked accesses change no result") {
  struct Layout {
    int ranks, machines;
    bool copies;
  };
  for (const Strategy strategy :
       {Strategy::no_shard, Strategy::shard_optimizer, Strategy::shard_grad_op,
        Strategy::full_shard, Strategy::hybrid_shard}) {
    for (const Layout layout :
         {Layout{1, 1, false}, Layout{4, 1, false}, Layout{4, 1, true}, Layout{4, 2, false}}) {
      for (const auto precision :
           {acc::settings::MixedPrecision::no, acc::settings::MixedPrecision::bf16}) {
        CAPTURE(to_string(strategy));
        CAPTURE(layout.ranks);
        CAPTURE(layout.machines);
        CAPTURE(layout.copies);
        CAPTURE(to_string(precision));
        const auto train = [&](bool check) {
          Job job = job_of(strategy, layout.ranks, layout.machines);
          job.sharding.gradient_accumulation_steps = 2;
          job.sharding.mixed_precision = precision;
          job.copy_gathers = layout.copies;
          if (strategy == Strategy::hybrid_shard) {
            job.sharding.shard_size = layout.ranks == 1 ? 1 : 2;
          }
          std::vector<float> weights;
          std::mutex mutex;
          acc::test::run_ranks(job, [&](acc::settings::RuntimeSettings settings, auto store) {
            settings.check = check;
            auto runtime = acc::Runtime::from_settings(settings, std::move(store));
            TwoUnits net(runtime.model());
            auto optimizer = net.model.optimizer(acc::AdamW{.lr = 0.1});
            for (int step = 0; step < 3; ++step) {
              net.micro_step();
              net.micro_step();
              optimizer.step();
            }
            const auto guard = net.model.no_grad();
            const auto use = net.fc1.forward();
            if (runtime.rank() == 0) {
              const std::lock_guard lock(mutex);
              weights.assign(use[net.w1], use[net.w1] + kNumel);
            }
          });
          return weights;
        };
        CHECK(train(true) == train(false));
      }
    }
  }
}
