#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

// Two runs of one layout give the same bits, whoever arrives first.
namespace {

using acc::test::Program;
using acc::test::TemporaryFolder;

struct Result {
  std::vector<std::pair<double, double>> steps;  ///< loss and norm
  std::string weights;                           ///< the file
  bool operator==(const Result&) const = default;
};

Program launch(int machine, const std::string& port, const std::filesystem::path& folder,
               const std::map<std::string, std::string>& variables) {
  const std::string data = std::string(ACC_TEST_DATA) + "/parity_gpt";
  return Program({std::string(ACC_BIN_DIR) + "/acclaunch",
                  "--config_file",
                  std::string(ACC_SOURCE_DIR) + "/configs/fsdp_hybrid_shard.yaml",
                  "--cpu",
                  "--mixed_precision",
                  "bf16",
                  "--num_processes",
                  "4",
                  "--num_machines",
                  "2",
                  "--machine_rank",
                  std::to_string(machine),
                  "--main_process_ip",
                  "127.0.0.1",
                  "--main_process_port",
                  port,
                  std::string(ACC_BIN_DIR) + "/train_gpt",
                  "--batches",
                  data + "/tokens.npy",
                  "--layers",
                  "2",
                  "--heads",
                  "4",
                  "--dim",
                  "64",
                  "--seq_len",
                  "64",
                  "--vocab",
                  "256",
                  "--init_from",
                  data + "/init.safetensors",
                  "--steps",
                  "10",
                  "--metrics",
                  (folder / "metrics.jsonl").string(),
                  "--export",
                  (folder / "weights.safetensors").string()},
                 variables);
}

Result train(const std::map<std::string, std::string>& variables) {
  const TemporaryFolder folder;
  const acc::test::ReservedPort port;
  Program machine0 = launch(0, port.text(), folder.path(), variables);
  Program machine1 = launch(1, port.text(), folder.path(), variables);
  for (Program* machine : {&machine0, &machine1}) {
    const int status = machine->wait();
    CAPTURE(machine->err());
    REQUIRE(status == 0);
  }
  Result result;
  std::ifstream metrics(folder.path() / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto step = nlohmann::json::parse(line);
    result.steps.emplace_back(step.at("loss"), step.at("grad_norm"));
  }
  result.weights = acc::test::file_text((folder.path() / "weights.safetensors").string());
  return result;
}

}  // namespace

TEST_CASE("hybrid in bf16 on two machines is repeated to the bit, deterministic or not") {
  const Result once = train({});
  REQUIRE(once.steps.size() == 10);
  REQUIRE(once.weights.size() > 120'576 * 4);
  CHECK(once.steps.front() != once.steps.back());
  CHECK((train({}) == once));
  CHECK((train({{"ACC_DETERMINISTIC", "true"}}) == once));
}
