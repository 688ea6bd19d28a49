#include "checkpoint/manifest.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <limits>

namespace acc::checkpoint {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kFormat = "acclaunch sharded checkpoint";

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(Errc::config, path.string() + ": " + what);
}

json pieces_of(const CheckpointTensor& tensor, const PieceTable& table) {
  json kinds = json::object();
  for (const std::string& kind : tensor.kinds) {
    json& list = kinds[kind] = json::array();
    for (const StoredPiece& piece : table.pieces(tensor.name, kind)) {
      list.push_back({piece.offset, piece.numel, piece.file});
    }
  }
  return kinds;
}

void check_header(const json& root, const std::filesystem::path& path) {
  if (!root.is_object() || root.value("format", "") != kFormat) {
    fail(path, std::string("expected \"format\": \"") + kFormat + "\"");
  }
  const int version = root.at("version").get<int>();
  if (version != kVersion) {
    fail(path, "checkpoint version " + std::to_string(version) + ", this build reads version " +
                   std::to_string(kVersion));
  }
}

json groups_of(const OldManifest& manifest) {
  json groups = json::array();
  for (const CheckpointGroup& group : manifest.groups) {
    groups.push_back({{"name", group.name},
                      {"hyper_parameters", group.hyper_parameters},
                      {"parameters", group.parameters}});
  }
  return groups;
}

/// What checkpoints of older builds lack is empty.
std::vector<CheckpointGroup> parse_groups(const json& optimizer) {
  std::vector<CheckpointGroup> groups;
  for (const json& group : optimizer.value("groups", json::array())) {
    groups.push_back({group.at("name"), group.at("hyper_parameters"), group.at("parameters")});
  }
  return groups;
}

OldManifest parse_fields(const json& root) {
  const json& optimizer = root.at("optimizer");
  return {
      .world_size = root.at("world_size"),
      .strategy = root.at("strategy"),
      .step = root.at("step"),
      .program = root.at("program"),
      .optimizer = optimizer.at("name"),
      .hyper_parameters = optimizer.at("hyper_parameters"),
      .groups = parse_groups(optimizer),
      .skipped_steps = optimizer.value("skipped_steps", std::int64_t{0}),
      .loss_scaler = optimizer.value("loss_scaler", std::map<std::string, double>()),
      .tensors = {},
      .aliases = root.at("aliases"),
  };
}

// Product of the extents, or an error: a damaged shape must not reach the arithmetic.
void check_shape(const CheckpointTensor& tensor, const std::filesystem::path& path) {
  std::int64_t numel = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(numel, extent, &numel)) {
      fail(path, "tensor '" + tensor.name + "': impossible shape " + to_string(tensor.shape));
    }
  }
}

void parse_tensor(const json& entry, const std::filesystem::path& path, OldManifest& manifest,
                  PieceTable& table) {
  CheckpointTensor tensor{entry.at("name"), entry.at("shape"), {}};
  check_shape(tensor, path);
  for (const auto& [kind, pieces] : entry.at("pieces").items()) {
    tensor.kinds.push_back(kind);
    table.add(tensor.name, kind, {});  // known, also where the tensor has no elements
    for (const auto& piece : pieces) {
      const StoredPiece stored{piece.at(0), piece.at(1), piece.at(2)};
      if (stored.offset < 0 || stored.numel < 0 || stored.file < 0 ||
          stored.file >= manifest.world_size ||
          stored.numel > std::numeric_limits<std::int64_t>::max() - stored.offset) {
        fail(path, "tensor '" + tensor.name + "', " + kind + ": impossible piece " + piece.dump());
      }
      table.add(tensor.name, kind, stored);
    }
  }
  manifest.tensors.push_back(std::move(tensor));
}

}  // namespace

std::string rank_file_name(int rank) {
  std::string digits = std::to_string(rank);
  digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
  return "rank_" + digits + ".safetensors";
}

bool is_checkpoint_file(const std::string& file_name) {
  if (file_name == kMetadataFile || file_name == std::string(kMetadataFile) + ".tmp") {
    return true;
  }
  return file_name.starts_with("rank_") &&
         (file_name.ends_with(".safetensors") || file_name.ends_with(".safetensors.tmp"));
}

std::string piece_name(const std::string& tensor, const std::string& kind, std::int64_t offset) {
  return tensor + "/" + kind + "/" + std::to_string(offset);
}

PieceName parse_piece_name(const std::string& name, const std::filesystem::path& path) {
  const std::size_t last = name.rfind('/');
  const std::size_t middle =
      last == std::string::npos || last == 0 ? std::string::npos : name.rfind('/', last - 1);
  PieceName result;
  if (middle != std::string::npos) {
    result.tensor = name.substr(0, middle);
    result.kind = name.substr(middle + 1, last - middle - 1);
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + last + 1, end, result.offset);
    if (parsed.ec == std::errc() && parsed.ptr == end && result.offset >= 0) {
      return result;
    }
  }
  fail(path, "expected tensors named <tensor>/<kind>/<offset>, found '" + name + "'");
}

std::string format_manifest(const OldManifest& manifest, const PieceTable& table) {
  json tensors = json::array();
  for (const CheckpointTensor& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", "F32"},
                       {"pieces", pieces_of(tensor, table)}});
  }
  const json root = {
      {"format", kFormat},
      {"version", kVersion},
      {"world_size", manifest.world_size},
      {"strategy", manifest.strategy},
      {"step", manifest.step},
      {"program", manifest.program},
      {"optimizer",
       {{"name", manifest.optimizer},
        {"hyper_parameters", manifest.hyper_parameters},
        {"groups", groups_of(manifest)},
        {"skipped_steps", manifest.skipped_steps},
        {"loss_scaler", manifest.loss_scaler}}},
      {"aliases", manifest.aliases},
      {"tensors", tensors},
  };
  return root.dump(1) + "\n";
}

OldManifest parse_manifest(std::string_view text, const std::filesystem::path& path,
                        PieceTable& table) {
  try {
    const json root = json::parse(text);
    check_header(root, path);
    OldManifest manifest = parse_fields(root);
    if (manifest.world_size < 1) {
      fail(path,
           "expected a world_size of at least 1, found " + std::to_string(manifest.world_size));
    }
    for (const auto& entry : root.at("tensors")) {
      parse_tensor(entry, path, manifest, table);
    }
    check_cover(manifest, table, path);
    return manifest;
  } catch (const json::exception& error) {
    fail(path, std::string("damaged checkpoint metadata: ") + error.what());
  }
}

void check_cover(const OldManifest& manifest, const PieceTable& table,
                 const std::filesystem::path& path) {
  for (const CheckpointTensor& tensor : manifest.tensors) {
    for (const std::string& kind : tensor.kinds) {
      const std::string fault = table.cover_fault(tensor.name, kind, numel_of(tensor.shape));
      if (!fault.empty()) {
        fail(path, "tensor '" + tensor.name + "', " + kind + ": " + fault);
      }
    }
  }
}

}  // namespace acc::checkpoint
