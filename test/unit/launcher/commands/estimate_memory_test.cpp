// SPDX-License-Identifier: Apache-2.0
// Compares sizes of models with the parameter counts that their publishers state, and a rank's
// memory with values calculated by hand.
#include "acc/base/error.hpp"
#include "acc/base/optimizer_sizes.hpp"
#include "commands/estimate_memory/memory_model.hpp"
#include "commands/estimate_memory/model_size.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <fstream>

using namespace acc::launcher;
using acc::settings::Strategy;
using acc::test::contains;
using acc::test::TemporaryFolder;

namespace {

commands::ModelSize size_of_config(const std::string& json) {
  return commands::size_from_config(acc::documents::parse_json(json, "config.json"));
}

std::string write_safetensors(const TemporaryFolder& folder, const std::string& name,
                              const std::string& header) {
  const std::string path = folder.path() / name;
  std::ofstream file(path, std::ios::binary);
  for (std::size_t i = 0; i < 8; ++i) {
    file.put(static_cast<char>(header.size() >> (8 * i)));
  }
  file << header;  // without weights, which are not read
  return path;
}

constexpr std::int64_t kParameters = 8'000'000;
constexpr std::int64_t kUnit = 500'000;
constexpr std::int64_t kRoot = 200'000;

commands::TrainingSize four_gpus() {
  return {.numel = kParameters,
          .largest_unit = kUnit,
          .root = kRoot,
          .num_processes = 4,
          .num_local = 2};
}

}  // namespace

TEST_CASE("estimate-memory: parameter counts of published models") {
  struct Case {
    const char* config;
    std::int64_t numel;
    std::int64_t largest_unit;
  };
  const Case cases[] = {
      {R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
           "n_inner": null, "vocab_size": 50257})",
       124'439'808, 7'087'872},
      {R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
           "tie_word_embeddings": false, "vocab_size": 32000})",
       6'738'415'616, 202'383'360},
      {R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "tie_word_embeddings": false, "vocab_size": 128256})",
       8'030'261'248, 218'112'000},
      {R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "vocab_size": 32000})",
       7'241'732'096, 218'112'000},
      {R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "num_local_experts": 8, "vocab_size": 32000})",
       46'702'792'704, 1'451'270'144},
      {R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
           "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
           "tie_word_embeddings": true, "vocab_size": 151936})",
       494'032'768, 14'912'384},
      {R"({"model_type": "qwen3", "head_dim": 128, "hidden_size": 1024,
           "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28,
           "num_key_value_heads": 8, "tie_word_embeddings": true, "vocab_size": 151936})",
       596'049'920, 15'730'944},
      {R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
           "vocab_size": 32064})",
       3'821'079'552, 113'252'352},
      {R"({"model_type": "gemma", "head_dim": 256, "hidden_size": 2048,
           "intermediate_size": 16384, "num_attention_heads": 8, "num_hidden_layers": 18,
           "num_key_value_heads": 1, "vocab_size": 256000})",
       2'506'172'416, 110'104'576},
      {R"({"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072,
           "max_position_embeddings": 512, "num_hidden_layers": 12, "type_vocab_size": 2,
           "vocab_size": 30522})",
       109'482'240, 7'087'872},
      {R"({"model_type": "roberta", "hidden_size": 768, "intermediate_size": 3072,
           "max_position_embeddings": 514, "num_hidden_layers": 12, "type_vocab_size": 1,
           "vocab_size": 50265})",
       124'645'632, 7'087'872},
      {R"({"model_type": "distilbert", "dim": 768, "hidden_dim": 3072,
           "max_position_embeddings": 512, "n_layers": 6, "vocab_size": 30522})",
       66'362'880, 7'087'872},
      {R"({"model_type": "opt", "ffn_dim": 3072, "hidden_size": 768,
           "max_position_embeddings": 2048, "num_hidden_layers": 12, "vocab_size": 50272})",
       125'239'296, 7'087'872},
      {R"({"model_type": "opt", "do_layer_norm_before": false, "ffn_dim": 4096,
           "hidden_size": 1024, "max_position_embeddings": 2048, "num_hidden_layers": 24,
           "vocab_size": 50272, "word_embed_proj_dim": 512})",
       331'196'416, 12'596'224},
      {R"({"model_type": "gpt_neox", "hidden_size": 768, "intermediate_size": 3072,
           "num_hidden_layers": 12, "vocab_size": 50304})",
       162'322'944, 7'087'872},
      {R"({"model_type": "t5", "d_ff": 2048, "d_kv": 64, "d_model": 512,
           "feed_forward_proj": "relu", "num_heads": 8, "num_layers": 6, "vocab_size": 32128})",
       60'506'624, 4'195'840},
      {R"({"model_type": "t5", "d_ff": 1024, "d_kv": 64, "d_model": 512,
           "feed_forward_proj": "gated-gelu", "num_heads": 6, "num_layers": 8,
           "num_decoder_layers": 8, "tie_word_embeddings": false, "vocab_size": 32128})",
       76'961'152, 3'147'264},
  };
  for (const Case& each : cases) {
    CAPTURE(each.config);
    const commands::ModelSize size = size_of_config(each.config);
    CHECK(size.numel() == each.numel);
    CHECK(size.largest_unit() == each.largest_unit);
  }
}

TEST_CASE("estimate-memory: all missing keys of a config are reported together") {
  const std::string unknown = acc::test::refusal(
      [] { size_of_config(R"({"model_type": "mamba"})"); }, {acc::Errc::not_supported});
  CHECK(contains(unknown, "config.json:1: model_type mamba"));
  CHECK(contains(unknown, "gpt2, gpt_neox, llama"));
  CHECK(contains(acc::test::refusal([] { size_of_config("{}"); }), "model_type is missing"));
  const std::string missing = acc::test::refusal(
      [] { size_of_config(R"({"model_type": "gpt2", "n_embd": "wide", "n_layer": 2})"); });
  CHECK(contains(missing, "n_embd must be an integer 0..1000000000, got \"wide\""));
  CHECK(contains(missing, "vocab_size must be an integer 0..1000000000, got nothing"));
}

TEST_CASE("estimate-memory: a parameter count as the model, such as 7B") {
  CHECK(commands::size_from_count("7B", 32)->numel() == 7'000'000'000);
  CHECK(commands::size_from_count("1.5b", 32)->numel() == 1'500'000'000);
  CHECK(commands::size_from_count("350M", 32)->largest_unit() == 10'937'500);
  CHECK(commands::size_from_count("124439808", 12)->numel() == 124'439'808);
  CHECK(commands::size_from_count("100", 12)->root() == 4);
  for (const char* text : {"", "B", "many", "-1B", "0", "nan", "7 B", "1e30"}) {
    CAPTURE(text);
    CHECK_FALSE(commands::size_from_count(text, 32).has_value());
  }
}

TEST_CASE("estimate-memory: headers of safetensors files") {
  const TemporaryFolder folder;
  const std::string first = write_safetensors(folder, "a.safetensors",
                                              R"({"__metadata__": {"format": "pt"},
          "model.embed.weight": {"dtype": "BF16", "shape": [100, 8], "data_offsets": [0, 1600]},
          "model.layers.0.mlp.weight": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [0, 1]},
          "model.layers.0.mlp.bias": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 1]}})");
  const commands::ModelSize one = commands::size_of_source(first, 1);
  CHECK(one.numel() == 872);
  CHECK(one.largest_unit() == 72);
  CHECK(one.largest_part() == 800);
  CHECK(one.root() == 800);

  write_safetensors(folder, "b.safetensors",
                    R"({"model.layers.1.mlp.weight": {"dtype": "F32", "shape": [8, 9]},
                        "model.scale": {"dtype": "F32", "shape": []}})");
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << R"({"metadata": {}, "weight_map": {"model.embed.weight": "a.safetensors",
             "model.layers.0.mlp.weight": "a.safetensors", "model.scale": "b.safetensors"}})";
  const commands::ModelSize both = commands::size_of_source(folder.path(), 1);
  CHECK(both.numel() == 872 + 73);
  CHECK(both.root() == 801);
}

TEST_CASE("estimate-memory: invalid files are rejected") {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder.path() / name) << text;
    return acc::test::refusal([&] { commands::size_of_source(folder.path() / name, 1); },
                              acc::test::kBadInput);
  };
  CHECK(contains(error("text.safetensors", "some text that is no header"), "not a safetensors"));
  CHECK(contains(error("short.safetensors", std::string("\x20\0\0\0\0\0\0\0{", 9)), "truncated"));
  CHECK(contains(error("list.safetensors", std::string("\x02\0\0\0\0\0\0\0[]", 10)), "no tensor"));
  const auto shaped = [&](const std::string& shape) {
    const std::string header = R"({"t": {"shape": )" + shape + "}}";
    return error("shape.safetensors",
                 std::string({static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0}) + header);
  };
  for (const std::string shape : {"[-1]", "[1.5]", "7", "null", "[true]", "[1e99]"}) {
    CAPTURE(shape);
    CHECK(contains(shaped(shape), "tensor 't': expected a list of numbers as shape, found "));
  }
  CHECK(contains(shaped("[4294967296,4294967296]"), "'t' has a matrix of 4294967296 x"));
  CHECK(contains(shaped("[4294967296,4294967296,4]"), "more than 1000000000000000 parameters"));
  CHECK(contains(shaped("[[[1]]]"), "nested deeper than 3 levels"));
  CHECK(contains(shaped("[1]}, \"t\": {\"shape\": [2]"), "tensor 't' is listed twice"));
  CHECK(contains(shaped("["), "header or index: parse error at line 1, column "));
  CHECK(contains(error("config.json", R"({"model_type": "gpt2", "n_embd": 100000000,
            "vocab_size": 1000000000, "n_positions": 1000000000, "n_layer": 1000000000})"),
                 "more than 1000000000000000 parameters, most of them in 1000000000 x 'block'"));
  CHECK(contains(error("x.index.json", "{}"), "weight_map"));
  CHECK(contains(error("y.index.json", R"({"weight_map": {"t": "gone.safetensors"}})"), "gone"));
  CHECK(contains(acc::test::refusal([] { commands::size_of_source("no-such-model", 1); },
                                    acc::test::kBadInput),
                 "no-such-model does not exist"));
  const TemporaryFolder empty;
  CHECK(contains(
      acc::test::refusal([&] { commands::size_of_source(empty.path(), 1); }, acc::test::kBadInput),
      "config.json"));
}

TEST_CASE("estimate-memory: memory of a rank in fp32") {
  const commands::TrainingSize size = four_gpus();
  const std::int64_t gathered = 4 * 3 * kUnit;  // the root's buffer has a unit's size
  const std::int64_t buffers = 4 * (2 * kUnit + kRoot);
  CHECK(commands::rank_memory(size, Strategy::no_shard, commands::Offload::none) ==
        commands::RankMemory{.parameters = 4 * kParameters,
                             .gradients = 4 * kParameters,
                             .optimizer = 8 * kParameters,
                             .device = 16 * kParameters});
  CHECK(commands::rank_memory(size, Strategy::shard_optimizer, commands::Offload::none) ==
        commands::RankMemory{.parameters = 4 * kParameters,
                             .gradients = 4 * kParameters,
                             .optimizer = 2 * kParameters,
                             .device = 10 * kParameters});
  CHECK(commands::rank_memory(size, Strategy::shard_grad_op, commands::Offload::none) ==
        commands::RankMemory{.parameters = kParameters,
                             .gradients = kParameters,
                             .optimizer = 2 * kParameters,
                             .gathered = 4 * (kParameters - kRoot + kUnit),
                             .gradient_buffers = buffers,
                             .device = 8 * kParameters + 4 * (kUnit - kRoot) + buffers});
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none) ==
        commands::RankMemory{.parameters = kParameters,
                             .gradients = kParameters,
                             .optimizer = 2 * kParameters,
                             .gathered = gathered,
                             .gradient_buffers = buffers,
                             .device = 4 * kParameters + gathered + buffers});
  commands::TrainingSize keeping = size;
  keeping.keeps = 3'000'000;
  CHECK(commands::rank_memory(keeping, Strategy::full_shard, commands::Offload::none).gathered ==
        4 * 3'000'000);
  keeping.keeps = 1'000'000'000;  // limited by the size of the model
  CHECK(commands::rank_memory(keeping, Strategy::full_shard, commands::Offload::none).gathered ==
        4 * (kParameters - kRoot + kUnit));
  commands::TrainingSize persistent = size;
  persistent.persistent = kParameters;
  CHECK(
      commands::rank_memory(persistent, Strategy::full_shard, commands::Offload::none).parameters ==
      4 * kParameters);
  CHECK(commands::rank_memory(persistent, Strategy::full_shard, commands::Offload::none).gathered ==
        0);
  commands::TrainingSize waiting = size;
  waiting.overlaps = false;
  CHECK(commands::rank_memory(waiting, Strategy::full_shard, commands::Offload::none)
            .gradient_buffers == 4 * (kUnit + kRoot));
  CHECK(commands::rank_memory(size, Strategy::hybrid_shard, commands::Offload::none).optimizer ==
        4 * kParameters);
}

TEST_CASE("estimate-memory: 16-bit weights need additional fp32 master weights") {
  commands::TrainingSize size = four_gpus();
  size.sixteen_bit = true;
  size.moments = 1;
  const commands::RankMemory memory =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::none);
  CHECK(memory.parameters == (2 + 4) * kParameters / 4);
  CHECK(memory.gradients == kParameters);
  CHECK(memory.optimizer == kParameters);
  CHECK(memory.gathered == 2 * 3 * kUnit);
}

TEST_CASE("estimate-memory: rules for matrices: arrays of a unit, of the root, and of owners") {
  using acc::RuleScope;
  struct Row {
    const char* rule;
    int unit;
    int root;
    int matrices;
    std::int64_t owned;  ///< of a matrix [4, 10001], whose longer side has no square
  };
  constexpr std::int64_t kMatrix = std::int64_t{4} * 10001;
  for (const Row& row : {Row{"muon", 3, 2, 1, 0}, Row{"soap", 2, 2, 0, 2 * kMatrix + 2 * 16},
                         Row{"shampoo", 2, 2, 0, 2 * 16}, Row{"adafactor", 0, 0, 0, 4 + 10001},
                         Row{"adamw", 2, 2, 2, 0}}) {
    CAPTURE(row.rule);
    const acc::OptimizerRule& rule = *acc::find_optimizer_rule(row.rule);
    CHECK(acc::usual_arrays(rule, RuleScope::all) == row.unit);
    CHECK(acc::usual_arrays(rule, RuleScope::others) == row.root);
    CHECK(acc::usual_arrays(rule, RuleScope::matrices) == row.matrices);
    CHECK(acc::usual_owned_numel(rule, {4, 10001}) == row.owned);
  }
  commands::TrainingSize size = four_gpus();
  size.moments = 3;
  size.more_root_moments = -1;
  size.absent_moments = 2;
  size.matrices = kParameters - size.root - 4096;
  size.owned = 4 * kParameters;
  size.wholes = kParameters - size.root;
  const std::int64_t kept =
      4 * (3 * kParameters - size.root - 2 * size.matrices) / 4 + 4 * kParameters;
  const commands::RankMemory offloaded =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::optimizer);
  CHECK(offloaded.optimizer == kept + 4 * (2 * size.wholes + size.wholes / 4));
  size.on_cpu = true;
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none).optimizer ==
        kept + 4 * size.wholes / 4);
  size.wholes = std::int64_t{1} << 26U;  // two windows
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none).optimizer ==
        kept + (std::int64_t{1} << 26U));
}

TEST_CASE("estimate-memory: states in 8 bits, and their snapshot in float32") {
  commands::TrainingSize size = four_gpus();
  size.states_8bit = true;
  size.async_saves = true;
  const commands::RankMemory memory =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::none);
  CHECK(memory.optimizer == (2 * kParameters + 4 * 2 * kParameters / 256) / 4);
  CHECK(memory.snapshot == 4 * 3 * kParameters / 4);

  size.on_cpu = true;
  size.nvme = commands::Offload::optimizer;
  size.sixteen_bit = true;
  const commands::RankMemory in_files =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::none);
  CHECK(in_files.optimizer == memory.optimizer);
  CHECK(in_files.nvme == 4 * kParameters / 4);  // master weights
}

TEST_CASE("estimate-memory: weights trained in 16 bits need no separate master weights") {
  commands::TrainingSize size = four_gpus();
  size.low_precision = true;
  const commands::RankMemory memory =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::none);
  CHECK(memory.parameters == 2 * kParameters / 4);
  CHECK(memory.gradients == kParameters);
  CHECK(memory.optimizer == 2 * 2 * kParameters / 4);
  CHECK(memory.gathered == 2 * 3 * kUnit);
}

TEST_CASE("estimate-memory: gradients accumulated under no_sync are not sharded") {
  commands::TrainingSize size = four_gpus();
  size.no_sync = true;
  const commands::RankMemory full =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::none);
  CHECK(full.gradients == kParameters);
  CHECK(full.gradient_buffers == 4 * kParameters);
  size.sixteen_bit = true;
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none).gradients ==
        kParameters + 4 * kParameters);
}

TEST_CASE("estimate-memory: with save_async each rank has a copy of what it writes") {
  commands::TrainingSize size = four_gpus();
  size.async_saves = true;
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
    const commands::RankMemory memory =
        commands::rank_memory(size, strategy, commands::Offload::none);
    CHECK(memory.snapshot == 12 * kParameters / 4);
    CHECK(memory.host == memory.snapshot);
  }
  size.low_precision = true;
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none).snapshot ==
        6 * kParameters / 4);
}

TEST_CASE("estimate-memory: snapshots in memory, and copies of another machine's") {
  struct Case {
    Strategy strategy;
    commands::Offload offload;
    int local;
    std::int64_t numbers;  ///< of 12 bytes, times the number of parameters
  };
  constexpr std::int64_t kAll = kParameters;
  for (const Case& each : {
           Case{Strategy::full_shard, commands::Offload::none, 4, 3 * kAll / 4},
           Case{Strategy::full_shard, commands::Offload::optimizer, 4, 2 * kAll / 4},
           Case{Strategy::full_shard, commands::Offload::none, 2, 5 * kAll / 4},
           Case{Strategy::hybrid_shard, commands::Offload::none, 2, 3 * kAll / 2},
           Case{Strategy::no_shard, commands::Offload::none, 2, 3 * kAll},
       }) {
    commands::TrainingSize size = four_gpus();
    size.num_local = each.local;
    size.memory_checkpoints = true;
    CHECK(commands::rank_memory(size, each.strategy, each.offload).snapshot == 12 * each.numbers);
  }
}

TEST_CASE("estimate-memory: offload moves the selected states to the host") {
  commands::TrainingSize size = four_gpus();
  size.sixteen_bit = true;
  const commands::RankMemory kept =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::none);
  const commands::RankMemory optimizer =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::optimizer);
  const commands::RankMemory all =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::all);
  CHECK(kept.host == 0);
  // Master weights, gradients, two moments, and a buffer of rounded weights for the copy back.
  CHECK(optimizer.host == (4 + 4 + 8 + 2) * kParameters / 4);
  CHECK(all.host == (2 + 4 + 4 + 8) * kParameters / 4);
  CHECK(optimizer.device < kept.device);
  CHECK(all.device == optimizer.device - 2 * kParameters / 4 + 2 * kUnit / 4);
  for (const commands::RankMemory& each : {kept, optimizer, all}) {
    CHECK(each.device + each.host == each.parameters + each.gradients + each.optimizer +
                                         each.gathered + each.gradient_buffers);
  }
}

TEST_CASE("estimate-memory: ranks of one machine share gathered weights on the CPU") {
  commands::TrainingSize size = four_gpus();
  size.num_local = 4;
  size.on_cpu = true;
  const commands::RankMemory memory =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::all);
  CHECK(memory.device == 0);
  CHECK(memory.gathered == 0);
  CHECK(memory.host == 4 * kParameters + 4 * (2 * kUnit + kRoot));

  size.sixteen_bit = true;  // shared 16-bit copy in addition to the master weights
  const commands::RankMemory mixed =
      commands::rank_memory(size, Strategy::full_shard, commands::Offload::none);
  CHECK(mixed.gathered == 2 * kParameters / 4);
  CHECK(mixed.gradient_buffers == 2 * 2 * kUnit);
  size.widens = true;  // fp32 weights and gradients of a unit and of the root
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none).gathered ==
        2 * kParameters / 4 + 4 * (kUnit + kRoot + 2 * kUnit));

  CHECK(commands::rank_memory(size, Strategy::shard_grad_op, commands::Offload::none).gathered ==
        2 * kParameters / 4 + 4 * (kParameters + kUnit + kRoot));
  CHECK(commands::rank_memory(size, Strategy::no_shard, commands::Offload::none).gathered ==
        2 * kParameters + 4 * kParameters);

  size.copies = true;
  size.sixteen_bit = size.widens = false;
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none).gathered ==
        4 * 2 * kUnit);
  size.prefetches = true;
  CHECK(commands::rank_memory(size, Strategy::full_shard, commands::Offload::none).gathered ==
        4 * 3 * kUnit);
}

// Golden values: DeepSpeed 0.19.8's functions with total_params 1000003, largest_layer 50001.
TEST_CASE("estimate-memory: DeepSpeed's formulas give the same values as DeepSpeed") {
  struct Case {
    int gpus_per_machine;
    int num_machines;
    commands::DeepSpeedMemory zero2, zero2_offload, zero3, zero3_optimizer, zero3_all;
  };
  for (const Case& each : {Case{8,
                                1,
                                {4'250'012, 48'000'144},
                                {2'000'006, 48'000'144},
                                {2'450'010, 2'400'048},
                                {450'004, 24'000'072},
                                {200'004, 27'000'081}},
                           {8,
                            4,
                            {2'562'507, 48'000'144},
                            {2'000'006, 192'000'576},
                            {762'505, 2'400'048},
                            {262'504, 6'000'018},
                            {200'004, 6'750'020}},
                           {2,
                            3,
                            {5'000'015, 12'000'036},
                            {2'000'006, 36'000'108},
                            {3'200'013, 600'012},
                            {533'338, 8'000'024},
                            {200'004, 9'000'027}}}) {
    CAPTURE(each.gpus_per_machine);
    const commands::DeepSpeedSize size{1'000'003, 50'001, each.gpus_per_machine, each.num_machines};
    CHECK(commands::deepspeed_zero2(size, commands::Offload::none) == each.zero2);
    CHECK(commands::deepspeed_zero2(size, commands::Offload::optimizer) == each.zero2_offload);
    CHECK(commands::deepspeed_zero3(size, commands::Offload::none) == each.zero3);
    CHECK(commands::deepspeed_zero3(size, commands::Offload::optimizer) == each.zero3_optimizer);
    CHECK(commands::deepspeed_zero3(size, commands::Offload::all) == each.zero3_all);
  }
}
