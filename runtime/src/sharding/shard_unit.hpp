#pragma once

#include "sharding/flat_parameter.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace acc::sharding {

/// What is gathered, freed and reduced together, and when: the program's unit, or several of them
/// that the wrap policy put into one. Counts the open scopes; knows that the micro-step is over
/// when as many backwards as forwards have ended.
class ShardUnit {
 public:
  ShardUnit(Engine& engine, std::string name, bool is_root,
            const std::vector<ParameterRecord>& parameters);

  /// Where parameter `index`, in the order given to the constructor, lies.
  struct Place {
    FlatParameter* flat;
    std::size_t index;
  };
  [[nodiscard]] Place place(std::size_t index) const { return places_[index]; }

  /// Throw Error(invalid_argument) where the scope may not begin. Of a scope that opens several
  /// units all are asked before one is opened.
  void check_forward() const;
  void check_backward(const char* scope) const;
  void before_forward();
  void after_forward();
  /// A forward that is computed again for the backward, which `before_backward` then begins.
  void before_recompute();
  void after_recompute();
  void before_backward();
  void after_backward();
  /// Starts the gather early; the next `before_…` finds it under way.
  void prefetch();

  /// In the view dtype, [numel]; only within a scope.
  const void* parameter(std::size_t index);
  FlatGradient::Target gradient(std::size_t index);

  /// Before a step: reduces what no completed micro-step has reduced.
  void flush();
  void after_step();
  /// Before `what` changes the weights: frees what is gathered without an open scope. Throws
  /// Error(invalid_argument) inside one.
  void release(const char* what);
  /// True inside a scope of the program.
  [[nodiscard]] bool is_open() const noexcept { return open_ > 0; }
  [[nodiscard]] int micro_steps_done() const noexcept { return micro_steps_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool is_root() const noexcept { return is_root_; }
  /// By which the schedule knows this unit.
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] const std::vector<std::unique_ptr<FlatParameter>>& flats() const noexcept {
    return flats_;
  }

 private:
  void begin_unshard();
  void unshard();
  void reshard(NextUse next);
  /// The last open scope has ended, and the weights stay.
  void hide();
  void check_closed(const char* what) const;
  void complete_micro_step();
  void for_each_gradient(const std::function<void(FlatGradient&)>& visit);
  /// A scope of the program begins, and the weights are gathered; flight record and trace are told.
  void open(const char* phase);
  void leave(const char* phase);
  void trace_end();

  Engine& engine_;
  std::string name_;
  bool is_root_;
  int number_ = -1;
  std::vector<std::unique_ptr<FlatParameter>> flats_;
  std::vector<Place> places_;
  int open_ = 0;
  int forwards_ = 0;
  int backwards_ = 0;
  int micro_steps_ = 0;
  bool unsharded_ = false;
};

}  // namespace acc::sharding
