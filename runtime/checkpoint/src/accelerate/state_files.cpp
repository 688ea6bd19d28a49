// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/state_files.hpp"

#include "acc/checkpoint/files/errors.hpp"
#include "acc/checkpoint/pickle/source.hpp"
#include "acc/checkpoint/pickle/writer.hpp"
#include "catalog/group_values.hpp"
#include "pickle/node.hpp"

namespace acc::checkpoint::accelerate {

namespace fs = std::filesystem;

namespace {

/// Our key in the files of random states. Accelerate reads only its own keys.
constexpr const char* kProgramKey = "program_state";

/// Writes an archive that holds a value without tensors.
void write_value(const fs::path& path, std::string pickle) {
  OutputFile out(path);
  torch::TorchFileWriter(out, std::move(pickle)).finish();
  out.close();
}

void push_reals(pickle::Writer& writer, const std::vector<double>& values) {
  writer.begin_list();
  for (const double value : values) {
    writer.real(value);
  }
  writer.end_list();
}

std::vector<double> read_reals(const pickle::Node& node) {
  std::vector<double> result;
  for (const pickle::Node& item : node.items()) {
    result.push_back(item.real());
  }
  return result;
}

void push_program(pickle::Writer& writer, const ProgramState& values) {
  // Strings that are not UTF-8 are written as bytes.
  writer.begin_dict();
  for (const auto& [name, value] : values) {
    writer.text(name);
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      writer.integer(*integer);
    } else if (const auto* real = std::get_if<double>(&value)) {
      writer.real(*real);
    } else if (const auto& text = std::get<std::string>(value); pickle::is_utf8(text)) {
      writer.text(text);
    } else {
      writer.bytes(text);
    }
  }
  writer.end_dict();
}

ProgramState read_program(const pickle::Node& node) {
  using Kind = pickle::Value::Kind;
  ProgramState result;
  for (const auto& [name, entry] : node.entries()) {
    const pickle::Value& value = entry.value();
    if (value.is(Kind::integer) || value.is(Kind::boolean)) {
      result[name] = value.integer;
    } else if (value.is(Kind::real)) {
      result[name] = value.real;
    } else if (value.is(Kind::text) || value.is(Kind::bytes)) {
      result[name] = std::string(value.text);
    } else {
      entry.refuse("a number, a string or bytes");
    }
  }
  return result;
}

}  // namespace

void write_scheduler(const fs::path& path, const SchedulerState& state) {
  pickle::Writer writer;
  writer.begin_dict();
  writer.text("base_lrs");
  push_reals(writer, state.base_lrs);
  writer.text("last_epoch").integer(state.steps);
  writer.text("_step_count").integer(state.steps + 1);
  writer.text("_is_initial").boolean(false);
  writer.text("_get_lr_called_within_step").boolean(false);
  writer.text("_last_lr");
  push_reals(writer, state.last_lrs);
  // LambdaLR removes this key from the state before it reads the others. None keeps the function of
  // the live object.
  writer.text("lr_lambdas").begin_list();
  for (std::size_t i = 0; i < state.base_lrs.size(); ++i) {
    writer.none();
  }
  writer.end_list().end_dict();
  write_value(path, writer.finish());
}

// In our files last_epoch is the number of optimizer steps; in Accelerate's it is a multiple of it.
SchedulerState read_scheduler(const InputPath& path) {
  const torch::TorchFile file(path);
  const pickle::Node root(file.root(), path.string());
  SchedulerState state;
  const auto steps = root.is_dict() ? root.find("last_epoch") : std::nullopt;
  if (!steps || !steps->value().is(pickle::Value::Kind::integer)) {
    throw Unreadable(path.string() + ": the state of a scheduler without last_epoch");
  }
  state.steps = steps->integer();
  if (const auto rates = root.find("base_lrs")) {
    state.base_lrs = read_reals(*rates);
  }
  if (const auto rates = root.find("_last_lr")) {
    state.last_lrs = read_reals(*rates);
  }
  return state;
}

void write_scaler(const fs::path& path, const std::map<std::string, double>& state) {
  // GradScaler calls the number of steps without overflow _growth_tracker; ours is clean_steps.
  // Keys that only our scaler has follow, and GradScaler ignores them.
  std::map<std::string, double> left = state;
  const auto take = [&left](const char* name, double otherwise) {
    const auto found = left.extract(name);
    return found.empty() ? otherwise : found.mapped();
  };
  pickle::Writer writer;
  writer.begin_dict();
  writer.text("scale").real(take("scale", 1.0));
  writer.text("growth_factor").real(take("growth_factor", 2.0));
  writer.text("backoff_factor").real(take("backoff_factor", 0.5));
  writer.text("growth_interval")
      .integer(static_cast<std::int64_t>(take("growth_interval", 2000.0)));
  writer.text("_growth_tracker").integer(static_cast<std::int64_t>(take("clean_steps", 0.0)));
  for (const auto& [name, value] : left) {
    writer.text(name).real(value);
  }
  writer.end_dict();
  write_value(path, writer.finish());
}

std::map<std::string, double> read_scaler(const InputPath& path) {
  const torch::TorchFile file(path);
  const pickle::Node root(file.root(), path.string());
  std::map<std::string, double> state;
  for (const auto& [name, value] : root.entries()) {
    state[name == "_growth_tracker" ? "clean_steps" : name] = value.real();
  }
  if (!state.empty() && !state.contains("scale")) {
    root.at("scale").refuse("a number");
  }
  return state;
}

void write_random_states(const fs::path& path, std::int64_t step, const ProgramState& values) {
  pickle::Writer writer;
  writer.begin_dict();
  writer.text("step").integer(step);
  writer.text(kProgramKey);
  push_program(writer, values);
  writer.end_dict();
  write_value(path, writer.finish());
}

ProgramState read_random_states(const InputPath& path) {
  const torch::TorchFile file(path);
  const auto program = pickle::Node(file.root(), path.string()).find(kProgramKey);
  return program ? read_program(*program) : ProgramState{};
}

void write_custom(const fs::path& path, const ProgramState& values) {
  pickle::Writer writer;
  push_program(writer, values);
  write_value(path, writer.finish());
}

ProgramState read_custom(const InputPath& path) {
  const torch::TorchFile file(path);
  return read_program(pickle::Node(file.root(), path.string()));
}

std::vector<GroupValue> group_values(const std::string& optimizer, const StoredGroup& group) {
  std::vector<GroupValue> result;
  for_each_group_value(optimizer, group, [&result](const std::string& key, const PushValue& push) {
    pickle::Writer writer;
    push(writer);
    result.push_back({key, writer.finish()});
  });
  return result;
}

}  // namespace acc::checkpoint::accelerate
