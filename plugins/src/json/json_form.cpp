// SPDX-License-Identifier: Apache-2.0
#include "acc/base/json_form.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_set>

namespace acc {

namespace {

class FormReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ == 1 && !form_.twice && !names_.insert(name).second) {
      form_.twice = name;
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

  [[nodiscard]] const JsonForm& form() const noexcept { return form_; }

 private:
  bool open() {
    form_.depth = std::max(form_.depth, ++depth_);
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  JsonForm form_;
  int depth_ = 0;
  std::unordered_set<std::string> names_;
};

}  // namespace

JsonForm json_form(std::string_view text) {
  FormReader reader;
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.form();
}

}  // namespace acc
