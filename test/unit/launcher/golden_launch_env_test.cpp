// Compares what resolve() and worker_environment() give with what Accelerate 1.15 gave its workers
// (test/data/launch_env), variable by variable. Where acclaunch means to differ, the case stands in
// kDifferences with the reason.
#include "plan_fixture.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace acc::launcher {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct Difference {
  std::string reason;
  std::string outcome;  ///< `accepted`, `refused`, or the variables as compare() lists them
};

const std::string kTakesCpuOnly = "--cpu chooses the device, not the mode";

const std::map<std::string, Difference> kDifferences = {
    {"ds_and_cpu_refused", {kTakesCpuOnly, "accepted"}},
    {"fsdp_and_cpu_refused", {kTakesCpuOnly, "accepted"}},
    {"fsdp_yaml_with_cpu_flag_is_simple", {kTakesCpuOnly, "other mode"}},
    {"yaml_default_location_ignored_with_cpu_flag", {kTakesCpuOnly, "other mode"}},
    {"yaml_multi_cpu_2machines_no_port", {"the port has a default in every mode", "accepted"}},
    {"fsdp_no_num_processes_no_gpu", {"without GPUs it is one process", "accepted"}},
    {"dynamo_flag_upper_case_refused", {"words are read in any letter case", "accepted"}},
    {"gpu_ids_yaml_bare_int", {"an accident of the reference", "accepted"}},
    {"mixed_yaml_bare_no", {"an accident of the reference", "accepted"}},
    {"gpu_ids_flag_single", {"--gpu_ids insists on GPUs", "refused"}},
    {"fsdp_yaml_unknown_inner_key_ignored", {"unknown keys are errors", "refused"}},
    {"ds_yaml_config_file_conflicting_keys",
     {"the reference's program refuses it later", "refused"}},
    {"fsdp_yaml_questionnaire_v1",
     {"the strategy chosen in the questionnaire counts",
      "FSDP_SHARDING_STRATEGY: expected FULL_SHARD, got SHARD_GRAD_OP\n"}},
    {"fsdp_yaml_docs_example",
     {"the old name of a key counts", "FSDP_BACKWARD_PREFETCH: not expected, got BACKWARD_PRE\n"}},
    {"fsdp_yaml_cli_override",
     {"the old name of a key counts", "FSDP_BACKWARD_PREFETCH: not expected, got BACKWARD_PRE\n"}},
};

/// Variables by which torchrun's modes differ from Accelerate's simple mode, which acclaunch has
/// not: its workers are ranks, be it one.
bool only_of_ranks(const std::string& name) {
  static const std::set<std::string> kNames = {"RANK",
                                               "LOCAL_RANK",
                                               "WORLD_SIZE",
                                               "LOCAL_WORLD_SIZE",
                                               "GROUP_RANK",
                                               "MASTER_ADDR",
                                               "GROUP_WORLD_SIZE",
                                               "ROLE_RANK",
                                               "ROLE_WORLD_SIZE",
                                               "ROLE_NAME",
                                               "MASTER_PORT",
                                               "KMP_AFFINITY",
                                               "KMP_BLOCKTIME",
                                               "TORCH_NCCL_ASYNC_ERROR_HANDLING"};
  return kNames.contains(name) || name.starts_with("TORCHELASTIC_");
}

class GoldenCase {
 public:
  explicit GoldenCase(json data) : data_(std::move(data)) {
    const bool no_gpu =
        data_.value("requires", json::array()).dump().find("no_gpu") != std::string::npos;
    fixture_.set_gpus(no_gpu ? 0 : 8, no_gpu ? 0 : 8);
    const json parent = data_.value("parent_env", json::object());
    for (const auto& [name, value] : parent.items()) {
      fixture_.environment[name] = value.get<std::string>();
    }
    fixture_.environment.erase("CUDA_LAUNCH_BLOCKING");
    fixture_.write("program.py", "", true);
    if (data_["yaml"].is_string()) {
      const bool at_default_place = data_.value("yaml_location", "") == "default";
      config_ =
          fixture_.write(at_default_place ? ".cache/huggingface/accelerate/default_config.yaml"
                                          : data_.value("config_name", "config.yaml"),
                         data_["yaml"].get<std::string>());
    }
    // The reference started workers without looking for the DeepSpeed file.
    for (const std::string name : {"conf/Ds_Z3.json", "ds.json", "ds_config.json"}) {
      fixture_.write(name, R"({"zero_optimization": {"stage": 3}})");
    }
  }

  [[nodiscard]] std::vector<std::string> arguments(std::size_t launcher) const {
    const json& list = data_.contains("launchers") && data_["launchers"].is_array()
                           ? data_["launchers"][launcher]
                           : data_["argv"];
    std::vector<std::string> result;
    for (const json& word : list) {
      result.push_back(substituted(word.get<std::string>()));
    }
    return result;
  }

  /// What acclaunch makes of the case: `accepted` or `refused`, and the message.
  [[nodiscard]] std::pair<std::string, std::string> verdict() const {
    const std::string message = fixture_.refusal(arguments(0));
    return {message.empty() ? "accepted" : "refused", message};
  }

  /// Every difference between one worker of ours and of the reference, a line each.
  [[nodiscard]] std::string compare(const json& rank) const {
    const json launcher = rank.value("launcher_index", json(0));
    const std::size_t index = launcher.is_number() ? launcher.get<std::size_t>() : 0;
    LaunchPlan plan = fixture_.plan(arguments(index));
    const json& expected = rank["env"];
    if (plan.rendezvous.backend == RendezvousPlan::Backend::c10d) {
      plan.machine_rank = std::stoi(expected.value("GROUP_RANK", "0"));  // that it was given
    }
    const bool simple = !expected.contains("RANK");
    const int local_rank = simple ? 0 : std::stoi(expected.value("LOCAL_RANK", "0"));
    plugins::Environment found = fixture_.worker(plan, local_rank);
    std::string differences = compare_command(plan.command, rank["command"], simple);
    for (const auto& [name, value] : expected.items()) {
      if (simple && only_of_ranks(name)) {
        continue;
      }
      const std::string want = substituted(value.get<std::string>());
      const auto ours = found.find(name);
      if (ours == found.end() || (want != "<any>" && ours->second != want)) {
        differences += name + ": expected " + want + ", got " +
                       (ours == found.end() ? "nothing" : ours->second) + "\n";
      }
    }
    for (const auto& [name, value] : found) {
      const auto parent = fixture_.environment.find(name);
      const bool unchanged = parent != fixture_.environment.end() && parent->second == value;
      if (!unchanged && !expected.contains(name) && !name.starts_with("ACC_") &&
          !(simple && only_of_ranks(name))) {
        differences += name + ": not expected, got " + value + "\n";
      }
    }
    return differences;
  }

 private:
  /// Python is started unbuffered in every mode; the reference's simple mode leaves `-u` out.
  [[nodiscard]] std::string compare_command(std::vector<std::string> found, const json& expected,
                                            bool simple) const {
    if (simple) {
      std::erase(found, "-u");
    }
    if (found.size() + 1 == expected.size()) {
      found.insert(found.begin(), "python3");  // the kernel puts the script's interpreter there
    }
    bool same = found.size() == expected.size();
    for (std::size_t i = 0; same && i < found.size(); ++i) {
      const std::string want = substituted(expected[i].get<std::string>());
      same = want == "<python>" ? found[i].find("python") != std::string::npos : found[i] == want;
    }
    return same ? ""
                : "command: expected " + expected.dump() + ", got " + json(found).dump() + "\n";
  }

  [[nodiscard]] std::string substituted(const std::string& word) const {
    if (word == "PROGRAM")
      return (fixture_.folder() / "program.py").string();
    if (word == "PROGRAM_MODULE")
      return "program";
    if (word == "CONFIG")
      return config_.string();
    std::string result = word;
    for (auto at = result.find("<cwd>"); at != std::string::npos; at = result.find("<cwd>")) {
      result.replace(at, 5, fixture_.folder().string());
    }
    return result;
  }

  json data_;
  test::PlanFixture fixture_;
  fs::path config_;
};

TEST_CASE("workers see what Accelerate shows them, but for the differences on purpose") {
  int compared = 0;
  for (const auto& file : fs::directory_iterator(fs::path(ACC_TEST_DATA) / "launch_env")) {
    std::ifstream stream(file.path());
    const json data = json::parse(stream);
    const std::string name = data["name"];
    CAPTURE(name);
    const GoldenCase golden(data);
    const auto known = kDifferences.find(name);
    const std::string outcome = known == kDifferences.end() ? "" : known->second.outcome;
    const bool reference_refuses = data.contains("error") && !data["error"].is_null();
    const auto [verdict, message] = golden.verdict();
    const bool about_verdict = outcome == "accepted" || outcome == "refused";
    const std::string expected =
        about_verdict ? outcome : std::string(reference_refuses ? "refused" : "accepted");
    CHECK_MESSAGE(verdict == expected, name, ": ", message);
    if (reference_refuses || about_verdict || verdict == "refused" || outcome == "other mode") {
      continue;
    }
    for (const json& rank : data["ranks"]) {
      const std::string differences = golden.compare(rank);
      CHECK_MESSAGE(differences == outcome, name, ":\n", differences);
      ++compared;
    }
  }
  CHECK(compared > 100);
}

}  // namespace
}  // namespace acc::launcher
