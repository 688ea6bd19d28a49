// SPDX-License-Identifier: Apache-2.0
// wrong_program MISTAKE [RANK]: trains two units for two steps. Every rank, or only RANK, makes
// the mistake. Exits with 0, or with the status of the error.
//
//   none       makes no mistake
//   write      writes a weight through the read-only view
//   late       reads a weight after its scope
//   later      reads a weight after the step
//   handle     requests the parameter of one unit from the other unit
//   backward   omits the last backward
//   gradient   opens a backward without writing a gradient
//   shape      declares a weight with another size

#include "acc/runtime.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int kInputs = 64;
constexpr int kOutputs = 16;

class WrongProgram {
 public:
  WrongProgram(const std::string& mistake, int at_fault)
      : runtime_(acc::Runtime::from_environment()),
        mistake_(at_fault < 0 || at_fault == runtime_.rank() ? mistake : "none"),
        model_(runtime_.model()),
        fc1_(model_.unit("fc1", "Linear")),
        fc2_(model_.unit("fc2", "Linear")),
        bias_(fc1_.parameter("bias", {kOutputs}, acc::zeros())),
        w1_(fc1_.parameter("weight", {kInputs + (mistake_ == "shape" ? 1 : 0), kOutputs},
                           acc::ones())),
        w2_(fc2_.parameter("weight", {kOutputs}, acc::ones())) {}

  void run() {
    auto optimizer = model_.optimizer(acc::Sgd{.lr = 0.5});
    for (int step = 0; step < 2; ++step) {
      forward();
      backward();
      optimizer.step();
      if (mistake_ == "later") {
        std::printf("%g\n", static_cast<double>(kept_[0]));
      }
    }
    std::printf("%s\n", runtime_.describe().c_str());
  }

 private:
  void forward() {
    {
      auto use = fc1_.forward();
      kept_ = use[w1_];
      if (mistake_ == "write") {
        const_cast<float*>(kept_)[3] = 7.0F;
      }
      if (mistake_ == "handle") {
        static_cast<void>(use[w2_]);
      }
    }
    if (mistake_ == "late") {
      std::printf("%g\n", static_cast<double>(kept_[0]));
    }
    fc2_.forward().end();
  }

  void backward() {
    {
      auto use = fc2_.backward();
      if (mistake_ != "gradient") {
        use.grad_to_add(w2_)[0] += 1.0F;
      }
    }
    if (mistake_ == "backward") {
      return;
    }
    auto use = fc1_.backward();
    use.grad_to_add(w1_)[0] += 1.0F;
    use.grad_to_add(bias_)[0] += 1.0F;
  }

  acc::Runtime runtime_;
  std::string mistake_;
  acc::Model model_;
  acc::Unit& fc1_;
  acc::Unit& fc2_;
  acc::Parameter bias_, w1_, w2_;
  const float* kept_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    WrongProgram(argc > 1 ? argv[1] : "none", argc > 2 ? std::atoi(argv[2]) : -1).run();
    return 0;
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "wrong_program: %s\n", error.what());
    return acc::exit_status(error);
  }
}
