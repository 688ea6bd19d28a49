// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/catalog/catalog.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

using namespace acc::checkpoint;

namespace {

StoredTensor tensor(const char* name, const char* kind, const char* stored_name) {
  StoredTensor result;
  result.name = name;
  result.kind = kind;
  result.stored_name = stored_name;
  return result;
}

}  // namespace

TEST_CASE("tensors are found by name and kind, files are listed once") {
  Catalog catalog;
  CHECK(catalog.file("a/x") == 0);
  CHECK(catalog.file("a/y") == 1);
  CHECK(catalog.file("a/x") == 0);
  CHECK(catalog.files.size() == 2);
  CHECK(catalog.files[0].path() == "a/x");
  CHECK(catalog.files[1].path() == "a/y");
  catalog.tensors = {tensor("w", "param", "model.w"), tensor("w", "exp_avg", "state.w.exp_avg"),
                     tensor("b", "param", "model.b")};
  catalog.index();
  CHECK(catalog.find("w", "exp_avg") == &catalog.tensors[1]);
  CHECK(&catalog.at("b", "param", "here") == &catalog.tensors[2]);
  CHECK(catalog.find("b", "exp_avg") == nullptr);
  CHECK_THROWS_WITH_AS(static_cast<void>(catalog.at("c", "param", "here")),
                       "here: no tensor 'c' (param) among its 3", acc::Error);
}

TEST_CASE("a tensor that occurs twice is refused by its stored names") {
  Catalog catalog;
  catalog.tensors = {tensor("w", "param", "model.w"), tensor("w", "param", "module.w")};
  CHECK_THROWS_WITH_AS(catalog.index(),
                       doctest::Contains("tensor 'w' (param) occurs twice: as 'model.w' and as "
                                         "'module.w' (cannot be read here, and may be sound)"),
                       acc::Error);
}
