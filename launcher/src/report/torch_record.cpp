// SPDX-License-Identifier: Apache-2.0
#include "report/torch_record.hpp"

#include "acc/base/json.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

namespace acc::launcher::report {
namespace {

using TorchJson = nlohmann::json;
using flight::Collective;
using flight::Group;
using flight::Record;
using flight::State;

/// Collectives that are kept, as many as a flight record has.
constexpr std::size_t kMostCollectives = flight::file::kSlots;
constexpr std::size_t kLargestAnswer = 64U << 20U;
constexpr int kMostRanks = 1 << 24;

/// Sizes in bytes of torch's dtypes; 1 for others.
std::uint64_t size_of_dtype(const std::string& name) {
  static const std::map<std::string, std::uint64_t> kSizes = {
      {"Float", 4}, {"Double", 8}, {"Half", 2}, {"BFloat16", 2},
      {"Long", 8},  {"Int", 4},    {"Short", 2}};
  const auto found = kSizes.find(name);
  return found == kSizes.end() ? 1 : found->second;
}

std::string text(const TorchJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? printable(found->get<std::string>()) : "";
}

std::int64_t integer(const TorchJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

/// Parses torch's text "[0, 1, 3]".
std::vector<int> ranks_in(const std::string& text) {
  std::vector<int> ranks;
  const auto open = text.find('[');
  const auto close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    return ranks;
  }
  for (const std::string_view word :
       entries_of(std::string_view(text).substr(open + 1, close - open - 1))) {
    if (const auto rank = read_number(trimmed(word)); rank && *rank < kMostRanks) {
      ranks.push_back(*rank);
    }
  }
  return ranks;
}

/// Bytes of the tensors in `sizes`, whose dtypes are in `dtypes`.
std::uint64_t nbytes_of(const TorchJson& entry, const char* sizes, const char* dtypes) {
  std::uint64_t total = 0;
  const auto shapes = entry.find(sizes);
  const auto names = entry.find(dtypes);
  if (shapes == entry.end() || !shapes->is_array()) {
    return 0;
  }
  for (std::size_t i = 0; i < shapes->size(); ++i) {
    const bool has_name =
        names != entry.end() && names->is_array() && i < names->size() && names->at(i).is_string();
    std::uint64_t nbytes = has_name ? size_of_dtype(names->at(i).get<std::string>()) : 1;
    for (const TorchJson& size : shapes->at(i)) {
      nbytes *= size.is_number_unsigned() ? size.get<std::uint64_t>() : 0;
    }
    total += nbytes;
  }
  return std::min<std::uint64_t>(total, INT64_MAX);
}

/// Groups by torch's names, in the order in which the entries use them.
class Groups {
 public:
  Groups(const TorchJson& dump, Record& record) : record_(record) {
    const auto config = dump.find("pg_config");
    if (config != dump.end() && config->is_object()) {
      for (const auto& [name, value] : config->items()) {
        if (value.is_object()) {
          ranks_[name] = ranks_in(text(value, "ranks"));
        }
      }
    }
  }

  /// Returns the index of an entry's group in the record.
  std::size_t index_of(const TorchJson& entry) {
    std::string name;
    std::string description;
    const auto group = entry.find("process_group");
    if (group != entry.end() && group->is_array() && group->size() == 2 &&
        group->at(0).is_string() && group->at(1).is_string()) {
      name = group->at(0).get<std::string>();
      description = group->at(1).get<std::string>();
    }
    const auto [found, added] = indices_.try_emplace(name, record_.groups.size());
    if (added) {
      add(name, description);
    }
    return found->second;
  }

 private:
  // The default group of gloo has the name "0" in its entries and "" in the list (torch 2.13).
  void add(const std::string& name, const std::string& description) {
    const bool is_default = description == "default_pg";
    auto ranks = ranks_.find(name);
    ranks = ranks == ranks_.end() && is_default ? ranks_.find("") : ranks;
    Group group{.name = is_default ? "world"
                        : description.empty() || description == "undefined"
                            ? printable(name)
                            : printable(description)};
    if (ranks != ranks_.end() && !ranks->second.empty()) {
      const std::vector<int>& list = ranks->second;
      group.first = list.front();
      group.count = static_cast<int>(list.size());
      group.stride = list.size() > 1 ? std::max(1, list[1] - list[0]) : 1;
    }
    record_.groups.push_back(std::move(group));
  }

  Record& record_;
  std::map<std::string, std::vector<int>> ranks_;
  std::map<std::string, std::size_t> indices_;
};

Collective collective_of(const TorchJson& entry, std::size_t group) {
  const std::string name = text(entry, "profiling_name");
  const auto retired = entry.find("retired");
  const bool is_done =
      (retired != entry.end() && *retired == true) || text(entry, "state") == "completed";
  const std::int64_t created_us =
      std::max<std::int64_t>(0, integer(entry, "time_created_ns")) / 1000;
  const std::uint64_t in = nbytes_of(entry, "input_sizes", "input_dtypes");
  const std::uint64_t out = nbytes_of(entry, "output_sizes", "output_dtypes");
  const auto number = std::clamp<std::int64_t>(integer(entry, "collective_seq_id"), 0, UINT32_MAX);
  return {.group = group,
          .number = static_cast<std::uint32_t>(number),
          .kind = name.substr(name.find(':') + 1),
          .nbytes = std::max(in, out),
          .state = is_done ? State::done : State::waiting,
          .place = {},
          .called_us = created_us,
          .waiting_us = is_done ? 0 : created_us,
          .ended_us = 0};
}

// ---- pickle, protocol 2 ----

void append_little_endian(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xffU);
  }
}

// The opcodes that a dump needs (Python's pickletools.py). A collection is followed by its end.
constexpr std::string_view kNone = "N", kTrue = "\x88", kFalse = "\x89";
constexpr std::string_view kDict = "}(", kEndDict = "u", kList = "](", kEndList = "e";
constexpr std::string_view kTuple = "(", kEndTuple = "t";

class PickleText {
 public:
  PickleText& put(std::string_view opcode) {
    out_ += opcode;
    return *this;
  }
  PickleText& text(std::string_view value) {
    out_ += 'X';  // BINUNICODE
    append_little_endian(out_, value.size(), 4);
    return put(value);
  }
  PickleText& integer(std::int64_t value) {
    put("\x8a\x08");  // LONG1
    append_little_endian(out_, static_cast<std::uint64_t>(value), 8);
    return *this;
  }
  std::string finish() { return "\x80\x02" + out_ + "."; }

 private:
  std::string out_;
};

/// torch's name of a group: it must be the same on all its ranks, and differ from those of others.
std::string torch_name_of(const Group& group) {
  return fmt::format("{}.{}.{}.{}", group.name, group.first, group.stride, group.count);
}

std::string torch_ranks_of(const Group& group) {
  std::string list = "[";
  for (int i = 0; i < group.count; ++i) {
    list += (i == 0 ? "" : ", ") +
            std::to_string(std::int64_t{group.first} + std::int64_t{i} * group.stride);
  }
  return list + "]";
}

/// Sizes of one input and one output in bytes. They follow the rules by which torchfrtrace compares
/// the ranks; a kind that it does not know becomes a barrier.
struct TorchCall {
  std::string_view kind;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> sizes;
};

TorchCall torch_call_of(const Collective& each, const Group& group) {
  const std::uint64_t nbytes = each.nbytes;
  const std::uint64_t share = nbytes / static_cast<std::uint64_t>(group.count);
  if (each.kind == "all_gather") {
    return {"all_gather", std::pair(share, share * static_cast<std::uint64_t>(group.count))};
  }
  if (each.kind == "reduce_scatter") {
    return {"reduce_scatter", std::pair(share * static_cast<std::uint64_t>(group.count), share)};
  }
  for (const std::string_view kind : {"all_reduce", "broadcast", "reduce"}) {
    if (each.kind == kind) {
      return {kind, std::pair(nbytes, nbytes)};
    }
  }
  return {"barrier", std::nullopt};
}

std::string_view torch_state_of(State state) {
  switch (state) {
    case State::called: return "scheduled";
    case State::done: return "completed";
    case State::waiting:
    case State::failed: break;
  }
  return "started";
}

void add_sizes(PickleText& pickle, std::string_view name, std::string_view dtypes,
               std::optional<std::uint64_t> size) {
  pickle.text(name).put(kList);
  if (size) {
    pickle.put(kList).integer(static_cast<std::int64_t>(*size)).put(kEndList);
  }
  pickle.put(kEndList).text(dtypes).put(kList);
  if (size) {
    pickle.text("Byte");
  }
  pickle.put(kEndList);
}

void add_entry(PickleText& pickle, const Collective& each, const Group& group,
               std::int64_t number) {
  const TorchCall call = torch_call_of(each, group);
  const bool is_done = each.state == State::done;
  pickle.put(kDict);
  pickle.text("record_id")
      .integer(number)
      .text("pg_id")
      .integer(static_cast<std::int64_t>(each.group));
  pickle.text("process_group")
      .put(kTuple)
      .text(torch_name_of(group))
      .text(group.name)
      .put(kEndTuple);
  pickle.text("collective_seq_id").integer(each.number).text("p2p_seq_id").integer(0);
  pickle.text("op_id").integer(each.number);
  pickle.text("profiling_name").text(fmt::format("gloo:{}", call.kind));
  pickle.text("time_created_ns").integer(each.called_us * 1000);
  add_sizes(pickle, "input_sizes", "input_dtypes",
            call.sizes ? std::optional(call.sizes->first) : std::nullopt);
  add_sizes(pickle, "output_sizes", "output_dtypes",
            call.sizes ? std::optional(call.sizes->second) : std::nullopt);
  pickle.text("state").text(torch_state_of(each.state));
  pickle.text("time_discovered_started_ns");
  each.waiting_us > 0 ? pickle.integer(each.waiting_us * 1000) : pickle.put(kNone);
  pickle.text("time_discovered_completed_ns");
  each.ended_us > 0 ? pickle.integer(each.ended_us * 1000) : pickle.put(kNone);
  pickle.text("retired").put(is_done ? kTrue : kFalse).text("timeout_ms").integer(0);
  pickle.text("is_p2p").put(kFalse);
  // The kind of the runtime, and the place in the step, take the place of the Python stack.
  pickle.text("frames").put(kList).put(kDict);
  pickle.text("name").text(each.place.unit.empty() ? each.kind
                                                   : each.kind + " of unit " + each.place.unit);
  pickle.text("filename").text(each.place.phase.empty() ? "step" : each.place.phase);
  pickle.text("line").integer(0).put(kEndDict).put(kEndList);
  pickle.put(kEndDict);
}

/// What follows the name of the record in the names of the FIFO and of the answers.
constexpr const char* kRequest = ".request";
constexpr const char* kAnswers[] = {".torch.json", ".torch", ".stacks"};

std::string answer(TorchForm form) {
  return kAnswers[static_cast<std::size_t>(form)];
}

/// The byte of a request to acclaunch/_flight.py.
char letter_of(TorchForm form) {
  switch (form) {
    case TorchForm::json: return 'j';
    case TorchForm::pickle: return 'p';
    case TorchForm::stacks: break;
  }
  return 's';
}

}  // namespace

bool ask_for_torch_record(const RecordFiles& record, TorchForm form) {
  record.remove(answer(form));
  return record.send(kRequest, letter_of(form));
}

bool has_torch_record(const RecordFiles& record, TorchForm form) {
  return record.has(answer(form));
}

void ask_for_torch_records(const std::vector<RecordFiles>& records, std::chrono::milliseconds limit,
                           TorchForm (*form)(const RecordFiles&)) {
  std::vector<RecordFiles> asked;
  std::ranges::copy_if(records, std::back_inserter(asked), [form](const RecordFiles& record) {
    return ask_for_torch_record(record, form(record));
  });
  const auto has_answered = [form](const RecordFiles& record) {
    return has_torch_record(record, form(record));
  };
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!std::ranges::all_of(asked, has_answered) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::optional<std::string> python_stacks(const RecordFiles& record,
                                         std::chrono::milliseconds limit) {
  ask_for_torch_records({record}, limit, [](const RecordFiles&) { return TorchForm::stacks; });
  std::string text = record.read(answer(TorchForm::stacks), kLargestAnswer);
  return text.empty() ? std::nullopt : std::optional(std::move(text));
}

std::optional<Record> torch_record(std::string_view json, int rank) {
  const TorchJson dump = json_from_text<TorchJson>(json, nullptr, false);
  if (!dump.is_object() || !dump.contains("entries") || !dump.at("entries").is_array()) {
    return std::nullopt;
  }
  Record record{.rank = rank, .place = {}, .failure = {}, .groups = {}, .last = {}};
  Groups groups(dump, record);
  for (const TorchJson& entry : dump.at("entries")) {
    const auto p2p = entry.is_object() ? entry.find("is_p2p") : entry.end();
    if (!entry.is_object() || (p2p != entry.end() && *p2p == true)) {
      continue;  // a message between two ranks is no call of the group
    }
    const std::size_t index = groups.index_of(entry);
    Collective each = collective_of(entry, index);
    Group& group = record.groups[index];
    group.called = std::max(group.called, each.number);
    if (each.state == State::waiting && group.waiting == 0) {
      group.waiting = each.number;
    }
    record.last.push_back(std::move(each));
  }
  if (record.last.size() > kMostCollectives) {
    record.last.erase(record.last.begin(), record.last.end() - kMostCollectives);
  }
  return record;
}

std::string read_torch_pickle(const RecordFiles& record) {
  return record.read(answer(TorchForm::pickle), kLargestAnswer);
}

std::optional<Record> read_own_record(const RecordFiles& record) {
  return flight::decode(record.read("", flight::file::kNbytes));
}

std::optional<Record> read_any_record(const RecordFiles& record, int rank) {
  auto own = read_own_record(record);
  if (own && !own->last.empty()) {
    return own;
  }
  auto of_torch = torch_record(record.read(answer(TorchForm::json), kLargestAnswer), rank);
  if (!of_torch) {
    return own;
  }
  if (own) {  // with the values that the program has reported
    own->groups = std::move(of_torch->groups);
    own->last = std::move(of_torch->last);
    return own;
  }
  return of_torch;
}

void remove_records(const RecordFiles& record) {
  record.remove("");
  record.remove(kRequest);
  for (const char* const suffix : kAnswers) {
    record.remove(suffix);
  }
}

// Entries are numbered over all groups: the last one has the number of all calls, so that ranks
// that have made the same calls give the same numbers.
std::string torch_pickle(const Record& record) {
  PickleText pickle;
  std::int64_t number = 0;
  for (const Group& group : record.groups) {
    number += group.called;
  }
  number -= std::ssize(record.last);
  pickle.put(kDict).text("version").text("2.10").text("comm_lib_version").text("");
  pickle.text("pg_config").put(kDict);
  for (const Group& group : record.groups) {
    const std::string name = torch_name_of(group);
    pickle.text(name).put(kDict).text("name").text(name).text("desc").text(group.name);
    pickle.text("ranks").text(torch_ranks_of(group)).put(kEndDict);
  }
  pickle.put(kEndDict).text("pg_status").put(kDict).put(kEndDict).text("entries").put(kList);
  for (const Collective& each : record.last) {
    add_entry(pickle, each, record.groups[each.group], number++);
  }
  pickle.put(kEndList).put(kEndDict);
  return pickle.finish();
}

}  // namespace acc::launcher::report
