#pragma once

#include "plan_fixture.hpp"

namespace acc::launcher::test {

/// A machine on which a face plans.
class FaceFixture : public PlanFixture {
 public:
  explicit FaceFixture(const Face& face) : face_(face) {}

  [[nodiscard]] LaunchPlan plan(const std::vector<std::string>& arguments) const {
    return face_.plan(parse_flags(face_, arguments), environment, facts);
  }

  /// The message of the error with which acclaunch refuses; empty when there is none.
  [[nodiscard]] std::string refusal(const std::vector<std::string>& arguments) const {
    try {
      static_cast<void>(plan(arguments));
      return "";
    } catch (const Error& error) {
      return refused(error);
    }
  }

  [[nodiscard]] plugins::Environment worker(const std::vector<std::string>& arguments,
                                            int local_rank) const {
    return PlanFixture::worker(plan(arguments), local_rank);
  }

  [[nodiscard]] std::string notices(const std::vector<std::string>& arguments) const {
    std::string text;
    for (const std::string& line : plan(arguments).notices) {
      text += line + "\n";
    }
    return text;
  }

 private:
  const Face& face_;
};

}  // namespace acc::launcher::test
