// SPDX-License-Identifier: Apache-2.0
// torch_two_gloos: two ranks, each on a machine of its own by their settings, use the Gloo of
// LibTorch (c10d::ProcessGroupGloo) and that of libacc_runtime in one process, in turn. Prints
// "both".
#include <acc/torch.hpp>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

namespace {

using torch::Tensor;

void expect(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

c10::intrusive_ptr<c10d::TCPStore> make_store(int rank, const std::array<int, 2>& port) {
  c10d::TCPStoreOptions options;
  options.isServer = rank == 0;
  options.numWorkers = 2;
  options.waitWorkers = false;
  std::uint16_t number = 0;
  if (rank != 0) {
    expect(::read(port[0], &number, sizeof number) == sizeof number, "no port of rank 0");
  }
  options.port = number;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  if (rank == 0) {
    number = store->getPort();
    expect(::write(port[1], &number, sizeof number) == sizeof number, "cannot pass the port");
  }
  return store;
}

double all_reduced(c10d::ProcessGroupGloo& group, double value) {
  std::vector<Tensor> values = {torch::full({1000}, value)};
  group.allreduce(values)->wait();
  return values[0].mean().item<double>();
}

void run(int rank, const std::array<int, 2>& port) {
  const auto store = make_store(rank, port);
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(rank));
  set("GROUP_RANK", std::to_string(rank));
  set("GROUP_WORLD_SIZE", "2");
  set("WORLD_SIZE", "2");
  set("LOCAL_RANK", "0");
  set("LOCAL_WORLD_SIZE", "1");
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(store->getPort()));
  set("FSDP_SHARDING_STRATEGY", "FULL_SHARD");
  const auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  c10d::ProcessGroupGloo group(store, rank, 2, options);
  expect(all_reduced(group, rank + 1.0) == 3.0, "LibTorch's sum, before ours");
  acc::Runtime runtime = acc::Runtime::from_environment();
  expect(runtime.mean(rank) == 0.5, "our mean");
  torch::nn::Linear net(8, 8);
  const auto sharded = acc::torch::fully_shard(net, runtime);
  const auto before = sharded.state_dict(false);
  acc::Optimizer optimizer = sharded.model().optimizer(acc::Sgd{.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    acc::torch::call(net, torch::full({2, 8}, rank + 1.0)).sum().backward();
    expect(all_reduced(group, rank) == 1.0, "LibTorch's sum, between ours");
    optimizer.step();
  }
  const auto after = sharded.state_dict(false);
  // Gradients are the sum over two rows of the mean of the ranks' inputs, 1 and 2.
  expect((before.at("weight") - after.at("weight")).allclose(torch::full({8, 8}, 3 * 0.1 * 3.0)),
         "weights");
  expect((before.at("bias") - after.at("bias")).allclose(torch::full({8}, 3 * 0.1 * 2.0)),
         "biases");
}

}  // namespace

int main() try {
  std::array<int, 2> port{};
  expect(::pipe(port.data()) == 0, "pipe");
  const pid_t child = ::fork();  // before LibTorch has threads
  run(child == 0 ? 1 : 0, port);
  if (child == 0) {
    return 0;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  expect(status == 0, "rank 1 failed");
  std::cout << "both" << std::endl;
} catch (const std::exception& error) {
  std::cerr << "torch_two_gloos: " << error.what() << '\n';
  return 1;
}
