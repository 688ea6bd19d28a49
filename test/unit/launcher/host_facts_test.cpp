#include "acc/launcher/host_facts.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

TEST_CASE("CUDA_VISIBLE_DEVICES counts up to the first entry that names no GPU") {
  struct Case {
    std::string list;
    int physical;
    int visible;
  };
  for (const auto& [list, physical, visible] :
       {Case{"", 4, 0}, Case{"0", 4, 1}, Case{"0,2", 4, 2}, Case{"0,9,1", 4, 1}, Case{"-1", 4, 0},
        Case{"-1,0", 4, 0}, Case{"GPU-8f3a", 4, 1}, Case{"0,1", 0, 0}}) {
    CAPTURE(list);
    CHECK(visible_gpus(list, physical) == visible);
  }
}

TEST_CASE("the machine itself has cores, a name and a place for acclaunch") {
  const HostFacts facts = detect_host_facts({{"TMPDIR", "/var/tmp"}, {"CUDA_VISIBLE_DEVICES", ""}});
  CHECK(facts.cores >= 1);
  CHECK(facts.gpus == 0);
  CHECK_FALSE(facts.hostname.empty());
  CHECK(facts.executable_directory == std::filesystem::path(ACC_BIN_DIR));
  CHECK(facts.scratch_directory.parent_path() == "/var/tmp");
}

}  // namespace
}  // namespace acc::launcher
