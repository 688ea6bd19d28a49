#include "checkpoint/model_files.hpp"

#include "acc/base/log.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/sharded_checkpoint.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"
#include "sharding/host_array.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <random>

namespace acc::checkpoint {
namespace {

using detail::ModelState;
using detail::OptimizerState;
using sharding::FlatParameter;
using sharding::HostArray;
using sharding::ParameterRecord;
using sharding::Shard;

/// Runs `step` and tells every rank whether it went well everywhere, so that no rank waits for one
/// that has given up.
template <typename Step>
void together(ModelState& model, const Step& step) {
  std::optional<Error> failure;
  try {
    step();
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {  // of the standard library's file functions
    failure = Error(Errc::config, error.what());
  }
  auto& world = *model.engine().groups.world;
  std::array<double, 1> failed = {failure ? static_cast<double>(world.size() - world.rank()) : 0.0};
  // Released: nobody may end its groups over a failure before all have heard of it.
  world.all_reduce(failed, ReduceOp::max)->wait_released();
  if (failure) {
    throw *failure;
  }
  if (failed[0] != 0.0) {
    const int rank = world.size() - static_cast<int>(failed[0]);
    throw Error(Errc::config, fmt::format("rank {} failed in this step; see its message", rank),
                rank);
  }
}

/// Weights are about to be overwritten where they lie: gathers of the old ones may still be under
/// way here, and peers may still read them.
void await_readers(ModelState& model) {
  for (FlatParameter* flat : model.flats()) {
    flat->settle();
  }
  model.engine().groups.world->barrier()->wait();
}

bool is_rank_zero(ModelState& model) {
  return model.engine().groups.world->rank() == 0;
}

/// A random number of rank 0's, on every rank.
std::uint32_t agree_on_id(ModelState& model) {
  std::array<double, 1> id = {is_rank_zero(model) ? std::random_device{}() : 0.0};
  model.engine().groups.world->all_reduce(id, ReduceOp::max)->wait();
  return static_cast<std::uint32_t>(id[0]);
}

/// The part of a flat parameter that this rank writes: its own shard, once over all replicas; where
/// every rank holds everything, an equal part each.
Shard written_part(ModelState& model, const FlatParameter& flat) {
  auto& groups = model.engine().groups;
  if (model.engine().on.shard_optimizer) {
    const bool first_replica = groups.plan.replicate.front() ==
                               groups.plan.world[static_cast<std::size_t>(groups.world->rank())];
    return first_replica ? flat.owned() : Shard{};
  }
  return flat.layout().shard(groups.world->rank());
}

/// Calls `visit(record, in_parameter, in_owned, numel)` for the parameters that `part` touches.
/// `in_owned` counts from the first element that this rank holds.
template <typename Visit>
void for_each_overlap(const FlatParameter& flat, Shard part, const Visit& visit) {
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const auto piece = sharding::overlap(flat.layout(), i, part);
    if (piece.numel > 0) {
      visit(flat.parameters()[i], piece.in_parameter,
            part.offset + piece.in_shard - flat.owned().offset, piece.numel);
    }
  }
}

/// Pieces of a checkpoint, and host copies of those that lie on a GPU.
struct Pieces {
  std::vector<HostArray> arrays;
  std::vector<Piece> pieces;

  void add(device::Device& device, const FlatParameter& flat, Shard part, const std::string& kind,
           void* values, DType dtype) {
    if (part.numel == 0) {
      return;
    }
    arrays.emplace_back(device, values, dtype, flat.owned().numel, HostArray::Copy::of_values);
    for_each_overlap(
        flat, part,
        [&](const ParameterRecord& record, std::int64_t in_parameter, std::int64_t in_owned,
            std::int64_t numel) {
          pieces.push_back({record.name,
                            kind,
                            in_parameter,
                            {arrays.back().data() + in_owned, static_cast<std::size_t>(numel)}});
        });
  }
};

Pieces pieces_to_write(ModelState& model, OptimizerState& optimizer) {
  Pieces result;
  device::Device& device = *model.engine().updater;
  for (FlatParameter* flat : model.flats()) {
    result.add(device, *flat, written_part(model, *flat), "param", flat->master(), flat->stored());
  }
  for (auto& state : optimizer.flats()) {
    for (const auto& moment : state.moments) {
      result.add(device, *state.flat, written_part(model, *state.flat), moment.kind,
                 moment.values->data(), model.engine().precision.moments);
    }
  }
  return result;
}

Manifest manifest_of(ModelState& model, OptimizerState& optimizer, const ProgramState& program) {
  Manifest manifest;
  manifest.world_size = model.engine().groups.world->size();
  manifest.strategy = to_string(model.engine().settings.sharding.strategy);
  manifest.step = optimizer.steps;
  manifest.program = program;
  manifest.optimizer = optimizer.name();
  manifest.hyper_parameters = optimizer.hyper_parameters();
  for (const FlatParameter* flat : model.flats()) {
    for (const ParameterRecord& record : flat->parameters()) {
      std::vector<std::string> kinds = {"param"};
      if (flat->trainable()) {
        const auto moments = optimizer.moment_kinds();
        kinds.insert(kinds.end(), moments.begin(), moments.end());
      }
      manifest.tensors.push_back({record.name, record.shape, std::move(kinds)});
      for (const std::string& alias : record.aliases) {
        manifest.aliases[alias] = record.name;
      }
    }
  }
  return manifest;
}

/// After the master weights changed: the rounded copy, and everybody's sight of it.
void renew_weights(ModelState& model) {
  for (FlatParameter* flat : model.flats()) {
    flat->round_master();
    flat->publish();
  }
}

}  // namespace

void load_weights(ModelState& model, const std::string& path) {
  await_readers(model);
  together(model, [&] {
    const SafetensorsFile file(path);
    for (FlatParameter* flat : model.flats()) {
      for (const ParameterRecord& record : flat->parameters()) {
        const TensorEntry& entry = file.at(record.name);
        if (entry.shape != record.shape) {
          throw Error(Errc::config,
                      fmt::format("{}: tensor {} has shape {}, this model expects {}", path,
                                  record.name, to_string(entry.shape), to_string(record.shape)));
        }
      }
      HostArray values(*model.engine().updater, flat->master(), flat->stored(), flat->owned().numel,
                       HostArray::Copy::of_zeros);
      for_each_overlap(*flat, flat->owned(),
                       [&](const ParameterRecord& record, std::int64_t in_parameter,
                           std::int64_t in_owned, std::int64_t numel) {
                         file.read_slice(
                             record.name, in_parameter,
                             {values.data() + in_owned, static_cast<std::size_t>(numel)});
                       });
      flat->round_initial(values.data(), static_cast<std::size_t>(flat->owned().numel));
      values.write_back();
    }
  });
  renew_weights(model);
}

namespace {

/// Files of weights have them as they are kept.
std::string stored_name(DType dtype) {
  return dtype == DType::bfloat16 ? "BF16" : dtype == DType::float16 ? "F16" : "F32";
}

}  // namespace

void export_weights(ModelState& model, const std::string& path) {
  std::optional<SafetensorsWriter> writer;
  together(model, [&] {
    if (!is_rank_zero(model)) {
      return;
    }
    std::vector<TensorSpec> specs;
    for (const FlatParameter* flat : model.flats()) {
      for (const ParameterRecord& record : flat->parameters()) {
        specs.push_back({record.name, stored_name(flat->stored()), record.shape});
        for (const std::string& alias : record.aliases) {
          specs.push_back({alias, stored_name(flat->stored()), record.shape});
        }
      }
    }
    writer.emplace(path, std::move(specs), std::map<std::string, std::string>{{"format", "pt"}});
  });
  for (FlatParameter* flat : model.flats()) {
    const std::vector<float> full = flat->gather_master();
    together(model, [&] {
      if (!writer) {
        return;
      }
      for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
        const std::span<const float> values(full.data() + flat->layout().offsets[i],
                                            static_cast<std::size_t>(flat->layout().numels[i]));
        for (std::size_t copy = 0; copy <= flat->parameters()[i].aliases.size(); ++copy) {
          writer->append(values);
        }
      }
    });
  }
  together(model, [&] {
    if (writer) {
      writer->commit();
    }
  });
}

void save_checkpoint(ModelState& model, OptimizerState& optimizer, const std::string& directory,
                     const ProgramState& program) {
  const auto type = model.engine().settings.sharding.state_dict_type;
  if (is_rank_zero(model) && type != plugins::StateDictType::sharded) {
    logger("runtime")->warn(
        "state dict type {} is not in this version: {} becomes a sharded checkpoint, which any "
        "number of ranks loads (export_safetensors writes one file)",
        plugins::to_string(type), directory);
  }
  std::optional<CheckpointWriter> writer;
  const std::uint32_t id = agree_on_id(model);
  together(model, [&] {
    writer.emplace(directory, id);
    if (is_rank_zero(model)) {
      writer->begin();
    }
  });
  together(model, [&] {
    writer->write_rank_file(model.engine().groups.world->rank(),
                            pieces_to_write(model, optimizer).pieces);
  });
  together(model, [&] {
    if (is_rank_zero(model)) {
      writer->commit(manifest_of(model, optimizer, program));
    }
  });
}

ProgramState load_checkpoint(ModelState& model, OptimizerState& optimizer,
                             const std::string& directory) {
  ProgramState program;
  await_readers(model);
  together(model, [&] {
    ShardedCheckpoint checkpoint{directory};
    const Manifest& manifest = checkpoint.manifest();
    if (manifest.optimizer != optimizer.name()) {
      throw Error(Errc::config, fmt::format("{} was saved with optimizer {}, this run uses {}",
                                            directory, manifest.optimizer, optimizer.name()));
    }
    const auto read = [&](FlatParameter& flat, const std::string& kind, void* to, DType dtype) {
      HostArray values(*model.engine().updater, to, dtype, flat.owned().numel,
                       HostArray::Copy::of_zeros);
      for_each_overlap(flat, flat.owned(),
                       [&](const ParameterRecord& record, std::int64_t in_parameter,
                           std::int64_t in_owned, std::int64_t numel) {
                         checkpoint.expect(record.name, record.shape);
                         checkpoint.read(
                             record.name, kind, in_parameter,
                             {values.data() + in_owned, static_cast<std::size_t>(numel)});
                       });
      values.write_back();
    };
    for (FlatParameter* flat : model.flats()) {
      read(*flat, "param", flat->master(), flat->stored());
    }
    for (auto& state : optimizer.flats()) {
      for (auto& moment : state.moments) {
        read(*state.flat, moment.kind, moment.values->data(), model.engine().precision.moments);
      }
    }
    optimizer.steps = manifest.step;
    program = manifest.program;
  });
  renew_weights(model);
  return program;
}

}  // namespace acc::checkpoint
