#include "checkpoint/state/model_files.hpp"

#include "acc/base/log.hpp"
#include "checkpoint/safetensors/file.hpp"
#include "checkpoint/sharded_checkpoint.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"
#include "sharding/host_array.hpp"
#include "sharding/initial_values.hpp"

#include <fmt/format.h>

#include <array>
#include <deque>
#include <optional>
#include <random>

namespace acc::checkpoint {
namespace {

using acc::model::BufferRecord;
using detail::ModelState;
using detail::OptimizerState;
using sharding::FlatParameter;
using sharding::HostArray;
using sharding::ParameterRecord;
using sharding::Shard;

/// Runs `step` and tells every rank whether it went well everywhere, so that no rank waits for one
/// that has given up. `what`: the step, in what the others say.
template <typename Step>
void together(ModelState& model, const Step& step, const std::string& what = "this step") {
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
    throw Error(Errc::config, fmt::format("rank {} failed in {}; see its message", rank, what),
                rank);
  }
}

/// Weights are about to be overwritten where they lie: gathers of the old ones may still be under
/// way here, a GPU may be behind with reading what lies in host memory, and peers may still read.
void await_readers(ModelState& model) {
  for (const auto& unit : model.shard_units()) {
    unit->release("loading weights");
  }
  for (FlatParameter* flat : model.flats()) {
    flat->settle();
  }
  model.engine().await_compute();
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
/// every rank holds everything, an equal part each. Of what is ignored rank 0's counts.
Shard written_part(ModelState& model, const FlatParameter& flat) {
  auto& groups = model.engine().groups;
  if (flat.ignored()) {
    return is_rank_zero(model) ? flat.owned() : Shard{};
  }
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
  std::deque<std::vector<float>> buffers;
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
  if (is_rank_zero(model)) {
    for (const BufferRecord* buffer : model.buffers()) {
      result.buffers.push_back(acc::model::read_buffer(model.engine(), *buffer));
      result.pieces.push_back({buffer->name, "param", 0, result.buffers.back()});
    }
  }
  return result;
}

OldManifest manifest_of(ModelState& model, OptimizerState& optimizer, const ProgramState& program) {
  OldManifest manifest;
  manifest.world_size = model.engine().groups.world->size();
  manifest.strategy = to_string(model.engine().settings.sharding.strategy);
  manifest.step = optimizer.steps;
  manifest.program = program;
  manifest.optimizer = optimizer.name();
  manifest.hyper_parameters = optimizer.hyper_parameters();
  for (const auto& group : optimizer.group_records()) {
    manifest.groups.push_back({group.name, group.hyper_parameters, group.parameters});
  }
  manifest.skipped_steps = optimizer.skipped_steps;
  if (optimizer.scaler()) {
    manifest.loss_scaler = optimizer.scaler()->state();
  }
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
  for (const BufferRecord* buffer : model.buffers()) {
    manifest.tensors.push_back({buffer->name, buffer->shape, {"param"}});
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

namespace {

void check_entry(const SafetensorsFile& file, const std::string& name, const Shape& shape) {
  const TensorEntry& entry = file.at(name);
  if (entry.shape != shape) {
    throw Error(Errc::config,
                fmt::format("{}: tensor {} has shape {}, this model expects {}",
                            file.path().string(), name, to_string(entry.shape), to_string(shape)));
  }
  file.read_slice(name, 0, {});  // throws for a dtype that cannot be read
}

/// Whatever could be wrong with a weights file is said before anything is read.
void check_weights(ModelState& model, const SafetensorsFile& file) {
  for (const FlatParameter* flat : model.flats()) {
    for (const ParameterRecord& record : flat->parameters()) {
      check_entry(file, record.name, record.shape);
    }
  }
  for (const BufferRecord* buffer : model.buffers()) {
    if (file.contains(buffer->name)) {
      check_entry(file, buffer->name, buffer->shape);
    }
  }
}

void load_buffers(ModelState& model, const std::optional<SafetensorsFile>& file) {
  for (BufferRecord* buffer : model.buffers()) {
    if (file && file->contains(buffer->name)) {
      std::vector<float> values(static_cast<std::size_t>(buffer->numel));
      file->read_slice(buffer->name, 0, values);
      acc::model::set_buffer(model.engine(), *buffer, values);
    }
    if (model.engine().settings.sharding.cpu_ram_efficient_loading) {
      acc::model::share_buffer(model.engine(), *buffer);
    }
  }
}

}  // namespace

void load_weights(ModelState& model, const std::string& path) {
  const bool rank_zero_reads = model.engine().settings.sharding.cpu_ram_efficient_loading;
  std::optional<SafetensorsFile> file;
  const auto open = [&] {
    if (is_rank_zero(model) || !rank_zero_reads) {
      file.emplace(path);
      check_weights(model, *file);
    }
  };
  together(model, open, "loading " + path);
  await_readers(model);
  for (FlatParameter* flat : model.flats()) {
    const sharding::ValueSource source = [&](std::size_t index, std::int64_t offset,
                                             std::span<float> out) {
      file->read_slice(flat->parameters()[index].name, offset, out);
    };
    const auto fill = rank_zero_reads ? sharding::fill_by_rank_zero : sharding::fill_by_each_rank;
    fill(model.engine(), *flat, source);
    flat->publish();
  }
  load_buffers(model, file);
}

namespace {

/// Files of weights have them as they are kept.
Dtype stored_dtype(DType dtype) {
  return dtype == DType::bfloat16 ? Dtype::bf16 : dtype == DType::float16 ? Dtype::f16 : Dtype::f32;
}

}  // namespace

void export_weights(ModelState& model, const std::string& path) {
  std::optional<SafetensorsWriter> writer;
  together(model, [&] {
    if (!is_rank_zero(model)) {
      return;
    }
    std::vector<NamedTensor> specs;
    for (const FlatParameter* flat : model.flats()) {
      for (const ParameterRecord& record : flat->parameters()) {
        specs.push_back({record.name, stored_dtype(flat->stored()), record.shape});
        for (const std::string& alias : record.aliases) {
          specs.push_back({alias, stored_dtype(flat->stored()), record.shape});
        }
      }
    }
    for (const BufferRecord* buffer : model.buffers()) {
      specs.push_back({buffer->name, Dtype::f32, buffer->shape});
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
      for (const BufferRecord* buffer : model.buffers()) {
        writer->append(acc::model::read_buffer(model.engine(), *buffer));
      }
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
    const OldManifest& manifest = checkpoint.manifest();
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
    for (BufferRecord* buffer : model.buffers()) {
      std::vector<float> values(static_cast<std::size_t>(buffer->numel));
      checkpoint.expect(buffer->name, buffer->shape);
      checkpoint.read(buffer->name, "param", 0, values);
      acc::model::set_buffer(model.engine(), *buffer, values);
    }
    optimizer.steps = manifest.step;
    optimizer.skipped_steps = manifest.skipped_steps;
    if (optimizer.scaler()) {
      optimizer.scaler()->restore(manifest.loss_scaler);
    }
    program = manifest.program;
  });
  renew_weights(model);
  return program;
}

}  // namespace acc::checkpoint
