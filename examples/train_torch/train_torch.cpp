// SPDX-License-Identifier: Apache-2.0
// Trains a GPT-2 with LibTorch's autograd, sharded as the launcher's configuration says.
#include "gpt.hpp"

#include <fstream>
#include <iostream>

int main(int argc, char** argv) try {
  // data: a text; tokens: a tensor of integers, [steps, rows, length + 1], from Python's torch.save
  std::map<std::string, std::string> flags = {
      {"data", ""},     {"tokens", ""},   {"layers", "2"}, {"dim", "64"},
      {"heads", "4"},   {"vocab", "256"}, {"rows", "8"},   {"length", "64"},
      {"steps", "100"}, {"lr", "1e-3"},   {"clip", "1"},   {"init_from", ""},
      {"resume", ""},   {"save", ""},     {"export", ""},  {"metrics", ""}};
  for (int i = 1; i + 1 < argc; i += 2) {
    flags.at(std::string(argv[i]).substr(2)) = argv[i + 1];
  }
  const auto number = [&](const char* name) { return std::stoll(flags.at(name)); };
  acc::Runtime runtime = acc::Runtime::from_environment();
  std::ifstream file(flags["tokens"] + flags["data"], std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  Tensor tokens;
  if (flags["data"].empty()) {
    tokens = torch::pickle_load(bytes).toTensor().to(torch::kLong);
  } else {  // a token is a byte of the text
    const int64_t steps = number("steps"), rows = number("rows"), width = number("length") + 1;
    const Tensor at = torch::arange(steps * rows * width) % static_cast<int64_t>(bytes.size());
    const auto text = torch::from_blob(const_cast<char*>(bytes.data()), bytes.size(), torch::kByte);
    tokens = text.index({at}).to(torch::kLong).view({steps, rows, width});
  }
  torch::manual_seed(0);
  Gpt model(number("vocab"), tokens.size(2) - 1, number("dim"), number("layers"), number("heads"));
  const auto decays = [](const std::string&, const Tensor& value) { return value.dim() > 1; };
  const auto sharded = acc::torch::fully_shard(model, runtime, {.weight_decay = decays});
  acc::Optimizer optimizer = sharded.model().optimizer(
      acc::AdamW{.lr = std::stod(flags["lr"]), .beta2 = 0.95, .weight_decay = 0.1});
  optimizer.set_clip_norm(std::stod(flags["clip"]));
  if (const auto& path = flags["init_from"]; !path.empty())
    sharded.load_weights(path);
  if (const auto& path = flags["resume"]; !path.empty())
    sharded.load(path, optimizer);
  std::ofstream metrics(runtime.rank() == 0 ? flags["metrics"] : "");
  const int micro_steps = runtime.gradient_accumulation_steps();
  for (int64_t step = optimizer.steps(); step < number("steps"); ++step) {
    const Tensor mine = tokens[step].tensor_split(runtime.world_size())[runtime.rank()];
    double total = 0.0;
    for (const Tensor& part : mine.tensor_split(micro_steps)) {
      const Tensor loss = acc::torch::call(model, part);
      (loss * optimizer.loss_scale()).backward();
      total += loss.item<double>() / micro_steps;
    }
    const double norm = optimizer.step().grad_norm, loss = runtime.mean(total);
    runtime.report({{"loss", loss}});
    metrics << "{\"step\": " << step << std::setprecision(10) << ", \"loss\": " << loss
            << ", \"grad_norm\": " << norm << "}" << std::endl;
    if (runtime.rank() == 0 && step % 10 == 9) {
      std::cout << "step " << step + 1 << ", loss " << loss << std::endl;
    }
  }
  if (const auto& path = flags["save"]; !path.empty())
    sharded.save(path, optimizer);
  if (const auto& path = flags["export"]; !path.empty())
    sharded.export_weights(path);
} catch (const std::exception& error) {
  std::cerr << "train_torch: " << error.what() << '\n';
  return 1;
}
