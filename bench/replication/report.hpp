#pragma once
// What the program says: parameters first, then tables, then goals; and the same as JSON.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace replication_bench {

class report {
 public:
  explicit report(bool smoke) : smoke_{smoke} {}

  [[nodiscard]] bool smoke() const noexcept { return smoke_; }

  /// Printed at once, before anything is simulated.
  void parameters(const std::string& scenario, const std::vector<std::string>& lines);

  /// Rows of numbers, the first column a name. Printed when it is complete.
  struct table {
    std::string title{};
    std::vector<std::string> columns{};
    std::vector<std::pair<std::string, std::vector<double>>> rows{};
    std::vector<std::string> notes{};
  };
  void add(const table& finished);

  /// A rule that must hold exactly. A broken one is printed with its sentences, and the program fails.
  void rule(const std::string& what, const std::vector<std::string>& violations);
  void exact(const std::string& what, std::uint64_t seen, std::uint64_t expected);

  void goal_at_most(const std::string& what, double value, double limit) {
    goals_.push_back({what, value, limit, true});
  }
  void goal_at_least(const std::string& what, double value, double limit) {
    goals_.push_back({what, value, limit, false});
  }
  /// Wall-clock time, on standard error: the rest of the output is the same at every run.
  void progress(const std::string& what) const;

  /// Goals and rules. False: a rule was broken.
  [[nodiscard]] bool finish() const;
  [[nodiscard]] nlohmann::json json() const;

 private:
  struct promise {
    std::string what;
    double value;
    double limit;
    bool at_most;
    [[nodiscard]] bool reached() const noexcept { return at_most ? value <= limit : value >= limit; }
  };
  bool smoke_;
  std::vector<std::pair<std::string, std::vector<std::string>>> parameters_;
  std::vector<table> tables_;
  std::vector<promise> goals_;
  std::vector<std::pair<std::string, std::vector<std::string>>> rules_;
};

struct scenario {
  void (*describe)(report&);
  void (*run)(report&);
};
extern const scenario one_source;
extern const scenario large_fleet;
extern const scenario standalone;
extern const scenario elastic;
extern const scenario wide_area;
extern const scenario lost_source;
extern const scenario unequal_links;

}  // namespace replication_bench
