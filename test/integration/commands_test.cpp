// SPDX-License-Identifier: Apache-2.0
// Sub-commands of acclaunch: output and exit status.
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

using namespace acc::test;

namespace {

using Words = std::vector<std::string>;

constexpr const char* kSuccess = "acclaunch test: everything works\n";

Words acclaunch(Words words) {
  words.insert(words.begin(), ACC_BIN_DIR "/acclaunch");
  return words;
}

std::string write(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
  const std::string path = folder.path() / name;
  std::ofstream(path) << text;
  return path;
}

}  // namespace

TEST_CASE("acclaunch test: every strategy works, and the output confirms it") {
  const std::vector<Words> cases = {
      {"--num_processes", "1"},
      {"--num_processes", "2"},
      {"--num_processes", "3", "--use_fsdp"},
      {"--num_processes", "2", "--use_fsdp", "--fsdp_sharding_strategy", "SHARD_GRAD_OP"},
      {"--num_processes", "2", "--use_fsdp", "--mixed_precision", "bf16"},
      {"--num_processes", "4", "--use_fsdp", "--fsdp_version", "2",
       "--parallelism_config_dp_shard_size", "2", "--parallelism_config_dp_replicate_size", "2"},
      {"--num_processes", "2", "--use_deepspeed", "--zero_stage", "1"},
      {"--num_processes", "2", "--use_deepspeed", "--zero_stage", "3",
       "--gradient_accumulation_steps", "2", "--gradient_clipping", "0.5"},
      {"--config_file", ACC_SOURCE_DIR "/configs/zero2.yaml", "--num_processes", "2"},
  };
  for (const Words& flags : cases) {
    CAPTURE(flags);
    Words words = {"test", "--cpu"};
    words.insert(words.end(), flags.begin(), flags.end());
    Program job(acclaunch(words));
    CHECK(job.wait() == 0);
    CAPTURE(job.err());
    CHECK(contains(job.out(), "ok  gradients are averaged over all ranks\n"));
    CHECK(contains(job.out(),
                   "ok  a checkpoint is saved and loaded, and training resumes from it\n"));
    CHECK(job.out().ends_with(kSuccess));
  }
}

TEST_CASE("acclaunch test: two machines") {
  const ReservedPort port;
  const auto machine = [&](const char* rank) {
    return acclaunch({"test", "--cpu", "--use_fsdp", "--num_processes", "4", "--num_machines", "2",
                      "--machine_rank", rank, "--main_process_ip", "127.0.0.1",
                      "--main_process_port", port.text()});
  };
  Program first(machine("0"));
  Program second(machine("1"));
  CHECK(first.wait() == 0);
  CHECK(second.wait() == 0);
  CHECK(contains(first.out(), "ok  the loss falls"));
  CHECK(contains(first.out(), "checkpoints were not tested"));
  CHECK(first.out().ends_with(kSuccess));
  CHECK(second.out() == kSuccess);
}

TEST_CASE("acclaunch test: a failure is an error with its reason") {
  Program precision(
      acclaunch({"test", "--cpu", "--num_processes", "2", "--mixed_precision", "fp8"}));
  CHECK(precision.wait() == 2);
  CHECK(contains(precision.err(), "fp8"));
  CHECK_FALSE(contains(precision.out(), kSuccess));

  Program program(acclaunch({"test", "--cpu", "/bin/true"}));
  CHECK(program.wait() == 2);
  CHECK(contains(program.err(), "remove /bin/true"));
}

TEST_CASE("acclaunch env: machine, variables and configuration, one line each") {
  const TemporaryFolder folder;
  const std::string config =
      write(folder, "c.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n");
  Program env(acclaunch({"env", "--config-file", config}),
              {{"ACC_SIMULATE_GPUS", "2"}, {"NCCL_DEBUG", "INFO"}, {"SECRET_TOKEN", "x"}});
  CHECK(env.wait() == 0);
  CHECK(contains(env.out(), "\n- acclaunch version: "));
  CHECK(contains(env.out(), "\n- Visible GPUs: 0, 1\n"));
  CHECK(contains(env.out(), "\n\t- NCCL_DEBUG: INFO\n"));
  CHECK_FALSE(contains(env.out(), "SECRET_TOKEN"));
  CHECK(env.out().ends_with("- Configuration: " + config +
                            "\n\t- distributed_type: FSDP\n"
                            "\t- fsdp_config: {fsdp_version: 2}\n"));
  rlimit limits{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limits) == 0);
  CHECK(contains(env.out(), "(nofile): " + std::to_string(limits.rlim_cur)));
}

TEST_CASE("a command gets the answers of programs if it inherits SIGCHLD as ignored") {
  const TemporaryFolder folder;
  const std::string python = write(folder, "python", "#!/bin/sh\necho 7.7.7\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  Program env({"/usr/bin/env", "--ignore-signal=CHLD", ACC_BIN_DIR "/acclaunch", "env"},
              {{"PYTHON_EXEC", python}});
  CHECK(env.wait() == 0);
  CHECK(contains(env.out(), "- Python: 7.7.7\n"));
}

TEST_CASE("acclaunch env: missing parts are reported as not found") {
  const TemporaryFolder folder;
  Program env(acclaunch({"env"}), {{"HF_HOME", folder.path()}, {"PYTHON_EXEC", "no-python-here"}});
  CHECK(env.wait() == 0);
  CHECK(contains(env.out(), "- Python: Not found\n- PyTorch: Not found\n"));
  CHECK(env.out().ends_with("- Configuration: Not found\n"));

  Program named(acclaunch({"env", "--config_file", folder.path() / "none.yaml"}));
  CHECK(named.wait() == 2);
  CHECK(contains(named.err(), "none.yaml"));

  std::filesystem::create_directory(folder.path() / "accelerate");
  const std::string broken = write(folder, "accelerate/default_config.yaml", "a: [\n");
  Program report(acclaunch({"env"}), {{"HF_HOME", folder.path()}});
  CHECK(report.wait() == 0);
  CHECK(contains(report.out(), "- Configuration: " + broken + ":"));
}

TEST_CASE("a command whose output cannot be written fails") {
  for (const std::string words : {"--version", "deepspeed --help", "estimate-memory 7B", "env"}) {
    CAPTURE(words);
    Program job({"/bin/sh", "-c", "exec " ACC_BIN_DIR "/acclaunch " + words + " > /dev/full"});
    CHECK(job.wait() == 1);
    CHECK(job.err() == "acclaunch: cannot write to standard output: No space left on device\n");
  }
}

TEST_CASE("acclaunch expand-hosts: one host per line, or an error without output") {
  struct Case {
    Words lists;
    std::string job;
    std::string out;
    int status;
    std::string err;
  };
  for (const auto& [lists, job, out, status, err] : {
           Case{{"n[08-10]", "[1-2]", "a,"}, "", "n08\nn09\nn10\n1\n2\na\n", 0, ""},
           Case{{}, "n[1-2]", "n1\nn2\n", 0, ""},
           Case{{},
                "n[2-1]",
                "",
                2,
                "SLURM_JOB_NODELIST \"n[2-1]\": expected a number of at least "
                "2 at character 5"},
           Case{{"a", "x[1-2]y"}, "", "", 2, "list \"x[1-2]y\": expected"},
           Case{{}, "", "", 2, "no list given, and SLURM_JOB_NODELIST is not set"},
           Case{{"--sorted", "a"}, "", "", 2, "unknown flag --sorted"},
       }) {
    CAPTURE(lists);
    CAPTURE(job);
    Words words = {"expand-hosts"};
    words.insert(words.end(), lists.begin(), lists.end());
    Program program(acclaunch(words), {{"SLURM_JOB_NODELIST", job}});
    CHECK(program.wait() == status);
    CHECK(program.out() == out);
    CHECK(contains(program.err(), err));
  }
}

TEST_CASE("acclaunch help: a short first page, and a page for each command") {
  Program first(acclaunch({"help"}));
  CHECK(first.wait() == 0);
  CHECK(std::ranges::count(first.out(), '\n') <= 60);
  CHECK(contains(first.out(), "--num_processes VALUE"));
  CHECK(contains(first.out(), "acclaunch help launch"));
  CHECK_FALSE(contains(first.out(), "--fsdp_offload_params"));
  Program flag(acclaunch({"--help"}));
  CHECK(flag.wait() == 0);
  CHECK(flag.out() == first.out());

  for (const std::string command :
       {"launch", "torchrun", "deepspeed", "test", "doctor", "explain", "config", "convert-config",
        "to-fsdp2", "estimate-memory", "expand-hosts", "env", "merge-weights", "inspect", "verify",
        "reshard", "convert"}) {
    CAPTURE(command);
    Program page(acclaunch({"help", command}));
    CHECK(page.wait() == 0);
    Program same(acclaunch({command, "--help"}));
    CHECK(same.wait() == 0);
    CHECK(page.out() == same.out());
    CHECK(page.out() != first.out());
    CHECK(contains(page.out(), command == "launch" ? "--fsdp_offload_params" : command));
    const std::size_t once = page.out().find("\nLaunch\n");  // each group has one heading
    CHECK(page.out().find("\nLaunch\n", once + 1) == std::string::npos);
  }
  Program none(acclaunch({"help", "estimate-memroy"}));
  CHECK(none.wait() == 2);
  CHECK(none.err() ==
        "acclaunch: help: unknown command estimate-memroy; did you mean estimate-memory?\n");
}

TEST_CASE("acclaunch: every line of an error begins with the program's name, once") {
  for (const Words& words : {Words{"--num_processes", "some", "--num_machines", "few", "/bin/true"},
                             Words{"config", "--what"}, Words{"estimate-memory"},
                             Words{"top", "--once", "--interval", "nan"}}) {
    CAPTURE(words);
    Program wrong(acclaunch(words));
    CHECK(wrong.wait() == 2);
    std::istringstream lines(wrong.err());
    for (std::string line; std::getline(lines, line);) {
      CHECK(line.starts_with("acclaunch: "));
      CHECK_FALSE(line.starts_with("acclaunch: acclaunch"));
    }
  }
}

TEST_CASE("acclaunch config: Enter accepts every default") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "config.yaml";
  Program config({"/bin/sh", "-c",
                  "printf '\\n4\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n' | " ACC_BIN_DIR
                  "/acclaunch config --config_file " +
                      file});
  CHECK(config.wait() == 0);
  CAPTURE(config.err());
  CHECK(contains(config.out(), "[2]: "));
  CHECK(contains(file_text(file), "distributed_type: MULTI_GPU\n"));
  CHECK(contains(file_text(file), "num_processes: 2\n"));
}

TEST_CASE("acclaunch doctor: one machine, and a report file on request") {
  const TemporaryFolder folder;
  for (const bool asked : {false, true}) {
    Program doctor({"/bin/sh", "-c",
                    "cd " + folder.path().string() + " && " ACC_BIN_DIR "/acclaunch doctor --cpu" +
                        (asked ? " --doctor_file found.json" : "")});
    doctor.wait();  // this machine may have problems
    CHECK(contains(doctor.out(), "Findings\n"));
    CHECK(contains(doctor.out(), "written to ") == asked);
    CHECK(std::filesystem::exists(folder.path() / "found.json") == asked);
    CHECK(std::filesystem::is_empty(folder.path()) == !asked);
  }
}

TEST_CASE("a device or a loop of symbolic links in place of a file is an error that names it") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const fs::path rank = folder.path() / "rank_0.jsonl";
  const fs::path record = folder.path() / "data.0123456789abcdef.rank0.jsonl";
  const fs::path file = folder.path() / "file.json";
  for (const auto& [target, reason] : std::initializer_list<std::pair<fs::path, std::string>>{
           {"/dev/zero", "it is neither a file nor a pipe"},
           {"", "Too many levels of symbolic links"}}) {
    for (const fs::path& each : {rank, record, file}) {
      fs::remove(each);
      fs::create_symlink(target.empty() ? each : target, each);
    }
    for (const auto& [words, path] : std::initializer_list<std::pair<Words, fs::path>>{
             {{"trace", "summary", file}, file},
             {{"plot", file, "-o", folder.path() / "page"}, file},
             {{"data", "check", folder.path()}, record},
             {{"compare", folder.path(), folder.path()}, rank}}) {
      Program program(acclaunch(words));
      CHECK(program.wait() == 2);
      CHECK_MESSAGE(contains(program.err(), path.string() + ": " + reason), program.err());
    }
  }
  for (const Words& words : {Words{"explain", "deepspeed", "--hostfile", file, "true"},
                             Words{"estimate-memory", file}}) {
    Program program(acclaunch(words));
    CHECK(program.wait() == 2);
    CHECK_MESSAGE(contains(program.err(), file.string()), program.err());
  }
}

TEST_CASE("acclaunch estimate-memory: each table names its source") {
  Program estimate(acclaunch({"estimate-memory", "7B", "--num_processes", "16"}));
  CHECK(estimate.wait() == 0);
  for (const char* part : {"Accelerate's estimate", "acclaunch's estimate",
                           "16 rank(s), 8 per machine", "HYBRID_SHARD", "DeepSpeed's estimate"}) {
    CAPTURE(part);
    CHECK(contains(estimate.out(), part));
  }
}

TEST_CASE("acclaunch estimate-memory: states in 8 bits, of an optimizer that may have them") {
  Program estimate(acclaunch({"estimate-memory", "1048576", "--states_8bit", "--cpu"}));
  CHECK(estimate.wait() == 0);
  CHECK(contains(estimate.out(), "2.03 MiB"));  // two states of 1 + 1/64 bytes
  Program sgd(acclaunch({"estimate-memory", "7B", "--states_8bit", "--optimizer", "sgd"}));
  CHECK(sgd.wait() == 2);
  CHECK(contains(sgd.err(), "the states of sgd cannot have 8 bits"));
  Program soap(acclaunch({"estimate-memory", "7B", "--optimizer", "soap"}));
  CHECK(soap.wait() != 0);
  CHECK(contains(soap.err(), "give a config.json or a safetensors file"));
}
