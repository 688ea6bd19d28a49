// SPDX-License-Identifier: Apache-2.0
#include "pickle/node.hpp"

#include "acc/checkpoint/files/errors.hpp"

namespace acc::checkpoint::pickle {

Node::Node(const Value& value, std::string where, std::string key)
    : value_(&value), where_(std::move(where)), key_(std::move(key)) {}

std::string Node::where() const {
  return key_.empty() ? where_ : where_ + ": key '" + key_ + "'";
}

void Node::refuse(const std::string& expected) const {
  throw Unreadable((key_.empty() ? where_ + ": the file" : where()) + " must be " + expected +
                   ", and is " + value_->describe());
}

// OrderedDict and defaultdict are pickled as objects on which items are set.
bool Node::is_dict() const noexcept {
  return value_->is(Value::Kind::dict) || value_->is_object_of("collections", "OrderedDict") ||
         value_->is_object_of("collections", "defaultdict");
}

bool Node::is_list() const noexcept {
  return value_->is(Value::Kind::list) || value_->is(Value::Kind::tuple);
}

bool Node::is_number() const noexcept {
  return value_->is(Value::Kind::integer) || value_->is(Value::Kind::real) ||
         value_->is(Value::Kind::boolean);
}

// The path of keys grows with each step, so that a message shows the full way to the value.
Node Node::child(const Value& value, std::string_view name) const {
  return {value, where_, key_.empty() ? std::string(name) : key_ + "." + std::string(name)};
}

// Objects are accepted too: the state of a pickled object is usually a dict (a loss scaler's
// attributes).
Node Node::at(std::string_view name) const {
  if (!is_dict() && !value_->is(Value::Kind::object)) {
    refuse("a dict");
  }
  const Value* const found = value_->find(name);
  if (found == nullptr) {
    const Node missing = child(*value_, name);
    throw Unreadable(where_ + ": key '" + missing.key_ + "' is missing");
  }
  return child(*found, name);
}

std::optional<Node> Node::find(std::string_view name) const {
  if (!is_dict() && !value_->is(Value::Kind::object)) {
    refuse("a dict");
  }
  const Value* const found = value_->find(name);
  if (found == nullptr || found->is(Value::Kind::none)) {
    return std::nullopt;
  }
  return child(*found, name);
}

// Optimizers that torch saved number their parameters, so integer keys are accepted and converted
// to text.
std::vector<std::pair<std::string, Node>> Node::entries() const {
  if (!is_dict()) {
    refuse("a dict");
  }
  const Value::Items pairs = value_->pairs();
  std::vector<std::pair<std::string, Node>> result;
  result.reserve(pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const Value& name = *pairs[i];
    if (name.is(Value::Kind::text)) {
      result.emplace_back(std::string(name.text), child(*pairs[i + 1], name.text));
    } else if (name.is(Value::Kind::integer)) {
      const std::string number = std::to_string(name.integer);
      result.emplace_back(number, child(*pairs[i + 1], number));
    } else {
      refuse("a dict with string or integer keys (found the key " + name.describe() + ")");
    }
  }
  return result;
}

std::vector<Node> Node::items() const {
  if (!is_list()) {
    refuse("a list");
  }
  std::vector<Node> result;
  result.reserve(value_->items.size());
  for (std::size_t i = 0; i < value_->items.size(); ++i) {
    result.push_back(child(*value_->items[i], std::to_string(i)));
  }
  return result;
}

std::int64_t Node::integer() const {
  if (!value_->is(Value::Kind::integer)) {
    refuse("an integer");
  }
  return value_->integer;
}

double Node::real() const {
  if (!is_number()) {
    refuse("a number");
  }
  return value_->is(Value::Kind::real) ? value_->real : static_cast<double>(value_->integer);
}

bool Node::boolean() const {
  if (!value_->is(Value::Kind::boolean)) {
    refuse("True or False");
  }
  return value_->integer != 0;
}

std::string Node::text() const {
  if (!is_text()) {
    refuse("a string");
  }
  return std::string(value_->text);
}

// Accepts torch.Size((2, 3)), which is pickled as a call with one tuple, and plain sequences.
Shape Node::shape() const {
  const Value* sizes = value_;
  if (value_->is_object_of("torch", "Size") && value_->items.size() >= 2 &&
      value_->items[1]->is(Value::Kind::tuple) && value_->items[1]->items.size() == 1) {
    sizes = value_->items[1]->items[0];
  }
  if (!sizes->is(Value::Kind::tuple) && !sizes->is(Value::Kind::list)) {
    refuse("a torch.Size");
  }
  Shape result;
  for (const Value* size : sizes->items) {
    if (!size->is(Value::Kind::integer)) {
      refuse("a torch.Size of integers");
    }
    result.push_back(size->integer);
  }
  check_shape(result, where());
  return result;
}

}  // namespace acc::checkpoint::pickle
