// SPDX-License-Identifier: Apache-2.0
#include "run/options.hpp"

#include "support/errors.hpp"

#include <acc/base/error.hpp>
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

using namespace train_gpt;

namespace {

const std::string kBatches = std::string(ACC_TEST_DATA) + "/parity_gpt/tokens.npy";

Options parse(const std::string& line) {
  std::istringstream stream("train_gpt " + line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) {
    argv.push_back(word.c_str());
  }
  return parse_options(static_cast<int>(argv.size()), argv.data()).value();
}

std::string refusal(const std::string& line) {
  return acc::test::refusal([&] { return parse(line); }, acc::test::kBadInput);
}

struct TemporaryFile {
  std::string path;

  explicit TemporaryFile(const std::string& content)
      : path((std::filesystem::temp_directory_path() / "train_gpt_XXXXXX").string()) {
    ::close(::mkstemp(path.data()));
    std::ofstream(path) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("sizes that are not given are derived from the data") {
  const Options bytes = parse("--data a b --dim 64 --heads 2");
  CHECK(bytes.data == std::vector<std::string>{"a", "b"});
  CHECK(bytes.model.vocab == 256);
  CHECK(bytes.model.max_positions == bytes.seq_len);
  CHECK_FALSE(bytes.grad_clip.has_value());

  const Options batches = parse("--batches " + kBatches + " --vocab 256 --betas 0.8,0.9");
  CHECK(batches.steps == 20);
  CHECK(batches.seq_len == 64);
  CHECK(batches.betas == std::vector{0.8, 0.9});
}

TEST_CASE("a GPT-2 model configuration file is read") {
  const TemporaryFile config(
      R"({"n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 100, "vocab_size": 300,
          "tie_word_embeddings": false, "layer_norm_epsilon": 1e-6, "n_inner": null,
          "activation_function": "gelu_new"})");
  const Options options = parse("--tokens t.bin --seq_len 50 --model_config " + config.path);
  CHECK(options.model.layers == 3);
  CHECK(options.model.max_positions == 100);
  CHECK(options.seq_len == 50);
  CHECK_FALSE(options.model.tie_word_embeddings);
  CHECK(options.model.layer_norm_epsilon == 1e-6f);
}

TEST_CASE("options that cannot work are refused with advice") {
  const TemporaryFile incomplete(R"({"n_layer": 3, "n_head": 2, "n_embd": 8})");
  const TemporaryFile relu(
      R"({"n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 9, "vocab_size": 9,
          "activation_function": "relu"})");
  struct Case {
    std::string line, expected;
  };
  const std::vector<Case> cases = {
      {"", "nothing to train on"},
      {"--data x --nope", "--nope"},
      {"--data x --tokens y", "excludes"},
      {"--data x --betas 0.9", "--betas"},
      {"--data x --dim 10 --heads 3", "dim must be a multiple of heads, got dim 10 and heads 3"},
      {"--data x --layers 0", "layers (n_layer) must be at least 1, got 0"},
      {"--tokens x", "--vocab is needed"},
      {"--data x --global_batch 8 --micro_batch 2", "excludes"},
      {"--once_per_epoch --vocab 256 --batches " + kBatches, "excludes"},
      {"--batches " + kBatches + " --vocab 256 --global_batch 8", "excludes"},
      {"--batches " + kBatches + " --vocab 256 --steps 21", "holds 20"},
      {"--batches " + kBatches + " --vocab 256 --seq_len 32", "holds sequences of 64"},
      {"--data x --model_config /no/such", "cannot read the model configuration /no/such"},
      {"--data x --model_config " + incomplete.path, "the key 'n_positions' is missing"},
      {"--data x --model_config " + relu.path, "activation_function \"relu\" is not supported"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.line);
    const std::string message = refusal(c.line);
    CAPTURE(message);
    CHECK(message.find(c.expected) != std::string::npos);
  }
}

TEST_CASE("the optimizer's settings and the flags that gave them") {
  const std::string data = "--batches " + kBatches + " --vocab 256 ";
  const Options plain = parse(data);
  CHECK(plain.schedule == Schedule::constant);
  CHECK(plain.optimizer_flags.empty());
  CHECK_FALSE(plain.no_sync);
  const Options options =
      parse(data + "--lr_schedule cosine --warmup 3 --lr 0.5 --clip_value 2 --no_sync");
  CHECK(options.schedule == Schedule::cosine);
  CHECK(options.optimizer_flags == std::vector<std::string>{"--lr", "--lr_schedule", "--warmup"});
  CHECK(options.clip_value == 2.0);
  CHECK(options.no_sync);
  CHECK(refusal(data + "--lr_schedule square").find("--lr_schedule") != std::string::npos);
  CHECK(refusal(data + "--clip_value -1").find("--clip_value") != std::string::npos);
}
