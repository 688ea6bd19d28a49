// SPDX-License-Identifier: Apache-2.0
// Questions of `config`, their order, and the file that the answers produce.
// test/compat/config_test.py compares them with those of Accelerate.
#include "commands/config/questionnaire.hpp"

#include "acc/base/error.hpp"
#include "acc/documents/document_writer.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <map>

using namespace acc::launcher;
using acc::test::contains;

namespace {

struct Conversation {
  std::string asked;  ///< keys, in order
  commands::Answers answers;
};

/// Answers all questions: from `given`, or with the default.
Conversation talk(std::map<std::string, std::string> given) {
  Conversation conversation;
  while (const auto question = commands::next_question(conversation.answers)) {
    conversation.asked += (conversation.asked.empty() ? "" : " ") + question->key;
    conversation.answers.add(question->key, commands::read_answer(*question, given[question->key]));
    given.erase(question->key);
  }
  CHECK(given.empty());
  return conversation;
}

commands::Question question_of(const std::string& key, std::map<std::string, std::string> given) {
  commands::Answers answers;
  while (const auto question = commands::next_question(answers)) {
    if (question->key == key) {
      return *question;
    }
    answers.add(question->key, commands::read_answer(*question, given[question->key]));
  }
  FAIL("not asked: " << key);
  return {};
}

std::string refusal(const commands::Question& question, const std::string& input) {
  return acc::test::refusal([&] { return commands::read_answer(question, input); },
                            {acc::Errc::invalid_argument});
}

}  // namespace

TEST_CASE("questionnaire: an answer selects the next questions") {
  CHECK(talk({}).asked ==
        "compute_environment distributed_type use_cpu use_dynamo use_deepspeed gpu_ids "
        "enable_cpu_affinity mixed_precision");
  CHECK(talk({{"use_cpu", "yes"}}).asked ==
        "compute_environment distributed_type use_cpu use_dynamo use_deepspeed mixed_precision");
  CHECK(talk({{"distributed_type", "multi-GPU"},
              {"use_fsdp", "y"},
              {"fsdp_version", "1"},
              {"fsdp_auto_wrap_policy", "NO_WRAP"},
              {"fsdp_cpu_ram_efficient_loading", "NO"}})
            .asked ==
        "compute_environment distributed_type num_machines debug use_dynamo use_deepspeed "
        "use_fsdp fsdp_version fsdp_sharding_strategy fsdp_offload_params fsdp_auto_wrap_policy "
        "fsdp_backward_prefetch fsdp_state_dict_type fsdp_forward_prefetch fsdp_use_orig_params "
        "fsdp_cpu_ram_efficient_loading fsdp_sync_module_states fsdp_activation_checkpointing "
        "num_processes mixed_precision");
}

TEST_CASE("questionnaire: the file that the defaults produce") {
  CHECK(acc::documents::to_yaml(commands::config_document(talk({}).answers, "/home/me")) ==
        "compute_environment: LOCAL_MACHINE\n"
        "debug: false\n"
        "distributed_type: 'NO'\n"
        "downcast_bf16: 'no'\n"
        "enable_cpu_affinity: false\n"
        "gpu_ids: all\n"
        "machine_rank: 0\n"
        "main_training_function: main\n"
        "mixed_precision: 'no'\n"
        "num_machines: 1\n"
        "num_processes: 1\n"
        "rdzv_backend: static\n"
        "same_network: true\n"
        "tpu_env: []\n"
        "tpu_use_cluster: false\n"
        "tpu_use_sudo: false\n"
        "use_cpu: false\n");
}

TEST_CASE("questionnaire: the strategy of FSDP 1 is written under both of its keys") {
  const auto config = commands::config_document(talk({{"distributed_type", "4"},
                                                      {"use_fsdp", "yes"},
                                                      {"fsdp_version", "1"},
                                                      {"fsdp_sharding_strategy", "1"}})
                                                    .answers,
                                                "/home/me");
  CHECK(config.find("fsdp_config")->find("fsdp_sharding_strategy")->text == "SHARD_GRAD_OP");
  CHECK(config.find("fsdp_config")->find("fsdp_reshard_after_forward")->text == "SHARD_GRAD_OP");
}

TEST_CASE("questionnaire: ~ in the path of a hostfile is the home directory") {
  const auto config = commands::config_document(
      talk({{"distributed_type", "1"}, {"use_mpirun", "yes"}}).answers, "/home/me");
  CHECK(config.find("mpirun_config")->find("mpirun_hostfile")->text == "/home/me/hostfile");
}

TEST_CASE("questionnaire: menus have Accelerate's numbers; unsupported choices are rejected") {
  const commands::Question kind = question_of("distributed_type", {});
  CHECK(commands::read_answer(kind, "4") == "MULTI_GPU");
  CHECK(commands::read_answer(kind, " multi-GPU\r") == "MULTI_GPU");
  CHECK(contains(refusal(kind, "5"), "does not support multi-NPU"));
  CHECK(contains(refusal(kind, "10"), "does not support TPU"));
  CHECK(contains(refusal(kind, "12"), "expected 0 (No distributed training), 1 (multi-CPU)"));

  const commands::Question version =
      question_of("fsdp_version", {{"distributed_type", "4"}, {"use_fsdp", "yes"}});
  CHECK(commands::read_answer(version, "") == "2");
  CHECK(commands::read_answer(version, "1") == "1");
  CHECK(contains(refusal(version, "0"), "expected 1, 2, got \"0\""));
}

TEST_CASE("questionnaire: the machine rank is less than the number of machines") {
  std::map<std::string, std::string> given = {{"distributed_type", "4"}, {"num_machines", "3"}};
  const commands::Question few = question_of("machine_rank", given);
  CHECK(few.kind == commands::QuestionKind::menu);
  CHECK(few.choices.size() == 3);
  given["num_machines"] = "1000";
  const commands::Question many = question_of("machine_rank", given);
  CHECK(many.kind == commands::QuestionKind::integer);
  CHECK(commands::read_answer(many, "999") == "999");
  CHECK(contains(refusal(many, "1000"), "0 to 999"));
}

TEST_CASE("questionnaire: a job on several GPUs of one machine has at least two processes") {
  const commands::Question processes = question_of("num_processes", {{"distributed_type", "4"}});
  CHECK(processes.fallback == "2");
  CHECK(commands::read_answer(processes, "") == "2");
  CHECK(contains(refusal(processes, "1"), "an integer from 2 to"));
  CHECK(commands::read_answer(processes, "2") == "2");
}

TEST_CASE("questionnaire: every default is accepted as an answer") {
  using Given = std::map<std::string, std::string>;
  for (const Given& given :
       {Given{},
        {{"distributed_type", "1"}, {"use_mpirun", "yes"}},
        {{"distributed_type", "4"}, {"use_dynamo", "yes"}},
        {{"distributed_type", "4"}, {"mixed_precision", "fp8"}},
        {{"distributed_type", "4"}, {"use_deepspeed", "yes"}},
        {{"distributed_type", "4"}, {"use_fsdp", "yes"}},
        {{"distributed_type", "4"}, {"use_fsdp", "yes"}, {"fsdp_version", "1"}},
        {{"distributed_type", "4"},
         {"num_machines", "2"},
         {"main_process_ip", "10.0.0.1"},
         {"main_process_port", "29500"}}}) {
    commands::Answers answers;
    while (const auto question = commands::next_question(answers)) {
      CAPTURE(question->key);
      const auto answer = given.find(question->key);
      if (answer == given.end() && !question->fallback.empty()) {  // as if the user typed it
        CHECK(commands::read_answer(*question, question->fallback) ==
              commands::read_answer(*question, ""));
      }
      answers.add(question->key,
                  commands::read_answer(*question, answer == given.end() ? "" : answer->second));
    }
  }
}
