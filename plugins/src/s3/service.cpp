// SPDX-License-Identifier: Apache-2.0
#include "s3/service.hpp"

#include <boost/property_tree/ini_parser.hpp>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <stdexcept>

namespace acc::s3 {

namespace {

namespace fs = std::filesystem;
using Document = boost::property_tree::ptree;

/// The lines of a section; all others are empty. Indented lines belong to a key above them, which
/// is of no use here, and several keys may have the same ones.
std::stringstream lines_of(std::istream& file, const std::string& name) {
  std::stringstream found;
  bool is_inside = false;
  for (std::string line; std::getline(file, line); found << '\n') {
    if (line.starts_with('[')) {
      is_inside = line.substr(1, line.find(']') - 1) == name;
    }
    if (is_inside && !line.starts_with(' ') && !line.starts_with('\t')) {
      found << line;
    }
  }
  return found;
}

/// Returns a section of a file; an empty one if the file or the section is not there.
Document section_of(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  Document document;
  try {
    std::stringstream lines = lines_of(file, name);
    boost::property_tree::read_ini(lines, document);
  } catch (const boost::property_tree::ini_parser_error& error) {
    throw std::runtime_error(
        fmt::format("{}, line {}: {}", path.string(), error.line(), error.message()));
  }
  const auto found = document.find(name);
  return found == document.not_found() ? Document() : found->second;
}

std::string value_of(const Document& section, const char* name) {
  const auto found = section.find(name);
  return found == section.not_found() ? "" : found->second.data();
}

void fill(std::string& value, std::string other) {
  if (value.empty()) {
    value = std::move(other);
  }
}

}  // namespace

bool Service::has_bucket_in_path(const std::string& bucket) const {
  return !endpoint.empty() || bucket.find('.') != std::string::npos;
}

std::string Service::base_of(const std::string& bucket) const {
  if (!endpoint.empty()) {
    return endpoint;
  }
  return has_bucket_in_path(bucket) ? fmt::format("https://s3.{}.amazonaws.com", region)
                                    : fmt::format("https://{}.s3.{}.amazonaws.com", bucket, region);
}

Service find_service(VariableOf& variable_of) {
  // The first of the variables that is set and not empty.
  const auto variable = [&variable_of](std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      if (const auto value = variable_of(name); value && !value->empty()) {
        return *value;
      }
    }
    return std::string();
  };
  const fs::path home = fs::path(variable({"HOME"})) / ".aws";
  std::string profile = variable({"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  fill(profile, "default");
  std::string credentials_file = variable({"AWS_SHARED_CREDENTIALS_FILE"});
  fill(credentials_file, home / "credentials");
  std::string config_file = variable({"AWS_CONFIG_FILE"});
  fill(config_file, home / "config");
  const Document config =
      section_of(config_file, profile == "default" ? profile : "profile " + profile);

  Service service;
  service.endpoint = variable({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  fill(service.endpoint, value_of(config, "endpoint_url"));
  if (service.endpoint.empty() && !value_of(config, "services").empty()) {
    throw std::runtime_error(fmt::format(
        "{}: profile {} has the key services, whose sections are not read: set endpoint_url in the "
        "profile, or AWS_ENDPOINT_URL_S3",
        config_file, profile));
  }
  while (service.endpoint.ends_with('/')) {
    service.endpoint.pop_back();
  }
  service.region = variable({"AWS_REGION", "AWS_DEFAULT_REGION"});
  fill(service.region, value_of(config, "region"));
  fill(service.region, "us-east-1");
  service.keys = {variable({"AWS_ACCESS_KEY_ID"}), variable({"AWS_SECRET_ACCESS_KEY"}),
                  variable({"AWS_SESSION_TOKEN"})};
  if (service.keys.id.empty() || service.keys.secret.empty()) {
    Document section = section_of(credentials_file, profile);
    if (value_of(section, "aws_access_key_id").empty()) {
      section = config;
    }
    service.keys = {value_of(section, "aws_access_key_id"),
                    value_of(section, "aws_secret_access_key"),
                    value_of(section, "aws_session_token")};
  }
  if (service.keys.id.empty() || service.keys.secret.empty()) {
    throw std::runtime_error(fmt::format(
        "no keys found: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or aws_access_key_id "
        "and aws_secret_access_key in the section [{}] of {}; other sources of keys (roles of "
        "machines, SSO) are not read: 'aws configure export-credentials --format env' prints "
        "theirs as variables",
        profile, credentials_file));
  }
  return service;
}

}  // namespace acc::s3
