// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/documents/document.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <iterator>
#include <unordered_map>

namespace acc::documents {
namespace {

/// Iterator over the text that counts the lines the parser has consumed. nlohmann::json reports
/// byte offsets only.
class LineCounter {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCounter(const char* position, int* line) : position_(position), line_(line) {}

  reference operator*() const { return *position_; }
  LineCounter& operator++() {
    if (*position_ == '\n') {
      ++*line_;
    }
    ++position_;
    return *this;
  }
  LineCounter operator++(int) {
    const LineCounter before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineCounter& other) const { return position_ == other.position_; }
  bool operator!=(const LineCounter& other) const { return !(*this == other); }

 private:
  const char* position_;
  int* line_;
};

/// Builds the tree from the parser's events. The place of a value in a map is the place of its key:
/// when the parser reports a value, the line counter may already be behind it.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string file, const int* line) : file_(std::move(file)), line_(line) {}

  bool null() override { return scalar(Node::Kind::null, ""); }
  bool boolean(bool value) override {
    return scalar(Node::Kind::boolean, value ? "true" : "false");
  }
  bool number_integer(number_integer_t value) override {
    return scalar(Node::Kind::number, std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return scalar(Node::Kind::number, std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return scalar(Node::Kind::number, text);
  }
  bool string(string_t& text) override { return scalar(Node::Kind::string, text); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Node::Kind::map); }
  bool start_array(std::size_t) override { return open(Node::Kind::list); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& text) override {
    const auto [first, is_new] = open_.back().places.try_emplace(text, place());
    if (!is_new) {
      throw Error(Errc::config,
                  place() + ": key \"" + text + "\" is given twice, first at " + first->second);
    }
    open_.back().key = text;
    open_.back().key_place = place();
    return true;
  }

  bool parse_error(std::size_t, const std::string& token,
                   const nlohmann::json::exception&) override {
    constexpr std::size_t kEnough = 60;  // an unterminated string makes the token the whole file
    const bool cut = token.size() > kEnough;
    throw Error(Errc::config, place() + ": not valid JSON near \"" + (cut ? "..." : "") +
                                  token.substr(cut ? token.size() - kEnough : 0) + "\"");
  }

  [[nodiscard]] Node take_root() { return std::move(root_); }

 private:
  /// A list or map that is still open.
  struct Level {
    Node node;
    std::string key;        ///< last key of a map, whose value is expected
    std::string key_place;  ///< place of that key
    std::unordered_map<std::string, std::string> places;  ///< place of each key so far
  };

  [[nodiscard]] std::string place() const { return file_ + ":" + std::to_string(*line_); }

  [[nodiscard]] std::string value_place() const {
    const bool in_map = !open_.empty() && open_.back().node.kind == Node::Kind::map;
    return in_map ? open_.back().key_place : place();
  }

  bool scalar(Node::Kind kind, std::string text) {
    Node node;
    node.kind = kind;
    node.text = std::move(text);
    node.where = value_place();
    return add(std::move(node));
  }

  bool open(Node::Kind kind) {
    Level level;
    level.node.kind = kind;
    level.node.where = value_place();
    open_.push_back(std::move(level));
    return true;
  }

  bool close() {
    Node node = std::move(open_.back().node);
    open_.pop_back();
    return add(std::move(node));
  }

  bool add(Node node) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (open_.back().node.kind == Node::Kind::map) {
      open_.back().node.entries.emplace_back(open_.back().key, std::move(node));
    } else {
      open_.back().node.items.push_back(std::move(node));
    }
    return true;
  }

  std::string file_;
  const int* line_;
  std::vector<Level> open_;  ///< outermost first
  Node root_;
};

}  // namespace

// The counter and the builder share `line`: the iterator advances it while the parser reads.
Document parse_json(const std::string& text, const std::filesystem::path& path) {
  int line = 1;
  Builder builder(path.string(), &line);
  nlohmann::json::sax_parse(LineCounter(text.data(), &line),
                            LineCounter(text.data() + text.size(), &line), &builder);
  Document document{path, builder.take_root()};
  if (document.root.kind != Node::Kind::map) {
    throw Error(Errc::config, path.string() + ": expected an object, { \"key\": value }");
  }
  return document;
}

}  // namespace acc::documents
