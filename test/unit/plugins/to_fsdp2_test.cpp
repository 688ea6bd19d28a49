// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/documents/convert_config.hpp"
#include "acc/documents/document_writer.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

namespace acc::documents {
namespace {

using test::contains;

TEST_CASE("to-fsdp2: keys are renamed, dropped or copied as Accelerate does") {
  const Conversion result =
      to_fsdp2(parse_yaml("distributed_type: FSDP\nfsdp_config:\n"
                          "  fsdp_sharding_strategy: HYBRID_SHARD_ZERO2\n"
                          "  fsdp_backward_prefetch: BACKWARD_PRE\n"
                          "  fsdp_forward_prefetch: true\n"
                          "  fsdp_sync_module_states: true\n"
                          "  fsdp_use_orig_params: true\n"
                          "  fsdp_limit_all_gathers: true\n",
                          "c.yaml"));
  CHECK(to_yaml(result.document) ==
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_limit_all_gathers: true\n"
        "  fsdp_reshard_after_forward: false\n  fsdp_version: 2\n");
  std::string remarks;
  for (const std::string& line : result.remarks) {
    remarks += line + "\n";
  }
  for (const char* key : {"fsdp_backward_prefetch", "fsdp_forward_prefetch",
                          "fsdp_sync_module_states", "fsdp_use_orig_params"}) {
    CHECK(contains(remarks, std::string(key) + " is left out"));
  }
  CHECK(contains(remarks,
                 "c.yaml:3: fsdp_sharding_strategy HYBRID_SHARD_ZERO2 shards within groups"));
  CHECK_THROWS_AS(to_fsdp2(parse_yaml("", "c.yaml")), Error);
  CHECK_THROWS_AS(to_fsdp2(parse_yaml("fsdp_config:\n  fsdp_sharding_strategy: FULL\n", "c.yaml")),
                  Error);
}

}  // namespace
}  // namespace acc::documents
