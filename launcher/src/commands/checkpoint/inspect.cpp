// SPDX-License-Identifier: Apache-2.0
// acclaunch inspect: lists the tensors and other values of a checkpoint from its headers and
// metadata, as text or as JSON (docs/checkpoints.md). Does not read tensor data.
#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "commands/checkpoint/shared.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/text_table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

namespace acc::launcher::commands {
namespace {

using checkpoint::Stored;
using checkpoint::StoredPiece;
using checkpoint::StoredTensor;
using OrderedJson = nlohmann::ordered_json;

constexpr int kFormat = 1;

std::uint64_t elements_nbytes(const StoredTensor& tensor) {
  return static_cast<std::uint64_t>(checkpoint::numel_of(tensor.shape)) * size_of(tensor.dtype);
}

/// True if checksums are stored for all pieces of the tensor. Pieces in a torch.save archive always
/// have them: a ZIP archive stores a CRC-32 per record.
bool has_checksums(const StoredTensor& tensor) {
  const auto pieces = tensor.all_pieces();
  return std::all_of(pieces.begin(), pieces.end(), [](const StoredPiece& piece) {
    return piece.packing == checkpoint::Packing::archive || piece.record >= 0;
  });
}

/// Names of tensors, by second names of the same bytes.
using SecondNames = std::map<std::string, std::string>;

SecondNames second_names(const Stored& stored) {
  SecondNames names;
  checkpoint::SharedBytes shared;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    const StoredTensor* const other = tensor.kind == "param" ? shared.other(tensor) : nullptr;
    if (other != nullptr) {
      names.emplace(tensor.name, other->name);
    }
  }
  return names;
}

/// Sums over all tensors of a checkpoint. Bytes with several names count once.
struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t with_checksums = 0;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> by_kind;  ///< tensors, bytes
};

Totals totals_of(const Stored& stored, const SecondNames& second) {
  Totals totals;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    const bool counts = tensor.kind != "param" || !second.contains(tensor.name);
    const std::uint64_t nbytes = counts ? elements_nbytes(tensor) : 0;
    auto& [tensors, kind_nbytes] = totals.by_kind[tensor.kind];
    ++totals.tensors;
    ++tensors;
    totals.nbytes += nbytes;
    kind_nbytes += nbytes;
    totals.with_checksums += has_checksums(tensor) ? 1 : 0;
  }
  return totals;
}

std::string checksums_in_words(const Totals& totals) {
  if (totals.with_checksums == 0) {
    return "none";
  }
  return totals.with_checksums == totals.tensors
             ? "for every tensor"
             : fmt::format("for {} of the tensors", totals.with_checksums);
}

std::string tensors_in_words(const Stored& stored, const SecondNames& second) {
  // The name is the last column, since it may be long.
  std::vector<std::vector<std::string>> rows = {
      {"kind", "dtype", "shape", "pieces", "bytes", "name"}};
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    const auto same = tensor.kind == "param" ? second.find(tensor.name) : second.end();
    rows.push_back({tensor.kind, std::string(torch_name(tensor.dtype)),
                    checkpoint::to_string(tensor.shape), std::to_string(tensor.all_pieces().size()),
                    std::to_string(elements_nbytes(tensor)),
                    tensor.name + (same == second.end() ? "" : " (same as " + same->second + ")")});
  }
  return text_table(rows, "<<<>><");
}

std::string values_in_words(const Stored& stored) {
  std::string text;
  for (std::size_t i = 0; i < stored.training.groups.size(); ++i) {
    const checkpoint::StoredGroup& group = stored.training.groups[i];
    text +=
        fmt::format("group {}:     {}", i,
                    count_of(std::max(group.parameters.size(), group.numbers.size()), "parameter"));
    for (const auto& [key, value] : group.hyper_parameters) {
      text += fmt::format(", {} {:g}", key, value);
    }
    text += "\n";
  }
  if (!stored.training.names_unknown.empty()) {
    text += fmt::format("names:       unknown: {}\n", stored.training.names_unknown);
  }
  if (!stored.training.loss_scaler.empty()) {
    text += "loss scaler:";
    for (const auto& [key, value] : stored.training.loss_scaler) {
      text += fmt::format(" {} {:g}", key, value);
    }
    text += "\n";
  }
  return text;
}

std::string in_words(const Stored& stored) {
  const SecondNames second = second_names(stored);
  const Totals totals = totals_of(stored, second);
  std::string text = fmt::format("{}: {}\n", stored.path.string(), stored.provenance.format);
  text += fmt::format("written by:  {}\n",
                      stored.provenance.writer.empty() ? "unknown" : stored.provenance.writer);
  text += stored.provenance.world_size > 0
              ? fmt::format("ranks:       {}\n", stored.provenance.world_size)
              : "";
  text += stored.training.step ? fmt::format("step:        {}\n", *stored.training.step) : "";
  text += stored.training.optimizer.empty()
              ? ""
              : fmt::format("optimizer:   {}\n", stored.training.optimizer);
  text += values_in_words(stored);
  text += fmt::format("checksums:   {}\n\n{}\n", checksums_in_words(totals),
                      tensors_in_words(stored, second));
  for (const auto& [kind, sums] : totals.by_kind) {
    text += fmt::format("{}: {}, {}\n", kind, count_of(sums.first, "tensor"),
                        in_decimal_units(sums.second));
  }
  return text + fmt::format("total: {}, {} in {}\n", count_of(totals.tensors, "tensor"),
                            in_decimal_units(totals.nbytes),
                            count_of(stored.catalog.files.size(), "file"));
}

/// Returns `value`, or null if it is not known.
template <typename T>
OrderedJson known_if(bool known, const T& value) {
  return known ? OrderedJson(value) : OrderedJson(nullptr);
}

OrderedJson pieces_in_json(const Stored& stored, const StoredTensor& tensor) {
  OrderedJson pieces = OrderedJson::array();
  for (const StoredPiece& piece : tensor.all_pieces()) {
    const auto path = stored.catalog.files[piece.file].path().lexically_proximate(stored.path);
    pieces.push_back({{"offsets", piece.box.offsets},
                      {"sizes", piece.box.sizes},
                      {"file", path == "." ? stored.path.filename().string() : path.string()},
                      {"offset", piece.offset},
                      {"bytes", piece.nbytes}});
  }
  return pieces;
}

OrderedJson in_json(const Stored& stored) {
  const SecondNames second = second_names(stored);
  const Totals totals = totals_of(stored, second);
  OrderedJson tensors = OrderedJson::array(), groups = OrderedJson::array();
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    const auto same = tensor.kind == "param" ? second.find(tensor.name) : second.end();
    tensors.push_back(
        {{"name", known_if(tensor.number_only.empty(), tensor.name)},
         {"kind", tensor.kind},
         {"stored_name", tensor.stored_name},
         {"same_as", same == second.end() ? OrderedJson(nullptr) : OrderedJson(same->second)},
         {"dtype", torch_name(tensor.dtype)},
         {"shape", tensor.shape},
         {"bytes", elements_nbytes(tensor)},
         {"checksums", has_checksums(tensor)},
         {"pieces", pieces_in_json(stored, tensor)}});
  }
  for (const checkpoint::StoredGroup& group : stored.training.groups) {
    groups.push_back(
        {{"hyper_parameters", group.hyper_parameters}, {"parameters", group.parameters}});
  }
  return {
      {"version", kFormat},
      {"path", stored.path.string()},
      {"format", stored.provenance.format},
      {"writer", known_if(!stored.provenance.writer.empty(), stored.provenance.writer)},
      {"world_size", known_if(stored.provenance.world_size > 0, stored.provenance.world_size)},
      {"step", known_if(stored.training.step.has_value(), stored.training.step.value_or(0))},
      {"optimizer", known_if(!stored.training.optimizer.empty(), stored.training.optimizer)},
      {"groups", groups},
      {"names_unknown",
       known_if(!stored.training.names_unknown.empty(), stored.training.names_unknown)},
      {"loss_scaler", known_if(!stored.training.loss_scaler.empty(), stored.training.loss_scaler)},
      {"total_bytes", totals.nbytes},
      {"tensors", tensors}};
}

}  // namespace

int inspect_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "Lists the contents of a checkpoint of any format, without reading its tensors.",
      "acclaunch inspect");
  std::string path;
  bool json = false;
  int index = 0;
  parser.add_option("path", path, "the checkpoint").required();
  parser
      .add_option("--index", index, "index of the model in a folder that holds several; default 0")
      .check_range(0, 1'000'000);
  parser.add_flag("--json", json, "print JSON, with file and offset of every piece");
  parser.parse(arguments);
  const Stored stored = checkpoint::open_checkpoint(path, checkpoint::Want::everything, index);
  const std::string text =
      json ? text_of_json(in_json(stored), 1) + "\n" : printable_lines(in_words(stored));
  stored.path.check_unchanged();
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
