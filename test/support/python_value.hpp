// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/output_file.hpp"
#include "acc/checkpoint/pickle/writer.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace acc::test {

/// A Python value that a test can modify and save as a torch.save archive.
struct PythonValue {
  enum class Kind { none, boolean, integer, real, text, list, tuple, dict, size, tensor, global };
  using Entries = std::vector<std::pair<PythonValue, PythonValue>>;

  PythonValue() = default;
  PythonValue(std::int64_t value) : kind(Kind::integer), integer(value) {}
  PythonValue(int value) : PythonValue(std::int64_t{value}) {}
  PythonValue(bool value) : kind(Kind::boolean), integer(value ? 1 : 0) {}
  PythonValue(double value) : kind(Kind::real), real(value) {}
  PythonValue(const char* value) : kind(Kind::text), text(value) {}
  PythonValue(std::string value) : kind(Kind::text), text(std::move(value)) {}

  static PythonValue list(std::vector<PythonValue> items) {
    PythonValue value;
    value.kind = Kind::list;
    value.items = std::move(items);
    return value;
  }
  static PythonValue dict(Entries entries = {});
  static PythonValue size(checkpoint::Shape shape) {
    PythonValue value;
    value.kind = Kind::size;
    value.shape = std::move(shape);
    return value;
  }
  /// A float32 tensor with the values first, first + 1, …
  static PythonValue tensor(checkpoint::Shape shape, float first = 0.0F) {
    PythonValue value = size(std::move(shape));
    value.kind = Kind::tensor;
    value.real = first;
    return value;
  }

  /// Returns the element of a dict or a list at a path such as "a/0/b". Adds missing dict keys.
  PythonValue& at(const std::string& path);
  void erase(const std::string& path);
  void save(const std::filesystem::path& path) const;

  Kind kind = Kind::none;
  std::int64_t integer = 0;
  double real = 0.0;
  std::string text = {};
  checkpoint::Shape shape = {};
  std::vector<PythonValue> items = {};  ///< elements; for a dict: key, value, key, value, …

 private:
  void push(checkpoint::pickle::Writer& writer, std::vector<const PythonValue*>& tensors) const;
};

inline PythonValue PythonValue::dict(Entries entries) {
  PythonValue value;
  value.kind = Kind::dict;
  for (auto& [key, entry] : entries) {
    value.items.push_back(std::move(key));
    value.items.push_back(std::move(entry));
  }
  return value;
}

inline PythonValue& PythonValue::at(const std::string& path) {
  const auto slash = path.find('/');
  const std::string key = path.substr(0, slash);
  PythonValue* found = nullptr;
  if (kind == Kind::list) {
    found = &items.at(std::stoul(key));
  } else {
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (items[i].text == key ||
          (items[i].kind == Kind::integer && std::to_string(items[i].integer) == key)) {
        found = &items[i + 1];
      }
    }
    if (found == nullptr) {
      items.emplace_back(key);
      found = &items.emplace_back();
    }
  }
  return slash == std::string::npos ? *found : found->at(path.substr(slash + 1));
}

inline void PythonValue::erase(const std::string& path) {
  const auto slash = path.rfind('/');
  PythonValue& parent = slash == std::string::npos ? *this : at(path.substr(0, slash));
  const std::string key = path.substr(slash == std::string::npos ? 0 : slash + 1);
  for (std::size_t i = 0; i < parent.items.size(); i += 2) {
    if (parent.items[i].text == key) {
      parent.items.erase(parent.items.begin() + static_cast<std::ptrdiff_t>(i),
                         parent.items.begin() + static_cast<std::ptrdiff_t>(i) + 2);
      return;
    }
  }
}

inline void PythonValue::push(checkpoint::pickle::Writer& writer,
                              std::vector<const PythonValue*>& tensors) const {
  const auto push_items = [&] {
    for (const PythonValue& item : items) {
      item.push(writer, tensors);
    }
  };
  switch (kind) {
    case Kind::none: writer.none(); break;
    case Kind::boolean: writer.boolean(integer != 0); break;
    case Kind::integer: writer.integer(integer); break;
    case Kind::real: writer.real(real); break;
    case Kind::text: writer.text(text); break;
    case Kind::list:
      writer.begin_list();
      push_items();
      writer.end_list();
      break;
    case Kind::tuple:
      writer.begin_tuple();
      push_items();
      writer.end_tuple();
      break;
    case Kind::dict:
      writer.begin_dict();
      push_items();
      writer.end_dict();
      break;
    case Kind::size:
      writer.global("torch", "Size").begin_tuple().begin_tuple();
      for (const std::int64_t extent : shape) {
        writer.integer(extent);
      }
      writer.end_tuple().end_tuple().reduce();
      break;
    case Kind::tensor:
      checkpoint::torch::push_tensor(writer, {checkpoint::Dtype::f32, shape},
                                     static_cast<int>(tensors.size()));
      tensors.push_back(this);
      break;
    case Kind::global: writer.global("os", text); break;
  }
}

inline void PythonValue::save(const std::filesystem::path& path) const {
  checkpoint::pickle::Writer writer;
  std::vector<const PythonValue*> tensors;
  push(writer, tensors);
  std::filesystem::create_directories(path.parent_path());
  OutputFile out(path);
  checkpoint::torch::TorchFileWriter file(out, writer.finish());
  for (const PythonValue* tensor : tensors) {
    std::vector<float> values(static_cast<std::size_t>(checkpoint::numel_of(tensor->shape)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(tensor->real) + static_cast<float>(i);
    }
    file.storage(values.size() * sizeof(float), [&values](const checkpoint::torch::Sink& sink) {
      sink(std::as_bytes(std::span(values)));
    });
  }
  file.finish();
  out.close();
}

}  // namespace acc::test
