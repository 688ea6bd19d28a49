// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/launcher/sub_command.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kHybrid =
    "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n"
    "  fsdp_sharding_strategy: HYBRID_SHARD\n";

/// Runs a sub-command. Returns the message of its error; empty if it succeeds.
std::string refusal(std::string_view command, const Words& arguments) {
  const auto found = std::ranges::find(sub_commands(), command, &SubCommand::name);
  REQUIRE(found != sub_commands().end());
  return acc::test::refusal(
      [&] {
        const int status = found->run(arguments);
        CHECK(status == 0);
      },
      acc::test::kBadInput);
}

class Folder {
 public:
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
    return path(name);
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_.path() / name).rdbuf();
    return text.str();
  }
  [[nodiscard]] Words names() const {
    Words names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

 private:
  acc::test::TemporaryFolder folder_;
};

TEST_CASE("convert-config: settings that Accelerate's file lacks are written to a second file") {
  const Folder folder;
  const std::string input = folder.write("in.yaml", kHybrid);
  CHECK(refusal("convert-config", {input, "-o", folder.path("out.yaml")}).empty());
  CHECK(folder.names() == Words{"in.yaml", "out.yaml", "out_deepspeed.json"});
  CHECK(acc::test::contains(folder.read("out.yaml"),
                            "deepspeed_config_file: " + folder.path("out_deepspeed.json")));
  CHECK(acc::test::contains(folder.read("out_deepspeed.json"), "\"zero_hpz_partition_size\": 4"));
  // The conversion back reads both files.
  CHECK(refusal("convert-config",
                {folder.path("out.yaml"), "--output_file", folder.path("back.yaml")})
            .empty());
  CHECK(acc::test::contains(folder.read("back.yaml"), "fsdp_sharding_strategy: HYBRID_SHARD"));
}

TEST_CASE("convert-config: an output name that ends in .json selects JSON") {
  const Folder folder;
  const std::string input = folder.write("in.yaml", kHybrid);
  CHECK(refusal("convert-config", {input, "--to", "fsdp2", "-o", folder.path("out.json")}).empty());
  CHECK(folder.read("out.json").starts_with("{\n  \"distributed_type\": \"FSDP\","));
}

TEST_CASE("convert-config: no file is written if one of the output files exists") {
  for (const std::string taken : {"out.yaml", "out_deepspeed.json"}) {
    CAPTURE(taken);
    const Folder folder;
    const std::string input = folder.write("in.yaml", kHybrid);
    const std::string other = folder.write(taken, "mine");
    const Words arguments = {input, "-o", folder.path("out.yaml")};
    CHECK(acc::test::contains(refusal("convert-config", arguments), other + " exists"));
    CHECK(folder.read(taken) == "mine");
    CHECK(folder.names().size() == 2);
    CHECK(refusal("convert-config", {input, "-o", folder.path("out.yaml"), "--overwrite"}).empty());
    CHECK(folder.read(taken) != "mine");
  }
}

TEST_CASE("convert-config and to-fsdp2: invalid arguments are rejected") {
  const Folder folder;
  const std::string input = folder.write("in.yaml", kHybrid);
  struct Case {
    std::string command;
    Words arguments;
    std::string part;
  };
  for (const auto& [command, arguments, part] : std::vector<Case>{
           {"convert-config", {}, "input"},
           {"convert-config", {folder.path("none.yaml")}, "cannot read"},
           {"convert-config", {input, "--to", "fsdp3"}, "did you mean \"fsdp\"?"},
           {"convert-config", {input, "--gpus_per_machine", "0"}, "gpus_per_machine"},
           {"convert-config", {input, "--gpus"}, "--gpus"},
           {"to-fsdp2", {}, "config_file"},
           {"to-fsdp2", {"--config_file", input}, "give --output_file, or --overwrite"},
           {"to-fsdp2", {"--config_file", folder.path("none.yaml"), "--overwrite"}, "cannot read"},
           {"to-fsdp2", {"--config_file", input, "--output_file", input}, "exists"},
       }) {
    CAPTURE(part);
    CHECK(acc::test::contains(refusal(command, arguments), part));
  }
  CHECK(folder.read("in.yaml") == kHybrid);
  CHECK(folder.names() == Words{"in.yaml"});
}

}  // namespace
}  // namespace acc::launcher
