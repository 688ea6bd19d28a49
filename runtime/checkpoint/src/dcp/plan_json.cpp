// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/dcp/plan_json.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "files/json_value.hpp"

#include <nlohmann/json.hpp>

#include <set>

namespace acc::checkpoint::dcp {

// The plan is read from a manifest, which is untrusted. Every number has a limit, so that sums of
// bytes and elements cannot overflow and memory stays bounded by the size of the text and the
// number of files.
namespace {

using nlohmann::json;

// Far more than any checkpoint has. Sums of bytes stay far below 2^63.
constexpr std::int64_t kMaxNumel = std::int64_t{1} << 56;
constexpr std::int64_t kMaxPickle = std::int64_t{1} << 40;
// Largest number of different shard counts in one folder. Real ones have two: of units that are
// sharded, and of units that are not.
constexpr std::size_t kMaxShardings = 64;

json encode(const Path& path) {
  json steps = json::array();
  for (const auto& step : path) {
    std::visit([&](const auto& key) { steps.push_back(key); }, step);
  }
  return steps;
}

json encode(const CutArray& array) {
  json members = json::array();
  for (const CutArray::Member& member : array.members) {
    members.push_back({member.tensor, member.offset});
  }
  json value = {{"members", std::move(members)},
                {"padded_numel", array.padded_numel},
                {"shards", array.shards}};
  if (array.rank_zero_only) {
    value["rank_zero_only"] = true;
  }
  return value;
}

Path parse_path(const JsonValue& value) {
  Path path;
  for (const JsonValue& step : value.elements()) {
    if (step.is_text()) {
      path.emplace_back(step.text());
    } else {
      path.emplace_back(step.integer(0));
    }
  }
  return path;
}

PlannedTensor parse_tensor(const JsonValue& value) {
  PlannedTensor tensor{
      .name = value["name"].text(), .path = parse_path(value["path"]), .dtype = {}, .shape = {}};
  const auto dtype = dtype_of_torch(value["dtype"].text());
  value["dtype"].expect(dtype.has_value(), "a torch dtype");
  tensor.dtype = *dtype;
  for (const JsonValue& extent : value["shape"].elements()) {
    tensor.shape.push_back(extent.integer(0, kMaxNumel));
  }
  check_shape(tensor.shape, value["shape"].where());
  return tensor;
}

// Fits of members and shards are checked by cut_arrays.
CutArray parse_array(const JsonValue& value, std::size_t tensors, int ranks) {
  CutArray array{
      .members = {},
      .padded_numel = value["padded_numel"].integer(0, kMaxNumel),
      .shards = static_cast<int>(value["shards"].integer(1, ranks)),
      .rank_zero_only = value.contains("rank_zero_only") && value["rank_zero_only"].boolean()};
  for (const JsonValue& member : value["members"].elements()) {
    const std::vector<JsonValue> pair = member.elements();
    member.expect(pair.size() == 2, "a tensor's number and its offset");
    array.members.push_back({.tensor = static_cast<std::size_t>(
                                 pair[0].integer(0, static_cast<std::int64_t>(tensors) - 1)),
                             .offset = pair[1].integer(0, kMaxNumel)});
  }
  return array;
}

FolderPlan parse_tables(const JsonValue& root, int ranks) {
  FolderPlan plan;
  plan.world_size = static_cast<int>(root["world_size"].integer(ranks, ranks));
  if (root.contains("step")) {
    plan.step = root["step"].integer(0);
  }
  std::int64_t numel = 0;
  for (const JsonValue& value : root["tensors"].elements()) {
    plan.tensors.push_back(parse_tensor(value));
    const std::int64_t of_tensor = numel_of(plan.tensors.back().shape);
    value.expect(of_tensor <= kMaxNumel - numel, "less than 2^56 elements in all");
    numel += of_tensor;
  }
  for (const JsonValue& value : root["values"].elements()) {
    plan.values.push_back({.name = value["name"].text(),
                           .path = parse_path(value["path"]),
                           .pickle = {},
                           .rank = static_cast<int>(value["rank"].integer(0, ranks - 1)),
                           .pickle_nbytes = static_cast<std::uint64_t>(
                               value["pickle_nbytes"].integer(0, kMaxPickle))});
  }
  // Without arrays the tensors were cut in rows.
  if (!root.contains("arrays")) {
    plan.rule = cut_by_rows(plan.tensors, ranks);
    return plan;
  }
  std::vector<CutArray> arrays;
  std::set<int> shardings;
  for (const JsonValue& value : root["arrays"].elements()) {
    arrays.push_back(parse_array(value, plan.tensors.size(), ranks));
    shardings.insert(arrays.back().shards);
  }
  root["arrays"].expect(shardings.size() <= kMaxShardings, "at most 64 numbers of shards");
  try {
    plan.rule = cut_arrays(arrays, plan.tensors, ranks);
  } catch (const Error& error) {
    throw Error(Errc::config, root["arrays"].where() + ": " + error.what());
  }
  return plan;
}

}  // namespace

std::string format_plan(const FolderPlan& plan) {
  json tensors = json::array();
  for (const PlannedTensor& tensor : plan.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"path", encode(tensor.path)},
                       {"dtype", torch_name(tensor.dtype)},
                       {"shape", tensor.shape}});
  }
  json values = json::array();
  for (const PlannedValue& value : plan.values) {
    values.push_back({{"name", value.name},
                      {"path", encode(value.path)},
                      {"rank", value.rank},
                      {"pickle_nbytes", value.pickle_nbytes}});
  }
  json root = {{"version", kPlanVersion},
               {"world_size", plan.world_size},
               {"tensors", std::move(tensors)},
               {"values", std::move(values)}};
  if (plan.step) {
    root["step"] = *plan.step;
  }
  if (const std::vector<CutArray>* arrays = plan.rule->arrays()) {
    root["arrays"] = json::array();
    for (const CutArray& array : *arrays) {
      root["arrays"].push_back(encode(array));
    }
  }
  try {
    return text_of_json(root);
  } catch (const json::exception&) {
    throw Error(Errc::not_supported,
                "cannot write the plan of a folder: a name in it is not UTF-8");
  }
}

std::optional<FolderPlan> parse_plan(std::string_view text, int ranks,
                                     const std::filesystem::path& path, const std::string& name) {
  json root;
  try {
    root = json_from_text<json>(text);
  } catch (const json::exception& error) {
    throw Error(Errc::config,
                path.string() + ": '" + name + "' is damaged: " + text_of_fault(error));
  }
  const JsonValue value(root, path, name);
  if (value["version"].integer(0) != kPlanVersion) {
    return std::nullopt;
  }
  return parse_tables(value, ranks);
}

}  // namespace acc::checkpoint::dcp
