// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>

namespace acc::test {

/// Returns the error that a call throws; empty if it throws none.
std::optional<Error> thrown_by(const auto& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

inline std::string coded(const Error& error) {
  return std::string(to_string(error.code())) + ": " + error.what();
}

/// Returns the error that a call throws as "code: message"; empty if it throws none.
std::string error_of(const auto& call) {
  const auto error = thrown_by(call);
  return error ? coded(*error) : "";
}

/// The codes of errors that end a program with status 2.
inline constexpr std::initializer_list<Errc> kBadInput = {
    Errc::invalid_argument, Errc::config,    Errc::disagreement,
    Errc::not_supported,    Errc::not_found, Errc::device};

/// Returns the message of the error that a call throws, whose code must be one of `codes`; empty if
/// it throws none.
std::string refusal(const auto& call,
                    std::initializer_list<Errc> codes = {Errc::config, Errc::not_supported}) {
  const auto error = thrown_by(call);
  if (!error) {
    return "";
  }
  CHECK_MESSAGE(std::ranges::count(codes, error->code()) == 1, coded(*error));
  return error->what();
}

}  // namespace acc::test
