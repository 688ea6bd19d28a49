#include "report/error_file.hpp"

#include <nlohmann/json.hpp>

#include <fstream>

namespace acc::launcher {

ErrorFile read_error_file(const std::string& path) {
  std::ifstream file(path);
  if (path.empty() || !file || file.peek() == std::ifstream::traits_type::eof()) {
    return {};
  }
  const auto document = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (document.is_object() && document.contains("message")) {
    const nlohmann::json& message = document["message"];
    if (message.is_string()) {
      return {message.get<std::string>(), {}};
    }
    if (message.is_object() && message.contains("message") && message["message"].is_string()) {
      return {message["message"].get<std::string>(), {}};
    }
  }
  return {"(" + path + " is not an error file as PyTorch writes it)", {}};
}

}  // namespace acc::launcher
